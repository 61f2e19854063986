//! Fields of forms, urlencoded or multipart (RFC 7578). A name that comes twice is an error: two readers
//! would see two values.

use std::convert::Infallible;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream;
use thiserror::Error;

/// Most fields that a form may have.
pub const FORM_FIELDS_MAX: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FormError {
    #[error("comes more than once")]
    Doubled,
    #[error("the form has more than {FORM_FIELDS_MAX} fields")]
    TooManyFields,
    #[error("the multipart form is malformed")]
    Malformed,
}

/// What a request's content type says of its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormKind {
    None,
    Urlencoded,
    Multipart { boundary: String },
}

impl FormKind {
    pub fn of(content_type: Option<&str>) -> Self {
        let text = content_type.unwrap_or_default();
        let media_type = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match media_type.as_str() {
            "application/x-www-form-urlencoded" => Self::Urlencoded,
            "multipart/form-data" => match multer::parse_boundary(text) {
                Ok(boundary) => Self::Multipart { boundary },
                Err(_) => Self::None,
            },
            _ => Self::None,
        }
    }
}

/// The one value of a name among urlencoded pairs, of a form or of a query.
pub fn urlencoded_value(pairs: &[u8], name: &str) -> Result<Option<String>, FormError> {
    if pairs.iter().filter(|b| **b == b'&').count() >= FORM_FIELDS_MAX {
        return Err(FormError::TooManyFields);
    }
    let mut all = form_urlencoded::parse(pairs).filter(|(n, _)| n == name).map(|(_, value)| value.into_owned());
    match (all.next(), all.next()) {
        (Some(_), Some(_)) => Err(FormError::Doubled),
        (value, _) => Ok(value),
    }
}

/// The one value of a name in a form.
pub fn form_value(kind: &FormKind, body: &[u8], name: &str) -> Result<Option<String>, FormError> {
    match kind {
        FormKind::None | FormKind::Urlencoded => urlencoded_value(body, name),
        FormKind::Multipart { boundary } => {
            // The whole body is there: nothing waits.
            multipart_value(body, boundary, name).now_or_never().ok_or(FormError::Malformed)?
        }
    }
}

async fn multipart_value(body: &[u8], boundary: &str, name: &str) -> Result<Option<String>, FormError> {
    let body = Bytes::copy_from_slice(body);
    let mut form = multer::Multipart::new(stream::once(async move { Ok::<_, Infallible>(body) }), boundary);
    let mut found = None;
    for count in 0.. {
        let Some(field) = form.next_field().await.map_err(|_| FormError::Malformed)? else { break };
        if count == FORM_FIELDS_MAX {
            return Err(FormError::TooManyFields);
        }
        if field.name() != Some(name) {
            continue;
        }
        let text = field.text().await.map_err(|_| FormError::Malformed)?;
        if found.replace(text).is_some() {
            return Err(FormError::Doubled);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MULTIPART: &str = "multipart/form-data; boundary=xx";

    fn multipart(fields: &[(&str, &str)]) -> Vec<u8> {
        let part = |(name, value): &(&str, &str)| {
            format!("--xx\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let mut body: String = fields.iter().map(part).collect();
        body.push_str("--xx--\r\n");
        body.into_bytes()
    }

    #[test]
    fn fields_of_both_kinds_of_form_are_read() {
        let form = Some("Application/X-WWW-Form-Urlencoded; charset=utf-8");
        assert_eq!(form_value(&FormKind::of(form), b"a=1&b=%7B+%7D", "b"), Ok(Some("{ }".into())));
        assert_eq!(form_value(&FormKind::of(form), b"a=1&a=2", "a"), Err(FormError::Doubled));
        assert_eq!(form_value(&FormKind::of(form), b"a=1", "b"), Ok(None));
        let kind = FormKind::of(Some(MULTIPART));
        let body = multipart(&[("a", "1"), ("b", "two\r\nlines")]);
        assert_eq!(form_value(&kind, &body, "b"), Ok(Some("two\r\nlines".into())));
        assert_eq!(form_value(&kind, &body, "c"), Ok(None));
        assert_eq!(form_value(&kind, &multipart(&[("a", "1"), ("a", "2")]), "a"), Err(FormError::Doubled));
        assert_eq!(form_value(&kind, &body[..20], "a"), Err(FormError::Malformed));
        assert_eq!(FormKind::of(Some("multipart/form-data")), FormKind::None);
    }

    #[test]
    fn forms_are_bounded() {
        let many = vec![b'&'; FORM_FIELDS_MAX];
        assert_eq!(urlencoded_value(&many, "a"), Err(FormError::TooManyFields));
        let fields = vec![("x", "1"); FORM_FIELDS_MAX + 1];
        let kind = FormKind::of(Some(MULTIPART));
        assert_eq!(form_value(&kind, &multipart(&fields), "a"), Err(FormError::TooManyFields));
    }
}
