//! The bytes that were signed, out of a template and a request. The body is never copied.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use seriatim_schemas::selector::Selector;
use seriatim_schemas::template::{Part, Template};
use sha2::{Digest, Sha256};

use crate::error::Refusal;
use crate::verify::Reading;
use seriatim_schemas::form::FORM_FIELDS_MAX;

/// A piece of what was signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    Bytes(Cow<'a, [u8]>),
    /// The key stands here.
    Secret,
}

/// All pieces in order. `url` is the public URL to use, with the request's query.
pub fn pieces<'a>(
    template: &'a Template,
    reading: &Reading<'a>,
    url: &str,
    timestamp: Option<&'a str>,
) -> Result<Vec<Piece<'a>>, Refusal> {
    pieces_of(&template.parts, reading, url, timestamp)
}

/// As [`pieces`], of some parts of a template.
pub fn pieces_of<'a>(
    parts: &'a [Part],
    reading: &Reading<'a>,
    url: &str,
    timestamp: Option<&'a str>,
) -> Result<Vec<Piece<'a>>, Refusal> {
    let mut out = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            Part::Group(inner) => {
                let all: Result<Vec<_>, _> = inner.iter().map(|p| piece(p, reading, url, timestamp)).collect();
                match all {
                    Ok(all) => out.extend(all),
                    Err(Refusal::ValueMissing) => {}
                    Err(other) => return Err(other),
                }
            }
            part => out.push(piece(part, reading, url, timestamp)?),
        }
    }
    Ok(out)
}

fn piece<'a>(
    part: &'a Part,
    reading: &Reading<'a>,
    url: &str,
    timestamp: Option<&'a str>,
) -> Result<Piece<'a>, Refusal> {
    let request = reading.request;
    let text = |text: String| Ok(Piece::Bytes(Cow::Owned(text.into_bytes())));
    match part {
        Part::Text(text) => Ok(Piece::Bytes(Cow::Borrowed(text.as_bytes()))),
        Part::Body => Ok(Piece::Bytes(Cow::Borrowed(request.body))),
        Part::Timestamp => Ok(Piece::Bytes(Cow::Borrowed(timestamp.ok_or(Refusal::TimestampMalformed)?.as_bytes()))),
        Part::Secret => Ok(Piece::Secret),
        Part::Value(selector) => match reading.one(selector)? {
            Some(value) => text(value),
            None if selector.optional => text(String::new()),
            None => Err(Refusal::ValueMissing),
        },
        Part::Url => text(url.to_owned()),
        Part::UrlWithoutQuery => text(url.split('?').next().unwrap_or_default().to_owned()),
        Part::PathQuery => text(path_query(url).to_owned()),
        Part::Method => text(request.method.to_owned()),
        Part::Crc32 => text(crc32fast::hash(request.body).to_string()),
        Part::Sha256Raw => Ok(Piece::Bytes(Cow::Owned(Sha256::digest(request.body).to_vec()))),
        Part::BodyAsJsonString => {
            let body = std::str::from_utf8(request.body).map_err(|_| Refusal::BodyMalformed)?;
            text(serde_json::to_string(body).expect("a text is JSON"))
        }
        Part::FormSorted => text(form_sorted(request.body)?),
        Part::QuerySorted => text(query_sorted(request.query)?),
        Part::HeadersNamedBy(header) => text(named_headers(header, reading)?),
        // A handshake's own: it stands in answers only.
        Part::Token | Part::Group(_) => Err(Refusal::ValueMissing),
    }
}

/// What follows scheme and host.
fn path_query(url: &str) -> &str {
    let behind_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    behind_scheme.find('/').map_or("/", |at| &behind_scheme[at..])
}

/// Pairs by name; of a name, its values sorted and each once: as Twilio's libraries do.
fn form_sorted(body: &[u8]) -> Result<String, Refusal> {
    let mut pairs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (n, (name, value)) in form_urlencoded::parse(body).enumerate() {
        if n == FORM_FIELDS_MAX {
            return Err(Refusal::BodyMalformed);
        }
        pairs.entry(name.into_owned()).or_default().push(value.into_owned());
    }
    let mut out = String::new();
    for (name, mut values) in pairs {
        values.sort();
        values.dedup();
        values.iter().for_each(|value| _ = write!(out, "{name}{value}"));
    }
    Ok(out)
}

fn query_sorted(query: &str) -> Result<String, Refusal> {
    let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).take(FORM_FIELDS_MAX + 1).collect();
    if pairs.len() > FORM_FIELDS_MAX {
        return Err(Refusal::BodyMalformed);
    }
    pairs.sort_by_key(|pair| pair.split('=').next().map(str::to_owned));
    Ok(pairs.join("&"))
}

/// `NAME:VALUE` of each header that `header` lists, in its order, joined by `;`. The list must name itself, each
/// name once, and no value may read as further headers: else another list could make the same text of other headers.
fn named_headers(header: &str, reading: &Reading<'_>) -> Result<String, Refusal> {
    let names = listed(header, reading)?;
    if !names.iter().any(|name| name == header) {
        return Err(Refusal::HeaderNotListed);
    }
    let mut out = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(Refusal::ValueDoubled);
        }
        let value = reading.request.header(name)?.ok_or(Refusal::ValueMissing)?;
        if value.split_once(';').is_some_and(|(_, rest)| rest.contains(':')) {
            return Err(Refusal::SignatureMalformed);
        }
        out.push(format!("{name}:{value}"));
    }
    Ok(out.join(";"))
}

/// The names of a list of headers, in lower case.
fn listed(header: &str, reading: &Reading<'_>) -> Result<Vec<String>, Refusal> {
    let list = reading.request.header(header)?.ok_or(Refusal::ValueMissing)?;
    Ok(list.split(',').map(|name| name.trim().to_ascii_lowercase()).collect())
}

/// Whether the timestamp of the window is among the headers that the request says were signed, where it is one.
pub fn check_listed(template: &Template, timestamp: &Selector, reading: &Reading<'_>) -> Result<(), Refusal> {
    let is_signed = template.flat().any(|part| *part == Part::Timestamp);
    let Some(name) = timestamp.place.header().filter(|_| !is_signed) else { return Ok(()) };
    for part in template.flat() {
        if let Part::HeadersNamedBy(header) = part
            && !listed(header, reading)?.iter().any(|listed| listed == name)
        {
            return Err(Refusal::HeaderNotListed);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted() {
        assert_eq!(form_sorted(b"b=2&a=1&b=1&b=2").as_deref(), Ok("a1b1b2"));
        assert_eq!(form_sorted("a=h%C3%A9+x&b=".as_bytes()).as_deref(), Ok("ahé xb"));
        assert_eq!(query_sorted("b=2&a=1").as_deref(), Ok("a=1&b=2"));
        assert_eq!(form_sorted("a&".repeat(FORM_FIELDS_MAX + 1).as_bytes()), Err(Refusal::BodyMalformed));
        assert_eq!(query_sorted(&"a&".repeat(FORM_FIELDS_MAX + 1)), Err(Refusal::BodyMalformed));
        assert_eq!(path_query("https://a.example/b?c"), "/b?c");
        assert_eq!(path_query("https://a.example"), "/");
    }
}
