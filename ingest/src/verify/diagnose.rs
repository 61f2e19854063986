//! Why does this signature fail? The steps of verification one by one, with what each found, and what would have
//! made it hold. Nothing here tells a secret.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use seriatim_schemas::selector::Place;
use seriatim_schemas::verification::{Algorithm, Encoding, KeyStep, Recipe};
use sha2::{Digest, Sha256};

use super::{Keyed, Reading, Verifier, check_digest, check_window, decode, decode_signature, read_timestamp, urls};
use crate::key::LiveKey;
use crate::refused::HIDDEN;
use crate::request::RequestView;
use crate::signed::{Piece, pieces};

/// Longest excerpt of what was signed.
const EXCERPT_CHARS: usize = 160;

/// What came of each recipe.
#[derive(Debug, Serialize, Deserialize)]
pub struct Diagnosis {
    pub verified: bool,
    pub recipes: Vec<RecipeDiagnosis>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RecipeDiagnosis {
    pub algorithm: Algorithm,
    pub steps: Vec<Step>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Step {
    pub holds: bool,
    pub step: String,
    pub found: String,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for recipe in &self.recipes {
            let name = serde_json::to_value(recipe.algorithm).ok();
            writeln!(f, "{}", name.as_ref().and_then(|v| v.as_str()).unwrap_or_default())?;
            for step in &recipe.steps {
                let mark = if step.holds { "ok  " } else { "FAIL" };
                writeln!(f, "  {mark}  {:<10} {}", step.step, step.found)?;
            }
        }
        f.write_str(if self.verified { "it verifies\n" } else { "it does not verify\n" })
    }
}

impl Verifier {
    /// The steps of [`Verifier::verify`], one by one.
    pub fn diagnose(&self, request: &RequestView<'_>, now: Timestamp) -> Diagnosis {
        let extracted = if self.shape.is_empty() { None } else { self.shape.extract(request.body).ok() };
        let reading = Reading { request, shape: &self.shape, extracted: extracted.as_ref() };
        let of = |keyed: &Keyed| RecipeDiagnosis {
            algorithm: keyed.recipe.algorithm,
            steps: Steps { keyed, reading: &reading, verifier: self, now, out: Vec::new() }.run(),
        };
        Diagnosis { verified: self.verify(request, now).is_ok(), recipes: self.recipes.iter().map(of).collect() }
    }
}

struct Steps<'a> {
    keyed: &'a Keyed,
    reading: &'a Reading<'a>,
    verifier: &'a Verifier,
    now: Timestamp,
    out: Vec<Step>,
}

