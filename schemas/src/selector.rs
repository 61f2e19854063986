//! Selectors: where in a request a value stands. Data, not a language: total, bounded, no loops.
//!
//! ```text
//! body:/data/object/id                            JSON pointer into the signed document
//! header:X-GitHub-Delivery    query:id            a header, a query parameter
//! headers:X-Signature-*                           all values of a header that may come more than once; of all
//!                                                 headers that start so, where it ends in *
//! form:bt_signature                               a field of a form-encoded body
//! claim:jti                                       a claim of the JWT that was verified
//! setting:webhook_id                              a setting of the source
//! const:hook                                      a text
//! sha256(body)                                    the body's digest in hex
//! header:Stripe-Signature | split:, | strip:v1=   steps, from left to right
//! ?body:/action                                   optional: left out of a join where it is missing
//! ["body:/id", "header:X-Id"]                     first of
//! { join = ["const:hook", "body:/hook_id"], with = " " }
//! ```
//! Steps: `split:SEP` makes many values of one, `strip:PREFIX` keeps the values that start with it and
//! strips it, `before:TEXT` and `after:TEXT` cut at its first occurrence, `lower` makes ASCII lower case,
//! `trim` cuts white space at both ends, `item:N` keeps the value at N (from 0), `skip:N` drops the first N,
//! `base64json:/POINTER` decodes base64 and takes what stands there in the JSON. In a step's text `\s` is a
//! space.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// Most values that `split` makes of one.
pub const SPLIT_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    pub optional: bool,
    pub place: Place,
    pub steps: Vec<Step>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Unescaped segments of a JSON pointer.
    Body(Vec<String>),
    /// Lower case.
    Header(String),
    /// Lower case; the start of names where it ends in `*`.
    Headers(String),
    Query(String),
    /// A field of a form-encoded body.
    Form(String),
    /// A claim of the verified JWT.
    Claim(String),
    /// A setting of the source, by name.
    Setting(String),
    Const(String),
    BodyDigest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Split(String),
    Strip(String),
    Before(String),
    After(String),
    Lower,
    Trim,
    /// Keeps one value, counted from 0.
    Item(usize),
    /// Drops the first values.
    Skip(usize),
    /// Base64 of JSON: the value at the pointer.
    Base64Json(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SelectorError {
    #[error(
        "selector {text:?} names no place: write body:/POINTER, header:NAME, headers:NAME, query:NAME, form:NAME, claim:NAME, setting:NAME, const:TEXT or sha256(body)"
    )]
    UnknownPlace { text: String },
    #[error("selector {text:?}: a JSON pointer is empty or starts with /, and ~ is written ~0 or ~1")]
    BadPointer { text: String },
    #[error("selector {text:?}: the name is empty or holds characters that a header name cannot have")]
    BadName { text: String },
    #[error(
        "selector {text:?}: step {step:?} is unknown: write split:SEP, strip:PREFIX, before:TEXT, after:TEXT, lower, trim, item:N, skip:N or base64json:/POINTER"
    )]
    UnknownStep { text: String, step: String },
}

impl Place {
    /// The header that is read, in lower case; the start of names where it ends in `*`.
    pub fn header(&self) -> Option<&str> {
        match self {
            Self::Header(name) | Self::Headers(name) => Some(name),
            _ => None,
        }
    }
}

