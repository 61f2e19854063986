//! From the body that was signed to the JSON document in it, by declared steps. Verification never sees the result.

use std::io::Read as _;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::form::{FormError, FormKind, form_value};
use crate::xml::{XmlError, xml_to_json};

/// One step towards the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeStep {
    /// `form:NAME`: the field of a form, where the request is one.
    Form(String),
    Base64,
    /// Where the bytes are gzip (RFC 1952): what they hold, up to [`INFLATED_MAX`] bytes.
    Gzip,
    /// XML as JSON, where the text starts with `<`. Element content becomes text, child elements an object,
    /// repeated children an array, attributes `@NAME`.
    Xml,
}

impl FromStr for DecodeStep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("form:").filter(|name| !name.is_empty())) {
            (_, Some(field)) => Ok(Self::Form(field.to_owned())),
            ("base64", _) => Ok(Self::Base64),
            ("gzip", _) => Ok(Self::Gzip),
            ("xml", _) => Ok(Self::Xml),
            _ => Err(format!("step {text:?} is unknown: write form:FIELD, base64, gzip or xml")),
        }
    }
}

impl<'de> Deserialize<'de> for DecodeStep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for DecodeStep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Form(field) => serializer.collect_str(&format_args!("form:{field}")),
            Self::Base64 => serializer.serialize_str("base64"),
            Self::Gzip => serializer.serialize_str("gzip"),
            Self::Xml => serializer.serialize_str("xml"),
        }
    }
}

impl JsonSchema for DecodeStep {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DecodeStep".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(form:.+|base64|gzip|xml)$" })
    }
}

/// Base64 as mail libraries write it: line feeds are dropped before, padding is as it comes.
const MIME: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("form field {field:?}: {error}")]
    Form { field: String, error: FormError },
    #[error("the body is not gzip")]
    NotGzip,
    #[error("the body inflates to more than {INFLATED_MAX} bytes")]
    TooLarge,
    #[error("the body is not base64")]
    NotBase64,
    #[error("the body is not UTF-8")]
    NotUtf8,
    #[error(transparent)]
    Xml(#[from] XmlError),
}

/// Largest document that is taken out of gzip.
pub const INFLATED_MAX: usize = 8 * 1024 * 1024;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What gzip holds; none where it is more than `max` bytes. No more than that is ever in memory.
pub fn inflate(gzip: &[u8], max: usize) -> Result<Option<Vec<u8>>, DecodeError> {
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(gzip).take(max as u64 + 1).read_to_end(&mut plain);
    read.map_err(|_| DecodeError::NotGzip)?;
    Ok((plain.len() <= max).then_some(plain))
}

/// The document; none where the request has no body, or is a form that no step reads.
pub fn document(steps: &[DecodeStep], form: &FormKind, body: &Bytes) -> Result<Option<Bytes>, DecodeError> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut document = body.clone();
    let mut is_form = *form != FormKind::None;
    for step in steps {
        match step {
            DecodeStep::Form(field) if is_form => {
                let value = form_value(form, &document, field);
                let value = value.map_err(|error| DecodeError::Form { field: field.clone(), error })?;
                // A form without the field is another kind of request: its fields are read as form:NAME.
                let Some(value) = value else { return Ok(None) };
                document = Bytes::from(value);
                is_form = false;
            }
            DecodeStep::Form(_) => {}
            DecodeStep::Base64 => {
                let text: Vec<u8> = document.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
                document = MIME.decode(text).map_err(|_| DecodeError::NotBase64)?.into();
            }
            DecodeStep::Gzip if document.starts_with(&GZIP_MAGIC) => {
                document = inflate(&document, INFLATED_MAX)?.ok_or(DecodeError::TooLarge)?.into();
            }
            DecodeStep::Gzip => {}
            DecodeStep::Xml if document.trim_ascii_start().starts_with(b"<") => {
                let text = std::str::from_utf8(&document).map_err(|_| DecodeError::NotUtf8)?;
                document = xml_to_json(text)?.into();
            }
            DecodeStep::Xml => {}
        }
    }
    Ok((!is_form).then_some(document))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(steps: &[&str], content_type: &str, body: &str) -> Result<Option<String>, DecodeError> {
        let steps: Vec<_> = steps.iter().map(|s| s.parse().expect("a step")).collect();
        let document = document(&steps, &FormKind::of(Some(content_type)), &Bytes::copy_from_slice(body.as_bytes()))?;
        Ok(document.map(|bytes| String::from_utf8(bytes.to_vec()).expect("text")))
    }

    const FORM: &str = "application/x-www-form-urlencoded";

    #[test]
    fn steps_lead_to_the_document() {
        let table: &[(&[&str], &str, &str, Option<&str>)] = &[
            (&[], "application/json", "{}", Some("{}")),
            (&[], "application/json", "", None),
            (&[], FORM, "a=1", None),
            (&["form:payload"], FORM, "a=1&payload=%7B%22a%22%3A+1%7D", Some("{\"a\": 1}")),
            (&["form:payload"], FORM, "a=1", None),
            (&["form:payload"], "application/json", "payload=x", Some("payload=x")),
            (&["form:p", "base64", "xml"], FORM, "p=PGE%2BMTwv%0AYT4%3D%0A", Some("{\"a\":\"1\"}")),
            (&["xml"], "text/xml", " <a>1</a>", Some("{\"a\":\"1\"}")),
            (&["xml"], "application/json", "{}", Some("{}")),
        ];
        for (steps, content_type, body, expected) in table {
            assert_eq!(read(steps, content_type, body), Ok(expected.map(str::to_owned)), "{steps:?} of {body}");
        }
    }

    #[test]
    fn gzip_is_inflated_up_to_a_bound() {
        let packed = |plain: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, plain).expect("packed");
            encoder.finish().expect("packed")
        };
        let gzip = packed(b"{\"a\":1}");
        let of = |body: &[u8]| document(&[DecodeStep::Gzip], &FormKind::None, &Bytes::copy_from_slice(body));
        assert_eq!(of(&gzip), Ok(Some(Bytes::from_static(b"{\"a\":1}"))));
        assert_eq!(of(b"{}"), Ok(Some(Bytes::from_static(b"{}"))));
        assert_eq!(of(&gzip[..12]), Err(DecodeError::NotGzip));
        assert_eq!(of(&packed(&vec![b' '; INFLATED_MAX + 1])), Err(DecodeError::TooLarge));
        assert_eq!(inflate(&packed(&[b' '; 10]), 10).map(|plain| plain.map(|p| p.len())), Ok(Some(10)));
        assert_eq!(inflate(&packed(&[b' '; 11]), 10), Ok(None));
    }

    #[test]
    fn what_cannot_be_decoded_says_why() {
        let doubled = DecodeError::Form { field: "p".into(), error: FormError::Doubled };
        assert_eq!(read(&["form:p"], FORM, "p=1&p=2"), Err(doubled));
        assert_eq!(read(&["base64"], "text/plain", "%"), Err(DecodeError::NotBase64));
        assert!(matches!(read(&["xml"], "text/xml", "<a>"), Err(DecodeError::Xml(_))));
    }
}
