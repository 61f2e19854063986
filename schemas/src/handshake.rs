//! Handshakes as data: requests by which a provider asks whether this address wants its events. They are
//! answered and never published.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pattern::Pattern;
use crate::problem::Problem;
use crate::selector::{Place, Selector};
use crate::template::{Part, Template};
use crate::verification::{Algorithm, Encoding, KeyStep, Recipe};

/// One kind of request, and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Handshake {
    /// Any method, where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// All of these hold. `body:` reads the request's JSON as it was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<Condition>,
    /// The provider does not sign it. Then anyone may ask, and the answer must tell nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_verification: bool,
    /// Computed for the answer, where it stands as {token}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenRule>,
    /// The request brings the signing secret: it is kept in the source's `secrets = [{ handshake = "FILE" }]`,
    /// once. To allow another, remove the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Selector>,
    /// An address of the provider that must be fetched to confirm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchRule>,
    #[serde(default)]
    pub answer: HandshakeAnswer,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    pub from: Selector,
    /// What it must be: `const:TEXT` or `setting:NAME`. Left out: anything but empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<Selector>,
    /// It must not be there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Of which characters it must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chars: Option<Chars>,
    /// How many there may be, where the provider says it closer than `chars` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<Length>,
}

/// Bytes of a challenge, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Length {
    pub min: usize,
    pub max: usize,
}

/// What a challenge that is signed may consist of. Without such a bound anyone could have an event signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Chars {
    /// 1 to 64 hex digits.
    Hex,
    /// 1 to 256 of `A-Z a-z 0-9 - _ . ~ + / =`.
    Token,
}

impl Chars {
    /// The most of them.
    fn max(self) -> usize {
        match self {
            Self::Hex => 64,
            Self::Token => 256,
        }
    }

    fn has(self, byte: u8) -> bool {
        match self {
            Self::Hex => byte.is_ascii_hexdigit(),
            Self::Token => byte.is_ascii_alphanumeric() || b"-_.~+/=".contains(&byte),
        }
    }
}

/// What a challenge may be: so many of these characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub chars: Chars,
    pub min: usize,
    pub max: usize,
}

impl Bound {
    /// The lengths of the starts of `text` that are within the bound.
    pub fn lengths(self, text: &[u8]) -> impl Iterator<Item = usize> + use<> {
        let run = text.iter().take(self.max).take_while(|byte| self.chars.has(**byte)).count();
        self.min..=run
    }

    pub fn fits(self, text: &str) -> bool {
        self.lengths(text.as_bytes()).any(|length| length == text.len())
    }
}

impl Condition {
    /// Where it bounds what stands there.
    pub fn bound(&self) -> Option<Bound> {
        let chars = self.chars?;
        let length = self.length.unwrap_or(Length { min: 1, max: chars.max() });
        Some(Bound { chars, min: length.min.max(1), max: length.max.min(chars.max()) })
    }
}

impl TokenRule {
    /// As a recipe, which is what keys are made for.
    pub fn recipe(&self) -> Recipe {
        let signature = "const:token".parse().expect("a valid selector");
        let recipe = Recipe::over(self.signed.clone(), self.algorithm, signature, self.encoding);
        Recipe { key: self.key.clone(), ..recipe }
    }
}

/// A digest, or a signature with the source's first secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRule {
    pub algorithm: Algorithm,
    pub signed: Template,
    pub encoding: Encoding,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyStep>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchRule {
    pub url: Selector,
    /// Hosts that may be asked; a `*` stands for one label or a part of one. What starts with `!` excludes.
    pub hosts: Vec<String>,
    /// What the path must be, where the provider's addresses are known closer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Pattern>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HandshakeAnswer {
    #[serde(default = "ok")]
    pub status: u16,
    #[serde(default = "text_plain")]
    pub content_type: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Template>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Template>,
}

fn ok() -> u16 {
    200
}

fn text_plain() -> String {
    "text/plain".to_owned()
}