/// Whether a header of this name is meant by `wanted`, both in lower case.
pub fn is_header(wanted: &str, name: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == wanted,
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let owned = || text.to_owned();
        let mut parts = text.split(" | ");
        let first = parts.next().expect("split yields at least one part").trim();
        let (optional, place) = match first.strip_prefix('?') {
            Some(rest) => (true, rest),
            None => (false, first),
        };
        let place = match place.split_once(':') {
            Some(("body", pointer)) => {
                Place::Body(parse_pointer(pointer).ok_or_else(|| SelectorError::BadPointer { text: owned() })?)
            }
            Some(("header", name)) if is_token(name) => Place::Header(name.to_ascii_lowercase()),
            Some(("headers", name)) if is_token(name) => Place::Headers(name.to_ascii_lowercase()),
            Some(("query", name)) if !name.is_empty() => Place::Query(name.to_owned()),
            Some(("form", name)) if !name.is_empty() => Place::Form(name.to_owned()),
            Some(("claim", name)) if !name.is_empty() => Place::Claim(name.to_owned()),
            Some(("setting", name)) if !name.is_empty() => Place::Setting(name.to_owned()),
            Some(("header" | "headers" | "query" | "form" | "claim" | "setting", _)) => {
                return Err(SelectorError::BadName { text: owned() });
            }
            Some(("const", value)) => Place::Const(value.to_owned()),
            None if place == "sha256(body)" => Place::BodyDigest,
            _ => return Err(SelectorError::UnknownPlace { text: owned() }),
        };
        let step = |step: &str| {
            Step::parse(step.trim()).ok_or_else(|| SelectorError::UnknownStep { text: owned(), step: step.to_owned() })
        };
        Ok(Self { optional, place, steps: parts.map(step).collect::<Result<_, _>>()?, text: owned() })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Step {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "lower" => return Some(Self::Lower),
            "trim" => return Some(Self::Trim),
            _ => {}
        }
        let (verb, argument) = text.split_once(':')?;
        let argument = argument.replace("\\s", " ");
        if argument.is_empty() {
            return None;
        }
        Some(match verb {
            "split" => Self::Split(argument),
            "strip" => Self::Strip(argument),
            "before" => Self::Before(argument),
            "after" => Self::After(argument),
            "item" => Self::Item(argument.parse().ok()?),
            "skip" => Self::Skip(argument.parse().ok()?),
            "base64json" => Self::Base64Json(parse_pointer(&argument)?),
            _ => return None,
        })
    }

    /// Applies the step to each value; those that do not fit fall away.
    pub fn apply(&self, values: Vec<String>) -> Vec<String> {
        let cut = |f: fn(&str, &str) -> Option<String>, text: &str| {
            values.iter().filter_map(|v| f(v, text)).collect::<Vec<_>>()
        };
        match self {
            Self::Split(sep) => {
                values.iter().flat_map(|v| v.split(sep.as_str())).take(SPLIT_MAX).map(str::to_owned).collect()
            }
            Self::Strip(prefix) => cut(|v, p| v.strip_prefix(p).map(str::to_owned), prefix),
            Self::Before(text) => cut(|v, t| v.split_once(t).map(|(before, _)| before.to_owned()), text),
            Self::After(text) => cut(|v, t| v.split_once(t).map(|(_, after)| after.to_owned()), text),
            Self::Lower => values.into_iter().map(|v| v.to_ascii_lowercase()).collect(),
            Self::Trim => values.iter().map(|v| v.trim().to_owned()).collect(),
            Self::Item(at) => values.into_iter().skip(*at).take(1).collect(),
            Self::Skip(count) => values.into_iter().skip(*count).collect(),
            Self::Base64Json(pointer) => values.iter().filter_map(|v| base64_json(v, pointer)).collect(),
        }
    }
}

/// The text at `pointer` in base64 of JSON; numbers and booleans as they are written.
fn base64_json(text: &str, pointer: &[String]) -> Option<String> {
    let document: Value = serde_json::from_slice(&STANDARD.decode(text).ok()?).ok()?;
    let found = pointer.iter().try_fold(&document, |value, segment| match value {
        Value::Array(items) => items.get(segment.parse::<usize>().ok()?),
        other => other.get(segment),
    })?;
    match found {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(found.to_string()),
        _ => None,
    }
}

/// RFC 6901; the empty pointer is the whole document.
fn parse_pointer(text: &str) -> Option<Vec<String>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.strip_prefix('/')?
        .split('/')
        .map(|segment| {
            let escapes_are_whole = segment.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            escapes_are_whole.then(|| segment.replace("~1", "/").replace("~0", "~"))
        })
        .collect()
}

fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// One value out of selectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    One(Selector),
    FirstOf(Vec<Expression>),
    Join { parts: Vec<Selector>, with: String },
}

impl Expression {
    /// Every selector in it, from left to right.
    pub fn selectors(&self) -> Vec<&Selector> {
        match self {
            Self::One(selector) => vec![selector],
            Self::FirstOf(all) => all.iter().flat_map(Self::selectors).collect(),
            Self::Join { parts, .. } => parts.iter().collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExpressionVisitor)
    }
}

struct ExpressionVisitor;

