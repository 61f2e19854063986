//! Verification as data: what was signed, by which algorithm, and where signature and timestamp stand.
//! Several recipes may stand side by side; one that holds suffices.

use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::pattern::Pattern;
use crate::problem::Problem;
use crate::selector::{Place, Selector};
use crate::template::{Part, Template, headers_of};

/// One recipe, or a list of which one suffices.
#[derive(Debug, Clone, PartialEq)]
pub struct Verify(pub Vec<Recipe>);

/// How one signature is checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub algorithm: Algorithm,
    /// Where the signature stands; it may yield several, any of which suffices.
    pub signature: Selector,
    #[serde(default)]
    pub encoding: Encoding,
    /// Places of a better signature: where something stands in one of them, this recipe does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unless: Vec<Selector>,
    /// What was signed, as a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Template>,
    /// Steps from a secret's text to the key; none: its UTF-8 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyStep>,
    /// For public keys: where the request says that the signer's certificate stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateRule>,
    /// When the request was signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<TimestampRule>,
    /// Values that must be equal, beside the signature.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<Require>,
    /// Digests in signed places that bind what the signature itself does not cover.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<DigestRule>,
    /// For algorithm = "jwt".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtRule>,
    /// The provider may have signed the URL with its port or without: either is tried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub either_port: bool,
    /// The signature leaves the body, or parts of it, open: a forger who saw one signature may change them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsigned_body: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    HmacSha1,
    HmacSha256,
    HmacSha512,
    /// A plain hash; the template says where the secret stands in it.
    Sha1,
    Sha256,
    Ed25519,
    /// The signature is ASN.1 DER.
    EcdsaP256Sha1,
    EcdsaP256Sha256,
    /// PKCS#1 v1.5.
    RsaSha1,
    RsaSha256,
    /// The secret itself is sent.
    Static,
    /// HTTP basic authentication; the secret is USER:PASSWORD.
    Basic,
    Jwt,
}

/// How a signature is written. Each is read in its canonical form only, hex in either case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As it is: for algorithms static, basic and jwt.
    #[default]
    Text,
    Hex,
    /// With padding.
    Base64,
    /// Without padding.
    Base64Url,
}

/// One step from a secret's text to the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyStep {
    /// Drops a prefix, where it is there.
    Strip(String),
    Hex,
    Base64,
    /// Each character is a byte, up to U+00FF.
    Latin1,
    /// Unicode normal form KD.
    Nfkd,
    /// The digest is the key.
    Sha1,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimestampRule {
    pub from: Selector,
    pub unit: TimestampUnit,
    /// Oldest allowed, in seconds; exactly at the limit passes.
    pub past_max_s: u64,
    /// Furthest ahead allowed, in seconds. Absent: no limit, as some providers' own libraries have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub future_max_s: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TimestampUnit {
    S,
    Ms,
    /// ISO 8601; without a zone it is UTC.
    Iso,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Require {
    pub from: Selector,
    /// What it must be: `const:TEXT` or `setting:NAME`.
    pub equals: Selector,
}

/// A certificate that is fetched, once, and kept. Its host is the anchor of trust: over TLS, of these names only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateRule {
    /// The address, https.
    pub from: Selector,
    /// Hosts that may be asked; a `*` stands for one label or a part of one. What starts with `!` excludes.
    pub hosts: Vec<String>,
    /// What the path must be, where the provider's addresses are known closer. There is never a query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Pattern>,
}

/// `from` must be the SHA-256 of `of`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DigestRule {
    pub from: Selector,
    pub of: Template,
    pub encoding: Encoding,
    /// The digest is left out where the body is empty, and only there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent_if_empty: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JwtRule {
    /// Only these are believed, whatever the token says.
    pub algorithms: Vec<JwtAlgorithm>,
    /// Claim `iss` must be this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Allowance for `nbf`, `exp` and `iat`, in seconds.
    #[serde(default)]
    pub leeway_s: u64,
    /// Oldest `iat`, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_s: Option<u64>,
}

