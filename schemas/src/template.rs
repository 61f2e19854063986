//! Templates: what a provider signed, as text with places in it. Bytes are put in as they are.
//!
//! ```text
//! {timestamp}.{body}                        the declared timestamp's text, the raw body
//! v0:{header:X-Time}:{query:id}             any selector, its steps too; exactly one value, or the request is refused
//! {?body:/pspReference}                     optional: empty where it is missing
//! [id:{query:data.id};]ts:{timestamp};      a group falls away as a whole where a value in it is missing
//! {url} {url_no_query} {path_query} {method}    of the configured public URL, with the request's query
//! {secret}                                  the key itself, for plain hashes
//! {token}                                   what a handshake computed, in its answer
//! {lf}                                      a line feed
//! {crc32} {sha256_raw} {body_as_json_string}    of the body: decimal, 32 bytes, a quoted text
//! {form_sorted} {query_sorted}              pairs of the form as NAMEVALUE.., of the query as NAME=VALUE&..
//! {headers_named_by:x-signed-headers}       NAME:VALUE lines of the headers that this header lists
//! ```
//! A literal brace or bracket is written twice.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::selector::Selector;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub parts: Vec<Part>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Value(Selector),
    /// Parts that fall away together.
    Group(Vec<Part>),
    Body,
    Timestamp,
    Secret,
    Token,
    Url,
    UrlWithoutQuery,
    PathQuery,
    Method,
    /// CRC-32 (IEEE 802.3) of the body, in decimal.
    Crc32,
    /// The 32 bytes of the body's SHA-256.
    Sha256Raw,
    BodyAsJsonString,
    /// The form's pairs by name, each name once and its values sorted and unique: NAMEVALUE.. without separators.
    FormSorted,
    /// The query's pairs by name: NAME=VALUE, joined by &.
    QuerySorted,
    /// Lower case: the header that lists the names.
    HeadersNamedBy(String),
}

const NAMED: [(&str, Part); 14] = [
    ("body", Part::Body),
    ("timestamp", Part::Timestamp),
    ("secret", Part::Secret),
    ("token", Part::Token),
    ("url", Part::Url),
    ("url_no_query", Part::UrlWithoutQuery),
    ("path_query", Part::PathQuery),
    ("method", Part::Method),
    ("lf", Part::Text(String::new())),
    ("crc32", Part::Crc32),
    ("sha256_raw", Part::Sha256Raw),
    ("body_as_json_string", Part::BodyAsJsonString),
    ("form_sorted", Part::FormSorted),
    ("query_sorted", Part::QuerySorted),
];

impl Template {
    /// Every part, those in groups too.
    pub fn flat(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flat_map(|part| match part {
            Part::Group(inner) => inner.iter().collect(),
            other => vec![other],
        })
    }

    pub fn selectors(&self) -> impl Iterator<Item = &Selector> {
        self.flat().filter_map(|part| match part {
            Part::Value(selector) => Some(selector),
            _ => None,
        })
    }

    /// Whether the public URL of the source must be known.
    pub fn needs_url(&self) -> bool {
        self.flat().any(|p| matches!(p, Part::Url | Part::UrlWithoutQuery | Part::PathQuery))
    }
}

impl FromStr for Template {
    type Err = String;

    /// On error: what is wrong, with the part of the template.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut reader = Reader { rest: text };
        let parts = reader.parts(false)?;
        Ok(Self { parts, text: text.to_owned() })
    }
}

struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    /// Parts up to the end, or up to the bracket that closes a group.
    fn parts(&mut self, in_group: bool) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        let mut text = String::new();
        while let Some(c) = self.rest.chars().next() {
            self.rest = &self.rest[c.len_utf8()..];
            let doubled = self.rest.starts_with(c) && "{}[]".contains(c);
            if doubled {
                self.rest = &self.rest[1..];
                text.push(c);
                continue;
            }
            let part = match c {
                '{' => self.placeholder()?,
                '[' if in_group => return Err("[ stands in another group: groups have one level".to_owned()),
                '[' => Part::Group(self.parts(true)?),
                ']' if in_group => {
                    push_text(&mut parts, text);
                    return Ok(parts);
                }
                '}' | ']' => return Err(format!("{c} closes nothing: write it twice for a literal one")),
                _ => {
                    text.push(c);
                    continue;
                }
            };
            push_text(&mut parts, std::mem::take(&mut text));
            parts.push(part);
        }
        if in_group {
            return Err("[ is not closed: write it twice for a literal one".to_owned());
        }
        push_text(&mut parts, text);
        Ok(parts)
    }

    fn placeholder(&mut self) -> Result<Part, String> {
        let (name, behind) = self.rest.split_once('}').ok_or_else(|| format!("{{{} is not closed", self.rest))?;
        self.rest = behind;
        if name == "lf" {
            return Ok(Part::Text("\n".to_owned()));
        }
        if let Some((_, part)) = NAMED.iter().find(|(known, _)| *known == name) {
            return Ok(part.clone());
        }
        if let Some(header) = name.strip_prefix("headers_named_by:") {
            return Ok(Part::HeadersNamedBy(header.to_ascii_lowercase()));
        }
        let known: Vec<_> = NAMED.iter().map(|(name, _)| *name).collect();
        name.parse().map(Part::Value).map_err(|error| {
            format!("{{{name}}} is unknown: {error}; or write {}, headers_named_by:NAME", known.join(", "))
        })
    }
}

fn push_text(parts: &mut Vec<Part>, text: String) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl JsonSchema for Template {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Text with places in braces, such as {timestamp}.{body}; a group in brackets falls away where a value in it is missing"
        })
    }
}

/// Lower-case names of the headers that a part reads.
pub fn headers_of(part: &Part) -> Option<&str> {
    match part {
        Part::Value(selector) => selector.place.header(),
        Part::HeadersNamedBy(name) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        text.parse().expect("a valid template")
    }

    #[test]
    fn templates_are_cut_into_parts() {
        let dot = || Part::Text(".".into());
        let id = Part::Value("header:Webhook-Id".parse().expect("a selector"));
        assert_eq!(
            template("{header:Webhook-Id}.{timestamp}.{body}").parts,
            [id, dot(), Part::Timestamp, dot(), Part::Body]
        );
        assert_eq!(template("{method}{lf}").parts, [Part::Method, Part::Text("\n".into())]);
        assert_eq!(template("{{\"a\":[[{body}]]}}").parts.len(), 3);
        let groups = template("[id:{query:id};]ts");
        assert!(matches!(&groups.parts[0], Part::Group(inner) if inner.len() == 3), "{groups:?}");
        assert_eq!(groups.selectors().count(), 1);
        assert!(template("{path_query}").needs_url() && !groups.needs_url());
    }

    #[test]
    fn mistakes_name_the_remedy() {
        let table = [
            ("{boby}", "{boby} is unknown"),
            ("x{body", "not closed"),
            ("x}", "write it twice"),
            ("[x", "not closed"),
            ("[a[b]]]", "one level"),
            ("{header:}", "name is empty"),
        ];
        for (text, message) in table {
            let error = text.parse::<Template>().expect_err("a mistake");
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