impl<'de> Visitor<'de> for ExpressionVisitor {
    type Value = Expression;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a selector, a list of them (first of), or { join = [..], with = \"..\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map(Expression::One).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = seq.next_element()? {
            all.push(one);
        }
        if all.is_empty() {
            Err(de::Error::custom("a first-of list needs at least one selector"))
        } else {
            Ok(Expression::FirstOf(all))
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut parts, mut with) = (None::<Vec<Selector>>, None::<String>);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "join" => parts = Some(map.next_value()?),
                "with" => with = Some(map.next_value()?),
                other => return Err(de::Error::unknown_field(other, &["join", "with"])),
            }
        }
        let parts = parts.filter(|p| !p.is_empty()).ok_or_else(|| de::Error::missing_field("join"))?;
        Ok(Expression::Join { parts, with: with.unwrap_or_default() })
    }
}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One(selector) => selector.serialize(serializer),
            Self::FirstOf(all) => all.serialize(serializer),
            Self::Join { parts, with } => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("join", parts)?;
                map.serialize_entry("with", with)?;
                map.end()
            }
        }
    }
}

impl JsonSchema for Selector {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Selector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Where a value stands: body:/POINTER, header:NAME, headers:NAME, query:NAME, form:NAME, claim:NAME, setting:NAME, const:TEXT or sha256(body), then steps: | split:SEP | strip:PREFIX | before:TEXT | after:TEXT | lower | trim | item:N | skip:N | base64json:/POINTER",
            "pattern": r"^\??(body:|header:|headers:|query:|form:|claim:|setting:|const:|sha256\(body\))"
        })
    }
}

impl JsonSchema for Expression {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Expression".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let selector = generator.subschema_for::<Selector>();
        json_schema!({
            "description": "A selector, a list of which the first that yields a value counts, or a join",
            "anyOf": [
                selector,
                { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/Expression" } },
                {
                    "type": "object",
                    "properties": { "join": { "type": "array", "minItems": 1, "items": selector }, "with": { "type": "string" } },
                    "required": ["join"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(text: &str) -> Selector {
        text.parse().expect("a valid selector")
    }

    #[test]
    fn places_are_read() {
        assert_eq!(selector("body:/a~1b/c~0").place, Place::Body(vec!["a/b".into(), "c~".into()]));
        assert_eq!(selector("body:").place, Place::Body(vec![]));
        assert_eq!(selector("headers:X-Id-*").place, Place::Headers("x-id-*".into()));
        assert!(is_header("x-id-*", "x-id-2") && !is_header("x-id-*", "x-i") && !is_header("x-id", "x-id-2"));
        assert_eq!(selector("header:X-Id").place, Place::Header("x-id".into()));
        assert_eq!(selector("const:a:b").place, Place::Const("a:b".into()));
        assert!(selector("?body:/action").optional);
    }

    #[test]
    fn steps_pick_from_a_list() {
        let apply = |text: &str, value: &str| {
            selector(text).steps.iter().fold(vec![value.to_owned()], |values, step| step.apply(values))
        };
        assert_eq!(apply("header:x | split:, | strip:v1=", "t=1,v1=a,v0=b,v1=c"), ["a", "c"]);
        assert_eq!(apply(r"header:x | split:\s | strip:v1,", "v1,AA= v1a,BB"), ["AA="]);
        assert_eq!(apply("header:x | before:/ | lower", "Orders/paid"), ["orders"]);
        assert_eq!(apply("header:x | after:/", "no slash"), [""; 0]);
        assert_eq!(apply("header:x | split:,", &",".repeat(1000)).len(), SPLIT_MAX);
        assert_eq!(apply("header:x | split:, | trim | strip:v1=", "t=1, v1=a"), ["a"]);
        assert_eq!(apply("header:x | split:, | skip:1", "1,a,b"), ["a", "b"]);
        assert_eq!(apply("header:x | split:, | item:0", "1,a,b"), ["1"]);
        assert_eq!(apply("header:x | base64json:/s", "eyJzIjoiYSJ9"), ["a"]);
        assert_eq!(apply("header:x | base64json:/s", "eyJzIjo"), [""; 0]);
    }

    #[test]
    fn mistakes_name_the_remedy() {
        let table = [
            ("id", "names no place"),
            ("body:id", "JSON pointer"),
            ("body:/a~2", "JSON pointer"),
            ("header:", "name is empty"),
            ("header:a b", "name is empty"),
            ("header:a | first", "split:SEP"),
            ("header:a | split:", "split:SEP"),
            ("header:a | item:x", "item:N"),
            ("setting:", "name is empty"),
        ];
        for (text, message) in table {
            let error = text.parse::<Selector>().expect_err("a mistake").to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