/// RFC 7518, section 3.1; RFC 8037.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum JwtAlgorithm {
    HS256,
    HS384,
    HS512,
    RS256,
    ES256,
    EdDSA,
}

impl Algorithm {
    fn is_sent_secret(self) -> bool {
        matches!(self, Self::Static | Self::Basic)
    }

    /// Whether a secret of it is the provider's public key.
    pub fn is_public(self) -> bool {
        use Algorithm::{EcdsaP256Sha1, EcdsaP256Sha256, Ed25519, RsaSha1, RsaSha256};
        matches!(self, Ed25519 | EcdsaP256Sha1 | EcdsaP256Sha256 | RsaSha1 | RsaSha256)
    }

    pub fn is_hmac(self) -> bool {
        matches!(self, Self::HmacSha1 | Self::HmacSha256 | Self::HmacSha512)
    }

    fn is_plain_hash(self) -> bool {
        matches!(self, Self::Sha1 | Self::Sha256)
    }
}

impl Verify {
    /// Headers that every recipe's signature covers, in lower case.
    pub fn signed_headers(&self) -> Vec<String> {
        let of = |recipe: &Recipe| -> Vec<String> {
            recipe.signed.iter().flat_map(Template::flat).filter_map(headers_of).map(str::to_owned).collect()
        };
        let (first, rest) = self.0.split_first().map_or((None, &[][..]), |(f, r)| (Some(f), r));
        let mut names = first.map(of).unwrap_or_default();
        names.retain(|name| rest.iter().all(|recipe| of(recipe).contains(name)));
        names
    }

    /// Whether every recipe binds what stands at `place`, a part of the body.
    pub fn covers(&self, place: &Place) -> bool {
        let named = |recipe: &Recipe| recipe.signed.iter().flat_map(Template::selectors).any(|s| s.place == *place);
        self.0.iter().all(|recipe| !recipe.unsigned_body || named(recipe))
    }

    /// Headers that may be kept with a record, in lower case: those that are read, and are not the secret itself.
    pub fn kept_headers(&self) -> Vec<String> {
        let secret = |recipe: &Recipe| {
            let name = recipe.signature.place.header().filter(|_| recipe.algorithm.is_sent_secret());
            name.map(str::to_owned)
        };
        let secrets: Vec<_> = self.0.iter().filter_map(secret).chain(["authorization".to_owned()]).collect();
        let of_selectors = self.0.iter().flat_map(Recipe::selectors).filter_map(|s| s.place.header());
        let of_parts = self.0.iter().flat_map(Recipe::templates).flat_map(Template::flat).filter_map(headers_of);
        let mut names: Vec<_> = of_selectors.chain(of_parts).map(str::to_owned).collect();
        names.retain(|name| !secrets.contains(name));
        names
    }

    pub fn problems(&self) -> Vec<Problem> {
        if self.0.is_empty() {
            return vec![Problem::at("", "is empty: without a recipe every request would be refused")];
        }
        let under = |i: usize, p: Problem| if self.0.len() == 1 { p } else { p.under(&i.to_string()) };
        self.0.iter().enumerate().flat_map(|(i, r)| r.problems().into_iter().map(move |p| under(i, p))).collect()
    }
}

