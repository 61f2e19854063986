//! Thin events: they only say that something changed, and the document is fetched from the provider. Where from, is
//! declared; that it is done, and with which token, is said by the source.
//!
//! ```text
//! https://api.example.com/v1/orders/{object}          the object's id
//! https://{setting:shop}.example.com/{object | before:\s}s/{object | after:\s}    settings, and steps as in selectors
//! https://api.example.com/items?id={body:/data/id}    a value of the event
//! ```
//! What an event says is put into the path or the query, percent-encoded, and never into the host: so whoever sends
//! an event cannot choose who is asked, and which document is asked for stays within one place of the path.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::expression::Expression;
use crate::key::encode_part;
use crate::pattern::Pattern;
use crate::problem::Problem;
use crate::selector::{Place, Selector, Step};
use crate::source::SecretRef;
use crate::version::{Version, VersionError, VersionKind};

/// `ce_type` of a fetched document where the declaration does not say it.
pub const FETCHED: &str = "fetched";

/// Where the documents of thin events are, and what orders them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchRule {
    /// The events that are thin.
    #[serde(default = "any")]
    pub types: Vec<Pattern>,
    pub url: FetchUrl,
    /// Headers of the request; {token} stands for the source's token, {token_base64} for its base64. Where no header
    /// names it, the token goes into `Authorization: Bearer`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Where in the document its version stands, as `body:/POINTER`. Left out: what was fetched later is newer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<FetchVersion>,
    /// The version of an event is that of its document: an older document was read too early, and is read again.
    #[serde(default)]
    pub wait_for_version: bool,
    /// The type that the document gets as an event.
    #[serde(default = "fetched")]
    pub event_type: String,
}

fn any() -> Vec<Pattern> {
    vec![Pattern(Pattern::ANY.to_owned())]
}

fn fetched() -> String {
    FETCHED.to_owned()
}

/// The provider's order of the documents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FetchVersion {
    pub from: Expression,
    pub kind: VersionKind,
}

/// That a source fetches the documents of its thin events, and how.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FetchConfig {
    /// What the provider's API knows us by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretRef>,
    /// Requests a second, of each process; 0: no limit.
    pub rate_per_s: u32,
    /// Requests under way at once.
    pub concurrency: usize,
    /// How long one request may take.
    pub timeout_ms: u64,
    /// So long after an event its document is fetched: once for all events of the object that came by then, and not
    /// before the provider has it.
    pub delay_ms: u64,
    /// A document that is not there is asked for again until the event is so old; then the event is a dead letter.
    pub missing_after_s: u64,
    /// First and longest wait between tries while the provider is away, and for a document that is not there.
    pub retry_min_ms: u64,
    pub retry_max_ms: u64,
    /// Private networks that may be asked, such as "10.0.0.0/8".
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_networks: Vec<String>,
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self {
            token: None,
            rate_per_s: 10,
            concurrency: 16,
            timeout_ms: 10_000,
            delay_ms: 250,
            missing_after_s: 300,
            retry_min_ms: 500,
            retry_max_ms: 60_000,
            allow_networks: Vec::new(),
        }
    }
}

impl FetchConfig {
    pub fn problems(&self) -> Vec<Problem> {
        let limits = [
            (self.concurrency > 0, "concurrency", "is 0: nothing would be fetched"),
            (self.timeout_ms > 0, "timeout_ms", "is 0: nothing would be fetched"),
            (self.retry_min_ms > 0, "retry_min_ms", "is 0"),
            (self.retry_max_ms >= self.retry_min_ms, "retry_max_ms", "is below retry_min_ms"),
        ];
        limits.iter().filter(|(ok, ..)| !ok).map(|(_, field, message)| Problem::at(*field, *message)).collect()
    }
}

/// What a URL needs and does not find.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchUrlError {
    #[error("{{{0}}} of the URL yields nothing")]
    Missing(String),
    /// It would be another path.
    #[error("{{{name}}} of the URL is {value:?}, which a path cannot hold")]
    Dots { name: String, value: String },
}

/// A URL with places for what an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchUrl {
    parts: Vec<Part>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value { from: From, steps: Vec<Step>, name: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    Object,
    Setting(String),
    Body(Vec<String>),
}

