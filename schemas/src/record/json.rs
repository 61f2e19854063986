//! Headers as JSON, for a log that is a table and for dead letters: `[["st_v","1"],["http_x",{"hex":"ff"}]]`.
//! A value that is not UTF-8 is written in hex, so that every byte survives and an operator can read the rest.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Header;

#[derive(Debug, Error)]
pub enum HeadersJsonError {
    #[error("stored headers are not a JSON list of pairs: {0}")]
    Json(#[from] serde_json::Error),
    #[error("stored header value {0:?} is not hex")]
    Hex(String),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Hex { hex: String },
}

pub fn headers_to_json(headers: &[Header]) -> Vec<u8> {
    let value = |v: &'_ Bytes| match String::from_utf8(v.to_vec()) {
        Ok(text) => Value::Text(Cow::Owned(text)),
        Err(_) => Value::Hex { hex: hex::encode(v) },
    };
    let pairs: Vec<(&str, Value<'_>)> = headers.iter().map(|(n, v)| (n.as_str(), value(v))).collect();
    serde_json::to_vec(&pairs).expect("pairs of text serialise")
}

pub fn headers_from_json(json: &[u8]) -> Result<Vec<Header>, HeadersJsonError> {
    let pairs: Vec<(String, Value<'_>)> = serde_json::from_slice(json)?;
    let header = |(name, value)| {
        let bytes = match value {
            Value::Text(text) => text.into_owned().into_bytes(),
            Value::Hex { hex: text } => hex::decode(&text).map_err(|_| HeadersJsonError::Hex(text))?,
        };
        Ok((name, Bytes::from(bytes)))
    };
    pairs.into_iter().map(header).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_is_frozen() {
        let headers =
            vec![("st_v".to_owned(), Bytes::from_static(b"1")), ("http_x".to_owned(), Bytes::from_static(b"\xff\"\n"))];
        assert_eq!(
            String::from_utf8_lossy(&headers_to_json(&headers)),
            r#"[["st_v","1"],["http_x",{"hex":"ff220a"}]]"#
        );
    }

    proptest! {
        #[test]
        fn headers_round_trip(headers in proptest::collection::vec((".{0,8}", proptest::collection::vec(any::<u8>(), 0..16)), 0..8)) {
            let headers: Vec<_> = headers.into_iter().map(|(n, v)| (n, Bytes::from(v))).collect();
            prop_assert_eq!(headers_from_json(&headers_to_json(&headers)).expect("own text"), headers);
        }
    }
}