impl Default for HandshakeAnswer {
    fn default() -> Self {
        Self { status: ok(), content_type: text_plain(), headers: BTreeMap::new(), body: None }
    }
}

impl Handshake {
    fn templates(&self) -> impl Iterator<Item = &Template> {
        let answer = self.answer.headers.values().chain(&self.answer.body);
        self.token.iter().map(|t| &t.signed).chain(answer)
    }

    /// Every selector of it.
    pub fn selectors(&self) -> Vec<&Selector> {
        let when = self.when.iter().flat_map(|c| std::iter::once(&c.from).chain(&c.equals));
        let own = self.store.iter().chain(self.fetch.iter().map(|f| &f.url));
        when.chain(own).chain(self.templates().flat_map(Template::selectors)).collect()
    }

    /// What the conditions say of a value.
    pub fn bound(&self, selector: &Selector) -> Option<Bound> {
        self.when.iter().filter(|condition| condition.from == *selector).find_map(Condition::bound)
    }

    /// Whether the source's public URL must be known.
    pub fn needs_url(&self) -> bool {
        self.templates().any(Template::needs_url)
    }

    pub fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        let mut say = |path: String, message: &str| out.push(Problem::at(path, message));
        if self.method.is_none() && self.when.is_empty() {
            say("when".into(), "is missing, and so is method: every request would be a handshake");
        }
        if self.when.is_empty() && self.method.as_deref() == Some("POST") {
            say("when".into(), "is missing: every POST would be a handshake");
        }
        for (i, condition) in self.when.iter().enumerate() {
            if condition.absent && condition.equals.is_some() {
                say(format!("when.{i}"), "equals and absent exclude each other");
            }
            let is_length = |l: Length| condition.chars.is_some_and(|chars| (1..=chars.max()).contains(&l.max));
            if condition.length.is_some_and(|l| l.min > l.max || !is_length(l)) {
                say(format!("when.{i}.length"), "bounds chars: min to max, and no more than chars allows");
            }
            let is_fixed = |s: &Selector| matches!(s.place, Place::Const(_) | Place::Setting(_));
            if condition.equals.as_ref().is_some_and(|s| !is_fixed(s)) {
                say(format!("when.{i}.equals"), "must be const:TEXT or setting:NAME");
            }
        }
        if let Some(token) = &self.token {
            if !token.algorithm.is_hmac() && !matches!(token.algorithm, Algorithm::Sha1 | Algorithm::Sha256) {
                say("token.algorithm".into(), "must be hmac-sha1, hmac-sha256, hmac-sha512, sha1 or sha256");
            }
            if token.encoding == Encoding::Text {
                say("token.encoding".into(), "must be hex, base64 or base64url");
            }
        }
        if let Some(token) = self.token.as_ref().filter(|_| self.before_verification) {
            let is_ours = |s: &Selector| matches!(s.place, Place::Setting(_) | Place::Const(_));
            let open = token.signed.flat().any(|part| match part {
                Part::Value(selector) => !is_ours(selector) && self.bound(selector).is_none(),
                Part::Text(_) | Part::Url | Part::UrlWithoutQuery | Part::Method => false,
                _ => true,
            });
            if open {
                say(
                    "token.signed".into(),
                    "takes a text of anyone's without a condition on its chars: it could be an event",
                );
            }
        }
        let names_token = self.templates().flat_map(Template::flat).any(|p| *p == Part::Token);
        if names_token && self.token.is_none() {
            say("token".into(), "is missing, but the answer names {token}");
        }
        if self.fetch.as_ref().is_some_and(|fetch| fetch.hosts.iter().all(|host| host.starts_with('!'))) {
            say("fetch.hosts".into(), "is empty: name the hosts that may be asked");
        }
        if self.fetch.is_some() && self.before_verification {
            say("fetch".into(), "needs a verified request: anyone could have addresses fetched");
        }
        if !(200..300).contains(&self.answer.status) {
            say("answer.status".into(), "must be a success, 200 to 299");
        }
        out
    }
}