impl FetchUrl {
    /// The URL for an object. `document` is the event's, as JSON.
    pub fn of(
        &self,
        object: &str,
        settings: &BTreeMap<String, String>,
        document: &[u8],
    ) -> Result<String, FetchUrlError> {
        let mut url = String::new();
        for part in &self.parts {
            let (from, steps, name) = match part {
                Part::Text(text) => {
                    url.push_str(text);
                    continue;
                }
                Part::Value { from, steps, name } => (from, steps, name),
            };
            let value = match from {
                From::Object => Some(object.to_owned()),
                From::Setting(setting) => settings.get(setting).cloned(),
                From::Body(pointer) => text_at(document, pointer),
            };
            let values = steps.iter().fold(value.into_iter().collect(), |values, step| step.apply(values));
            let value = values.into_iter().find(|text| !text.is_empty());
            let value = value.ok_or_else(|| FetchUrlError::Missing(name.clone()))?;
            if matches!(value.as_str(), "." | "..") {
                return Err(FetchUrlError::Dots { name: name.clone(), value });
            }
            url.push_str(&encode_part(&value));
        }
        Ok(url)
    }

    /// The settings that it reads.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Value { from: From::Setting(name), .. } => Some(name.as_str()),
            _ => None,
        })
    }
}

impl FromStr for FetchUrl {
    type Err = String;

    /// On error: what is wrong, and the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        let scheme = ["https://", "http://"].into_iter().find(|scheme| text.starts_with(scheme));
        let scheme = scheme.ok_or_else(|| format!("{text:?} is no URL: write https://HOST/PATH"))?;
        let mut is_host = true;
        while let Some((literal, behind)) = rest.split_once('{') {
            let fixed = if parts.is_empty() { literal.strip_prefix(scheme).unwrap_or_default() } else { literal };
            is_host &= !fixed.contains(['/', '?', '#']);
            let (name, behind) = behind.split_once('}').ok_or_else(|| format!("{{{behind} is not closed"))?;
            let part = value(name)?;
            if is_host && !matches!(&part, Part::Value { from: From::Setting(_), .. }) {
                return Err(format!("{{{name}}} stands in the host: only a setting may, never what an event says"));
            }
            parts.extend((!literal.is_empty()).then(|| Part::Text(literal.to_owned())));
            parts.push(part);
            rest = behind;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        Ok(Self { parts, text: text.to_owned() })
    }
}

fn value(name: &str) -> Result<Part, String> {
    let (place, steps) = name.split_once('|').map_or((name.trim(), None), |(place, steps)| (place.trim(), Some(steps)));
    // An object is no place of a request: its steps are read behind one that is.
    let place = if place == "object" { "const:object" } else { place };
    let selector: Selector =
        steps.map_or(place.to_owned(), |steps| format!("{place} |{steps}")).parse().map_err(|e| format!("{e}"))?;
    let from = match selector.place {
        Place::Const(text) if text == "object" => From::Object,
        Place::Setting(name) => From::Setting(name),
        Place::Body(pointer) => From::Body(pointer),
        _ => return Err(format!("{{{name}}} is unknown: write object, setting:NAME or body:/POINTER")),
    };
    Ok(Part::Value { from, steps: selector.steps, name: name.to_owned() })
}

impl FetchRule {
    pub fn is_thin(&self, event_type: &str) -> bool {
        self.types.iter().any(|pattern| pattern.matches(event_type))
    }

    /// Whether every event of the source is thin.
    pub fn is_all(&self) -> bool {
        self.types.iter().any(|pattern| pattern.0 == Pattern::ANY)
    }

    /// How documents are ordered, by a number of ours where they have no version.
    pub fn parse_version(&self, text: &str) -> Result<Version, VersionError> {
        Version::parse(text, self.version.as_ref().map_or(VersionKind::Integer, |version| version.kind), &[])
    }

    /// The version of a document, as it is written there.
    pub fn version_of(&self, document: &[u8]) -> Option<String> {
        read(&self.version.as_ref()?.from, document)
    }

    pub fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        if self.types.is_empty() {
            out.push(Problem::at("types", "is empty: nothing would be fetched"));
        }
        if self.event_type.trim().is_empty() {
            out.push(Problem::at("event_type", "is empty"));
        }
        if self.wait_for_version && self.version.is_none() {
            out.push(Problem::at("wait_for_version", "needs version: say where it stands in the document"));
        }
        let selectors = self.version.iter().flat_map(|version| version.from.selectors());
        if let Some(other) = selectors.into_iter().find(|s| !matches!(s.place, Place::Body(_) | Place::Const(_))) {
            out.push(Problem::at("version.from", format!("{other} is no place of a document: write body:/POINTER")));
        }
        if self.version.as_ref().is_some_and(|version| version.kind == VersionKind::Ranked) {
            out.push(Problem::at("version.kind", "ranked is not for documents: name a number or an instant"));
        }
        out
    }
}

fn read(expression: &Expression, document: &[u8]) -> Option<String> {
    match expression {
        Expression::One(selector) => one(selector, document),
        Expression::FirstOf(all) => all.iter().find_map(|expression| read(expression, document)),
        Expression::Join { parts, with } => {
            let texts = parts.iter().map(|part| match one(part, document) {
                None if part.optional => Some(None),
                found => found.map(Some),
            });
            let texts: Vec<_> = texts.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
            (!texts.is_empty()).then(|| texts.join(with))
        }
    }
}