impl Recipe {
    /// A recipe of a signature over `signed`, and nothing more.
    pub fn over(signed: Template, algorithm: Algorithm, signature: Selector, encoding: Encoding) -> Self {
        Self {
            algorithm,
            signature,
            encoding,
            unless: Vec::new(),
            signed: Some(signed),
            key: Vec::new(),
            certificate: None,
            timestamp: None,
            require: Vec::new(),
            digests: Vec::new(),
            jwt: None,
            either_port: false,
            unsigned_body: false,
        }
    }

    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        self.signed.iter().chain(self.digests.iter().map(|d| &d.of))
    }

    /// Every selector of the recipe.
    pub fn selectors(&self) -> Vec<&Selector> {
        let own = [Some(&self.signature), self.timestamp.as_ref().map(|t| &t.from)].into_iter().flatten();
        let required = self.require.iter().flat_map(|r| [&r.from, &r.equals]);
        let digests = self.digests.iter().map(|d| &d.from);
        let own = own.chain(self.certificate.iter().map(|c| &c.from)).chain(&self.unless);
        own.chain(required).chain(digests).chain(self.templates().flat_map(Template::selectors)).collect()
    }

    /// Whether the body is signed as a whole. A checksum binds nothing: whoever wants makes another body of the same.
    fn binds_body(&self) -> bool {
        let whole = |part: &Part| match part {
            Part::Body | Part::Sha256Raw | Part::BodyAsJsonString | Part::FormSorted => true,
            Part::Value(selector) => selector.place == Place::BodyDigest,
            _ => false,
        };
        self.templates().flat_map(Template::flat).any(whole)
    }

    /// Whether the signature itself covers a place: a claim of the token, or what the template names.
    fn signs(&self, place: &Place) -> bool {
        let parts = || self.signed.iter().flat_map(Template::flat);
        match place {
            Place::Claim(_) => self.algorithm == Algorithm::Jwt,
            Place::Query(_) if parts().any(|p| matches!(p, Part::Url | Part::PathQuery | Part::QuerySorted)) => true,
            Place::Header(name) if parts().any(|part| headers_of(part) == Some(name)) => true,
            place => parts().any(|part| matches!(part, Part::Value(selector) if selector.place == *place)),
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        let mut say = |path: &str, message: &str| out.push(Problem::at(path, message));
        if self.signature.optional {
            say("signature", "cannot be optional: every request is verified");
        }
        if matches!(self.signature.place, Place::Const(_) | Place::Setting(_) | Place::BodyDigest | Place::Claim(_)) {
            say("signature", "must stand in the request: header:NAME, query:NAME, form:NAME or body:/POINTER");
        }
        let is_text = self.encoding == Encoding::Text;
        let takes_text = self.algorithm.is_sent_secret() || self.algorithm == Algorithm::Jwt;
        match (&self.signed, takes_text) {
            (None, false) => say("signed", "is missing: a template of what was signed, such as {timestamp}.{body}"),
            (Some(_), true) => say("signed", "has no meaning with this algorithm"),
            _ => {}
        }
        if is_text != takes_text {
            say("encoding", "must be hex, base64 or base64url; with static, basic and jwt it is left out");
        }
        let has_secret = self.templates().flat_map(Template::flat).any(|p| *p == Part::Secret);
        if has_secret != self.algorithm.is_plain_hash() {
            say("signed", "{secret} belongs into the template of algorithms sha1 and sha256, and of no other");
        }
        if self.jwt.is_some() != (self.algorithm == Algorithm::Jwt) {
            say("jwt", "belongs to algorithm = \"jwt\", which needs it");
        }
        if self.certificate.is_some() && !self.algorithm.is_public() {
            say("certificate", "belongs to an algorithm with a public key: rsa, ecdsa or ed25519");
        }
        if self.certificate.as_ref().is_some_and(|c| c.hosts.iter().all(|host| host.starts_with('!'))) {
            say("certificate.hosts", "is empty: name the hosts that may be asked");
        }
        if self.jwt.as_ref().is_some_and(|jwt| jwt.algorithms.is_empty()) {
            say("jwt.algorithms", "is empty: no token would be believed");
        }
        let needs_no_body = self.algorithm.is_sent_secret() || self.unsigned_body;
        if !needs_no_body && !self.binds_body() {
            say("signed", "does not cover {body}: a forger could change it; say unsigned_body = true where that is so");
        }
        for (i, digest) in self.digests.iter().enumerate().filter(|(_, d)| !self.signs(&d.from.place)) {
            let place = &digest.from;
            say(
                &format!("digests.{i}.from"),
                &format!("{place} is not covered by the signature: a forger could change both"),
            );
        }
        let has_timestamp = self.templates().flat_map(Template::flat).any(|p| *p == Part::Timestamp);
        if has_timestamp && self.timestamp.is_none() {
            say("timestamp", "is missing, but signed names {timestamp}");
        }
        if self.timestamp.as_ref().is_some_and(|t| t.past_max_s == 0) {
            say("timestamp.past_max_s", "is 0: every request would be too old");
        }
        for (i, require) in self.require.iter().enumerate() {
            if !matches!(require.equals.place, Place::Const(_) | Place::Setting(_)) {
                say(&format!("require.{i}.equals"), "must be const:TEXT or setting:NAME");
            }
        }
        out
    }
}

