//! Selectors: where in a request a value stands. Data, not a language: total, bounded, no loops.
//!
//! ```text
//! body:/data/object/id                            JSON pointer into the document; of a batch, into the item
//! body:/data/object/{/data/type}/id               a name that stands elsewhere in it
//! keys:/data                                      the names of the members there, in their order
//! batch:/entry/*/time                             a pointer into the whole document of a batch; * is the item's own
//!                                                 place. batch_index: the item's number in its request, from 0.
//!                                                 batch_path: the pattern that found it, such as tweet_create_events
//! header:X-GitHub-Delivery    query:id            a header, a query parameter
//! headers:X-Signature-*                           all values of a header that may come more than once; of all
//!                                                 headers that start so, where it ends in *
//! form:bt_signature                               a field of a form, urlencoded or multipart
//! claim:jti                                       a claim of the JWT that was verified
//! setting:webhook_id                              a setting of the source
//! const:hook                                      a text
//! sha256(body)                                    the body's digest in hex
//! header:Stripe-Signature | split:, | strip:v1=   steps, from left to right
//! ?body:/action                                   optional: left out of a join where it is missing
//! ```
//! Steps: `split:SEP` makes many values of one, `strip:PREFIX` keeps the values that start with it and
//! strips it, `before:TEXT` and `after:TEXT` cut at its first occurrence, `lower` makes ASCII lower case,
//! `trim` cuts white space at both ends, `item:N` keeps the value at N (from 0), `skip:N` drops the first N,
//! `not:TEXT` drops what is equal to it, `json:/POINTER` reads a text that is JSON and takes what stands there,
//! `base64json:/POINTER` decodes base64 first, `quote` writes a JSON string. In a step's text `\s` is a space.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::pointer::{Pointer, Segment, fixed_start, parse_pointer, parse_segments};

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
    /// A pointer into the document; of a batch, into the item.
    Body(Pointer),
    /// A pointer with names that stand elsewhere in the document.
    BodyBy(Vec<Segment>),
    /// The names of the members there, in their order.
    Keys(Pointer),
    /// A pointer into the whole document of a batch; `*` is the item's own place.
    Batch(Pointer),
    /// The number of the item in its request, from 0.
    BatchIndex,
    /// The pattern that found the item, without its stars and the slashes at its ends.
    BatchPath,
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
    /// Drops values equal to this.
    Not(String),
    /// Base64 of JSON: the value at the pointer.
    Base64Json(Pointer),
    /// A text that is JSON: the value at the pointer.
    Json(Pointer),
    /// Writes the value as a JSON string, quotes included.
    Quote,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SelectorError {
    #[error(
        "selector {text:?} names no place: write body:/POINTER, keys:/POINTER, batch:/POINTER, batch_index, batch_path, header:NAME, headers:NAME, query:NAME, form:NAME, claim:NAME, setting:NAME, const:TEXT or sha256(body)"
    )]
    UnknownPlace { text: String },
    #[error(
        "selector {text:?}: a JSON pointer is empty or starts with /, ~ is written ~0 or ~1, and a name that stands elsewhere is written {{/POINTER}}"
    )]
    BadPointer { text: String },
    #[error("selector {text:?}: the name is empty or holds characters that a header name cannot have")]
    BadName { text: String },
    #[error(
        "selector {text:?}: step {step:?} is unknown: write split:SEP, strip:PREFIX, before:TEXT, after:TEXT, lower, trim, item:N, skip:N, not:TEXT, base64json:/POINTER, json:/POINTER or quote"
    )]
    UnknownStep { text: String, step: String },
}

impl Place {
    /// What must be known of the document to read this place.
    pub fn pointers(&self) -> Vec<Pointer> {
        match self {
            Self::Body(pointer) | Self::Keys(pointer) => vec![pointer.clone()],
            Self::BodyBy(segments) => {
                let names = segments.iter().filter_map(|segment| match segment {
                    Segment::NameAt(pointer) => Some(pointer.clone()),
                    Segment::Name(_) => None,
                });
                std::iter::once(fixed_start(segments)).chain(names).collect()
            }
            _ => Vec::new(),
        }
    }

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
        let bad_pointer = || SelectorError::BadPointer { text: owned() };
        let place = match place.split_once(':') {
            Some(("body", text)) => body_place(text).ok_or_else(bad_pointer)?,
            Some(("keys", text)) => Place::Keys(parse_pointer(text).ok_or_else(bad_pointer)?),
            Some(("batch", text)) => Place::Batch(parse_pointer(text).ok_or_else(bad_pointer)?),
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
            None if place == "batch_index" => Place::BatchIndex,
            None if place == "batch_path" => Place::BatchPath,
            _ => return Err(SelectorError::UnknownPlace { text: owned() }),
        };
        let step = |step: &str| {
            Step::parse(step.trim()).ok_or_else(|| SelectorError::UnknownStep { text: owned(), step: step.to_owned() })
        };
        Ok(Self { optional, place, steps: parts.map(step).collect::<Result<_, _>>()?, text: owned() })
    }
}

fn body_place(text: &str) -> Option<Place> {
    let segments = parse_segments(text)?;
    let fixed = fixed_start(&segments);
    Some(if fixed.len() == segments.len() { Place::Body(fixed) } else { Place::BodyBy(segments) })
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
            "quote" => return Some(Self::Quote),
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
            "not" => Self::Not(argument),
            "base64json" => Self::Base64Json(parse_pointer(&argument)?),
            "json" => Self::Json(parse_pointer(&argument)?),
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
            Self::Not(text) => values.into_iter().filter(|v| v != text).collect(),
            Self::Base64Json(pointer) => {
                values.iter().filter_map(|v| json(&STANDARD.decode(v).ok()?, pointer)).collect()
            }
            Self::Json(pointer) => values.iter().filter_map(|v| json(v.as_bytes(), pointer)).collect(),
            Self::Quote => values.into_iter().map(|v| Value::String(v).to_string()).collect(),
        }
    }
}

/// The text at `pointer` in JSON; numbers and booleans as they are written.
fn json(text: &[u8], pointer: &[String]) -> Option<String> {
    let document: Value = serde_json::from_slice(text).ok()?;
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

fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
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

impl JsonSchema for Selector {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Selector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Where a value stands: body:/POINTER, keys:/POINTER, batch:/POINTER, batch_index, batch_path, header:NAME, headers:NAME, query:NAME, form:NAME, claim:NAME, setting:NAME, const:TEXT or sha256(body), then steps: | split:SEP | strip:PREFIX | before:TEXT | after:TEXT | lower | trim | item:N | skip:N | not:TEXT | base64json:/POINTER | json:/POINTER | quote",
            "pattern": r"^\??(body:|keys:|batch:|batch_index|batch_path|header:|headers:|query:|form:|claim:|setting:|const:|sha256\(body\))"
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