fn one(selector: &Selector, document: &[u8]) -> Option<String> {
    let found = match &selector.place {
        Place::Body(pointer) => text_at(document, pointer),
        Place::Const(text) => Some(text.clone()),
        _ => None,
    };
    let values = selector.steps.iter().fold(found.into_iter().collect(), |values, step| step.apply(values));
    values.into_iter().find(|text| !text.is_empty())
}

/// The text, number or truth value at `pointer`, a number as it is written: none passes through a float.
fn text_at(document: &[u8], pointer: &[String]) -> Option<String> {
    let mut at: &RawValue = serde_json::from_slice(document).ok()?;
    for segment in pointer {
        at = if at.get().starts_with('[') {
            let items: Vec<&RawValue> = serde_json::from_str(at.get()).ok()?;
            items.get(segment.parse::<usize>().ok()?).copied()?
        } else {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(at.get()).ok()?;
            members.get(segment).copied()?
        };
    }
    match at.get().as_bytes().first()? {
        b'"' => serde_json::from_str(at.get()).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(at.get().to_owned()),
    }
}

impl fmt::Display for FetchUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for FetchUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for FetchUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl JsonSchema for FetchUrl {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FetchUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A URL with places in braces: {object}, {setting:NAME}, {body:/POINTER}, with steps as in selectors; the host is fixed"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(template: &str, object: &str) -> Result<String, FetchUrlError> {
        let settings = BTreeMap::from([("shop".to_owned(), "acme".to_owned())]);
        template.parse::<FetchUrl>().expect("a template").of(
            object,
            &settings,
            br#"{"data":{"id":12345678901234567890}}"#,
        )
    }

    #[test]
    fn what_an_event_says_stays_in_its_place() {
        let table = [
            ("https://a.b/v1/{object}", "o 1", "https://a.b/v1/o%201"),
            ("https://a.b/v1/{object}", "../../admin?x#y", "https://a.b/v1/..%2F..%2Fadmin%3Fx%23y"),
            ("https://a.b/v1/{object}", "@evil.example/", "https://a.b/v1/%40evil.example%2F"),
            (
                r"https://{setting:shop}.b/{object | before:\s}s/{object | after:\s}",
                "order 7",
                "https://acme.b/orders/7",
            ),
            ("https://a.b/?id={body:/data/id}", "x", "https://a.b/?id=12345678901234567890"),
        ];
        for (template, object, expected) in table {
            assert_eq!(url(template, object).as_deref(), Ok(expected), "{template}");
        }
        for object in [".", ".."] {
            assert!(matches!(url("https://a.b/{object}", object), Err(FetchUrlError::Dots { .. })), "{object}");
        }
        for template in [r"https://a.b/{object | after:\s}", "https://a.b/{body:/data/no}", "https://a.b/{setting:no}"]
        {
            assert!(matches!(url(template, "x"), Err(FetchUrlError::Missing(_))), "{template}");
        }
    }

    #[test]
    fn the_host_is_fixed() {
        let table = [
            ("https://{object}/x", "stands in the host"),
            ("https://a.{body:/host}/x", "stands in the host"),
            ("https://a.b:{object}/x", "stands in the host"),
            ("https://{setting:shop}.{object}.b/", "stands in the host"),
            ("ftp://a.b/", "write https://"),
            ("{setting:base}/x", "write https://"),
            ("https://a.b/{object", "is not closed"),
            ("https://a.b/{header:x}", "is unknown"),
            ("https://a.b/{object | first}", "step"),
        ];
        for (template, message) in table {
            let error = template.parse::<FetchUrl>().expect_err("a mistake");
            assert!(error.contains(message), "{template}: {error}");
        }
        assert!("https://{setting:shop}.b/{object}".parse::<FetchUrl>().is_ok());
    }

    #[test]
    fn versions_are_read_as_they_are_written() {
        let rule = |from: &str| {
            let text =
                format!("url = \"https://a.b/{{object}}\"\nversion = {{ from = \"{from}\", kind = \"decimal\" }}");
            toml::from_str::<FetchRule>(&text).expect("a rule")
        };
        let document = br#"{"v":1.10,"a":[{"n":"7"}],"deep":{"null":null}}"#;
        assert_eq!(rule("body:/v").version_of(document).as_deref(), Some("1.10"));
        assert_eq!(rule("body:/a/0/n").version_of(document).as_deref(), Some("7"));
        for missing in ["body:/no", "body:/deep", "body:/deep/null", "body:/a/9"] {
            assert_eq!(rule(missing).version_of(document), None, "{missing}");
        }
        assert_eq!(rule("body:/v").version_of(b"<html>"), None);
    }
}