impl FromStr for KeyStep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "hex" => Self::Hex,
            "base64" => Self::Base64,
            "latin1" => Self::Latin1,
            "nfkd" => Self::Nfkd,
            "sha1" => Self::Sha1,
            _ => match text.strip_prefix("strip:").filter(|prefix| !prefix.is_empty()) {
                Some(prefix) => Self::Strip(prefix.to_owned()),
                None => {
                    return Err(format!(
                        "key step {text:?} is unknown: write strip:PREFIX, hex, base64, latin1, nfkd or sha1"
                    ));
                }
            },
        })
    }
}

impl<'de> Deserialize<'de> for KeyStep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for KeyStep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Strip(prefix) => serializer.collect_str(&format_args!("strip:{prefix}")),
            Self::Hex => serializer.serialize_str("hex"),
            Self::Base64 => serializer.serialize_str("base64"),
            Self::Latin1 => serializer.serialize_str("latin1"),
            Self::Nfkd => serializer.serialize_str("nfkd"),
            Self::Sha1 => serializer.serialize_str("sha1"),
        }
    }
}

impl JsonSchema for KeyStep {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeyStep".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(strip:.+|hex|base64|latin1|nfkd|sha1)$" })
    }
}

impl<'de> Deserialize<'de> for Verify {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VerifyVisitor)
    }
}

struct VerifyVisitor;

