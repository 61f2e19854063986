//! From the bytes that were signed to the JSON document in them. Verification never sees the result.

use std::borrow::Cow;

use thiserror::Error;

use crate::declaration::Declaration;

/// Most fields that a form may have.
pub const FORM_FIELDS_MAX: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BodyError {
    #[error("form field {field:?} is missing")]
    FieldMissing { field: String },
    #[error("form field {field:?} comes more than once")]
    FieldDoubled { field: String },
    #[error("the form has more than {FORM_FIELDS_MAX} fields")]
    TooManyFields,
}

/// The document of a body: the body itself, or the declared form field where the request is a form.
pub fn document<'a>(
    declaration: &Declaration,
    content_type: Option<&str>,
    body: &'a [u8],
) -> Result<Cow<'a, [u8]>, BodyError> {
    let media_type = content_type.and_then(|t| t.split(';').next()).map(|t| t.trim().to_ascii_lowercase());
    let is_form = media_type.as_deref() == Some("application/x-www-form-urlencoded");
    let Some(field) = declaration.form_field.as_deref().filter(|_| is_form) else {
        return Ok(Cow::Borrowed(body));
    };
    if body.iter().filter(|b| **b == b'&').count() >= FORM_FIELDS_MAX {
        return Err(BodyError::TooManyFields);
    }
    match form_value(body, field) {
        Ok(None) => Err(BodyError::FieldMissing { field: field.to_owned() }),
        Err(Doubled) => Err(BodyError::FieldDoubled { field: field.to_owned() }),
        Ok(Some(value)) => Ok(Cow::Owned(value.into_bytes())),
    }
}

/// A name comes more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubled;

/// The one value of a name among `application/x-www-form-urlencoded` pairs, of a form or of a query.
pub fn form_value(pairs: &[u8], name: &str) -> Result<Option<String>, Doubled> {
    let mut all = form_urlencoded::parse(pairs).filter(|(n, _)| n == name).map(|(_, value)| value.into_owned());
    match (all.next(), all.next()) {
        (Some(_), Some(_)) => Err(Doubled),
        (value, _) => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_is_taken_out_of_a_form_and_only_there() {
        let declaration = Declaration { form_field: Some("payload".into()), ..Declaration::default() };
        let form = Some("Application/X-WWW-Form-Urlencoded; charset=utf-8");
        let read = |content_type, body: &'static [u8]| document(&declaration, content_type, body).map(Cow::into_owned);
        assert_eq!(read(form, b"a=1&payload=%7B%22a%22%3A+1%7D"), Ok(b"{\"a\": 1}".to_vec()));
        assert_eq!(read(Some("application/json"), b"payload=x"), Ok(b"payload=x".to_vec()));
        assert_eq!(read(None, b""), Ok(vec![]));
        assert_eq!(read(form, b"a=1"), Err(BodyError::FieldMissing { field: "payload".into() }));
        assert_eq!(read(form, b"payload=1&payload=2"), Err(BodyError::FieldDoubled { field: "payload".into() }));
        let many: &'static [u8] = vec![b'&'; FORM_FIELDS_MAX].leak();
        assert_eq!(read(form, many), Err(BodyError::TooManyFields));
    }
}