impl Steps<'_> {
    fn say(&mut self, holds: bool, step: &'static str, found: impl Into<String>) {
        self.out.push(Step { holds, step: step.to_owned(), found: found.into() });
    }

    fn run(mut self) -> Vec<Step> {
        let recipe = &self.keyed.recipe;
        let texts = match self.reading.all(&recipe.signature) {
            Ok(texts) if texts.iter().any(|text| !text.is_empty()) => texts,
            Ok(_) => {
                self.say(false, "signature", format!("nothing at {}", recipe.signature));
                return self.out;
            }
            Err(refusal) => {
                self.say(false, "signature", format!("{} cannot be read: {refusal}", recipe.signature));
                return self.out;
            }
        };
        if self.keyed.is_outdone(self.reading).unwrap_or(true) {
            let places: Vec<_> = recipe.unless.iter().map(ToString::to_string).collect();
            self.say(false, "unless", format!("it does not count beside {}", places.join(" or ")));
            return self.out;
        }
        let signatures: Vec<_> = texts.iter().filter_map(|text| decode_signature(recipe, text)).collect();
        let sent_secret = matches!(recipe.algorithm, Algorithm::Static | Algorithm::Basic);
        let found = format!("{} at {}, {} readable", texts.len(), recipe.signature, signatures.len());
        let form = if signatures.is_empty() { other_form(recipe, &texts[0]) } else { String::new() };
        self.say(!signatures.is_empty(), "signature", format!("{found}{form}"));
        self.say_timestamp();
        if recipe.jwt.is_some() {
            self.say_verdict();
        } else if sent_secret {
            self.say_secrets(&[], &signatures);
        } else if !signatures.is_empty() {
            self.say_signed(&signatures);
        }
        self.say_rest();
        self.out
    }

    fn say_timestamp(&mut self) {
        let Some(rule) = &self.keyed.recipe.timestamp else { return };
        match read_timestamp(rule, self.reading) {
            Err(_) => self.say(false, "timestamp", format!("nothing at {}", rule.from)),
            Ok(text) => {
                let ahead = rule.future_max_s.map_or("without limit".to_owned(), |s| format!("{s} s"));
                let window = format!("allowed: {} s old, {ahead} ahead; our clock says {}", rule.past_max_s, self.now);
                let result = check_window(rule, &text, self.now);
                let why = result.map_or_else(|refusal| format!(": {refusal}"), |()| String::new());
                self.say(result.is_ok(), "timestamp", format!("{text:?}{why} ({window})"));
            }
        }
    }

    fn say_verdict(&mut self) {
        match self.keyed.verify(self.reading, self.verifier, self.now) {
            Ok(verified) => self.say(true, "token", format!("signed by secret {}", verified.secret)),
            Err(refusal) => self.say(false, "token", refusal.to_string()),
        }
    }

    fn say_signed(&mut self, signatures: &[Vec<u8>]) {
        let recipe = &self.keyed.recipe;
        let Some(template) = &recipe.signed else { return };
        let timestamp = recipe.timestamp.as_ref().and_then(|rule| read_timestamp(rule, self.reading).ok());
        for url in urls(self.verifier.public_url(), self.reading.request.query, recipe.either_port) {
            match pieces(template, self.reading, &url, timestamp.as_deref()) {
                Err(refusal) => self.say(false, "signed", format!("{template} cannot be made: {refusal}")),
                Ok(signed) => {
                    let whole = written(&signed);
                    let digest = hex::encode(Sha256::digest(&whole));
                    let excerpt = excerpt(&whole, &self.untold());
                    let text = format!("{template} is {} bytes, SHA-256 {digest}: {excerpt}", whole.len());
                    self.say(true, "signed", text);
                    self.say_secrets(&signed, signatures);
                }
            }
        }
        let is_signed = self.out.iter().any(|step| step.step == "secret" && step.holds);
        if !is_signed {
            let hints = self.hints(signatures, timestamp.as_deref());
            for hint in hints {
                self.say(false, "hint", hint);
            }
        }
    }

    fn say_secrets(&mut self, signed: &[Piece<'_>], signatures: &[Vec<u8>]) {
        if self.keyed.keys.is_empty() {
            self.say(false, "secret", "no live secret is a key of this algorithm");
        }
        for key in &self.keyed.keys {
            let holds = signatures.iter().any(|signature| key.signed(signed, signature));
            self.say(holds, "secret", format!("{} {}", key.label, if holds { "made it" } else { "did not make it" }));
        }
    }

    fn say_rest(&mut self) {
        let recipe = &self.keyed.recipe;
        for require in &recipe.require {
            let (found, wanted) = (self.reading.one(&require.from), self.reading.one(&require.equals));
            let holds = matches!((&found, &wanted), (Ok(Some(f)), Ok(w)) if Some(f) == w.as_ref());
            // A setting may be a secret.
            let is_setting = matches!(require.equals.place, Place::Setting(_));
            let tell = |text: String| if is_setting { HIDDEN.to_owned() } else { format!("{text:?}") };
            let found = found.ok().flatten().map_or("nothing".to_owned(), tell);
            self.say(holds, "require", format!("{} is {found}, must be {}", require.from, require.equals));
        }
        if recipe.jwt.is_some() {
            return;
        }
        let urls = urls(self.verifier.public_url(), self.reading.request.query, recipe.either_port);
        for rule in &recipe.digests {
            let holds = urls.iter().any(|url| check_digest(rule, self.reading, url).is_ok());
            self.say(holds, "digest", format!("{} must be the SHA-256 of {}", rule.from, rule.of));
        }
    }

    /// Values that stand where a setting is compared, and the settings: either may be a secret.
    fn untold(&self) -> Vec<String> {
        let required = &self.keyed.recipe.require;
        let compared = required.iter().filter(|require| matches!(require.equals.place, Place::Setting(_)));
        let values = compared.flat_map(|require| [&require.from, &require.equals]);
        let values = values.filter_map(|place| self.reading.one(place).ok().flatten());
        values.filter(|value| !value.is_empty()).collect()
    }

    /// Which one change would have made the signature hold.
    fn hints(&self, signatures: &[Vec<u8>], timestamp: Option<&str>) -> Vec<String> {
        let recipe = &self.keyed.recipe;
        let request = self.reading.request;
        let mut out = Vec::new();
        let made_by = |keys: &[LiveKey], body: &[u8], url: &str| {
            let view = RequestView { body, ..*request };
            let reading = Reading { request: &view, ..*self.reading };
            let signed = recipe.signed.as_ref().and_then(|t| pieces(t, &reading, url, timestamp).ok());
            let signed = signed.unwrap_or_default();
            keys.iter().any(|key| signatures.iter().any(|signature| key.signed(&signed, signature)))
        };
        let url = urls(self.verifier.public_url(), request.query, false).remove(0);
        let keys = &self.keyed.keys;
        let bodies: [(&str, Cow<'_, [u8]>); 4] = [
            ("the body ended without white space", Cow::Borrowed(request.body.trim_ascii_end())),
            ("a line feed followed the body", Cow::Owned([request.body, b"\n"].concat())),
            ("the body's JSON were written without white space", Cow::Owned(compact(request.body))),
            ("the body were empty", Cow::Borrowed(b"")),
        ];
        for (what, body) in &bodies {
            if **body != *request.body && made_by(keys, body, &url) {
                out.push(format!("it would hold if {what}: something on the way changed it"));
            }
        }
        for other in other_urls(self.verifier.public_url(), request.query) {
            if other != url && made_by(keys, request.body, &other) {
                out.push(format!("it would hold if public_url were {}", other.split('?').next().unwrap_or(&other)));
            }
        }
        for (what, key) in KEY_STEPS {
            let steps: Vec<KeyStep> = key.iter().filter_map(|step| step.parse().ok()).collect();
            let other = Recipe { key: steps, ..recipe.clone() };
            let keys: Vec<_> = self.keyed.texts.iter().filter_map(|text| LiveKey::new(0, text, &other).ok()).collect();
            if other.key != recipe.key && made_by(&keys, request.body, &url) {
                out.push(format!("it would hold if the key were {what}: declare key = {key:?}"));
            }
        }
        out
    }
}

const KEY_STEPS: [(&str, &[&str]); 4] = [
    ("the secret's text as it is", &[]),
    ("the base64 of the secret's text, decoded", &["base64"]),
    ("what follows whsec_, base64-decoded", &["strip:whsec_", "base64"]),
    ("the hex of the secret's text, decoded", &["hex"]),
];

/// With the other scheme, with and without a slash at the end, with and without the query.
fn other_urls(public_url: &str, query: &str) -> Vec<String> {
    let swapped = match public_url.strip_prefix("https://") {
        Some(rest) => format!("http://{rest}"),
        None => public_url.replacen("http://", "https://", 1),
    };
    let slashed = match public_url.strip_suffix('/') {
        Some(bare) => bare.to_owned(),
        None => format!("{public_url}/"),
    };
    let bases = [public_url.to_owned(), swapped, slashed];
    let with_query =
        bases.iter().filter(|_| !query.is_empty()).map(|base| format!("{base}?{query}")).collect::<Vec<_>>();
    bases.into_iter().chain(with_query).collect()
}

fn compact(body: &[u8]) -> Vec<u8> {
    let document = serde_json::from_slice::<serde_json::Value>(body);
    document.map_or_else(|_| body.to_vec(), |value| value.to_string().into_bytes())
}

/// What was signed, the secret left out.
fn written(signed: &[Piece<'_>]) -> Vec<u8> {
    let bytes = |piece: &Piece<'_>| match piece {
        Piece::Bytes(bytes) => bytes.to_vec(),
        Piece::Secret => b"(secret)".to_vec(),
    };
    signed.iter().flat_map(bytes).collect()
}

fn excerpt(bytes: &[u8], untold: &[String]) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let text = untold.iter().fold(text, |text, value| text.replace(value, HIDDEN));
    let cut: String = text.chars().take(EXCERPT_CHARS).collect();
    let more = if cut.len() < text.len() { " .." } else { "" };
    format!("{cut:?}{more}")
}

/// The encoding that an unreadable signature seems to have.
fn other_form(recipe: &Recipe, text: &str) -> String {
    let all = [("hex", Encoding::Hex), ("base64", Encoding::Base64), ("base64url", Encoding::Base64Url)];
    let others: Vec<_> =
        all.iter().filter(|(_, e)| *e != recipe.encoding && decode(*e, text).is_some()).map(|(n, _)| *n).collect();
    if others.is_empty() { String::new() } else { format!("; it looks like {}", others.join(" or ")) }
}