impl<'de> Visitor<'de> for VerifyVisitor {
    type Value = Verify;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a recipe, or a list of recipes of which one suffices")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Verify, A::Error> {
        Ok(Verify(vec![Recipe::deserialize(MapAccessDeserializer::new(map))?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Verify, A::Error> {
        Ok(Verify(Vec::deserialize(SeqAccessDeserializer::new(seq))?))
    }
}

impl Serialize for Verify {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl JsonSchema for Verify {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Verify".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let recipe = generator.subschema_for::<Recipe>();
        json_schema!({
            "description": "A recipe, or a list of recipes of which one suffices",
            "anyOf": [recipe, { "type": "array", "minItems": 1, "items": recipe }]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct File {
        verify: Verify,
    }

    fn read(text: &str) -> Result<Verify, String> {
        toml::from_str::<File>(text).map(|f| f.verify).map_err(|e| e.message().to_owned())
    }

    const HMAC: &str =
        "algorithm = \"hmac-sha256\"\nsignature = \"header:X-S\"\nencoding = \"hex\"\nsigned = \"{body}\"\n";

    fn problems(recipe: &str) -> Vec<String> {
        let verify = read(&format!("[verify]\n{recipe}")).expect("readable");
        verify.problems().into_iter().map(|p| format!("{}: {}", p.path, p.message)).collect()
    }

    #[test]
    fn one_recipe_or_several() {
        let one = read(&format!("[verify]\n{HMAC}")).expect("readable");
        let two =
            read(&format!("[[verify]]\n{HMAC}\n[[verify]]\nalgorithm = \"static\"\nsignature = \"header:X-T\"\n"));
        let two = two.expect("readable");
        assert_eq!((one.0.len(), two.0.len()), (1, 2));
        for verify in [one, two] {
            let text = toml::to_string(&serde_json::json!({ "verify": verify })).expect("TOML");
            assert_eq!(read(&text).expect("readable"), verify);
            assert_eq!(verify.problems(), []);
        }
        assert!(!read("verify = []").expect("readable").problems().is_empty());
    }

    #[test]
    fn mistakes_name_the_field_and_the_remedy() {
        let table = [
            (HMAC.replace("{body}", "{timestamp}"), "signed: does not cover {body}"),
            (HMAC.replace("{body}", "{crc32}"), "signed: does not cover {body}"),
            (HMAC.replace("{body}", "{body}{timestamp}"), "timestamp: is missing"),
            (HMAC.replace("{body}", "{secret}{body}"), "signed: {secret} belongs"),
            (HMAC.replace("hmac-sha256", "sha256"), "signed: {secret} belongs"),
            (HMAC.replace("\"hex\"", "\"text\""), "encoding: must be hex"),
            (HMAC.replace("header:X-S", "?header:X-S"), "signature: cannot be optional"),
            (HMAC.replace("header:X-S", "const:x"), "signature: must stand in the request"),
            (HMAC.replace("signed = \"{body}\"\n", ""), "signed: is missing"),
            (HMAC.replace("hmac-sha256", "static"), "signed: has no meaning"),
            (
                format!("{HMAC}digests = [{{ from = \"header:X-Digest\", of = \"{{body}}\", encoding = \"hex\" }}]"),
                "digests.0.from: header:X-Digest is not covered",
            ),
            (
                "algorithm = \"jwt\"\nsignature = \"header:A\"\njwt = { algorithms = [\"HS256\"] }\n\
                digests = [{ from = \"body:/sha256\", of = \"{body}\", encoding = \"hex\" }]"
                    .to_owned(),
                "digests.0.from: body:/sha256 is not covered",
            ),
            (HMAC.replace("hmac-sha256", "jwt"), "jwt: belongs to"),
            (format!("{HMAC}jwt = {{ algorithms = [\"HS256\"] }}"), "jwt: belongs to"),
            (
                format!("{HMAC}require = [{{ from = \"header:a\", equals = \"header:b\" }}]"),
                "require.0.equals: must be",
            ),
            (
                format!("{HMAC}timestamp = {{ from = \"header:t\", unit = \"s\", past_max_s = 0 }}"),
                "timestamp.past_max_s: is 0",
            ),
        ];
        for (recipe, message) in table {
            let found = problems(&recipe).join("\n");
            assert!(found.contains(message), "{message} is not in\n{found}\nof\n{recipe}");
        }
        assert!(read(&format!("[verify]\n{HMAC}key = [\"rot13\"]")).expect_err("a mistake").contains("strip:PREFIX"));
        assert!(read(&format!("[verify]\n{HMAC}keys = []")).expect_err("a mistake").contains("unknown field"));
    }

    #[test]
    fn what_is_itself_a_secret_is_never_kept() {
        for (algorithm, header) in [("static", "header:X-Token"), ("basic", "header:Authorization")] {
            let verify = read(&format!("[verify]\nalgorithm = \"{algorithm}\"\nsignature = \"{header}\"\n"));
            assert_eq!(verify.expect("readable").kept_headers(), [""; 0]);
        }
    }

    #[test]
    fn parts_of_an_unsigned_body_count_as_signed_only_where_they_are_named() {
        let open = HMAC.replace("{body}", "{body:/a}") + "unsigned_body = true\n";
        let verify = read(&format!("[verify]\n{open}")).expect("readable");
        let (a, b) = (Place::Body(vec!["a".to_owned()]), Place::Body(vec!["b".to_owned()]));
        assert!(verify.covers(&a) && !verify.covers(&b) && !verify.covers(&Place::Form("a".to_owned())));
        assert!(read(&format!("[verify]\n{HMAC}")).expect("readable").covers(&b));
    }
}
