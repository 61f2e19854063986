//! What selectors read of a request.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use seriatim_schemas::selector::{Place, SPLIT_MAX, Selector, is_header};
use thiserror::Error;

use crate::batch::Item;
use seriatim_schemas::form::{FormError, FormKind, form_value, urlencoded_value};

/// A request as verification and derivation see it.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a> {
    pub method: &'a str,
    pub headers: &'a HeaderMap,
    /// The query as sent, without its question mark.
    pub query: &'a str,
    /// Of a batch, the item where it is derived or verified by itself.
    pub body: &'a [u8],
    /// Of the JWT that was verified; none before.
    pub claims: Option<&'a Claims>,
    /// Which item of a batch this is, where it is one.
    pub item: Option<&'a Item>,
    pub settings: &'a Settings,
}

/// Claims of a JWT, by name.
pub type Claims = serde_json::Map<String, serde_json::Value>;

/// Settings of a source, by name.
pub type Settings = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SelectError {
    #[error("header {0} comes more than once")]
    HeaderDoubled(String),
    #[error("header {0} is not text")]
    HeaderNotText(String),
    #[error("query parameter {name}: {error}")]
    Query { name: String, error: FormError },
    #[error("form field {name}: {error}")]
    Form { name: String, error: FormError },
}

impl<'a> RequestView<'a> {
    /// The one value of a header; none where it is missing.
    pub fn header(&self, name: &str) -> Result<Option<&'a str>, SelectError> {
        let mut all = self.headers.get_all(name).iter();
        match (all.next(), all.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(SelectError::HeaderDoubled(name.to_owned())),
            (Some(value), None) => match std::str::from_utf8(value.as_bytes()) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(SelectError::HeaderNotText(name.to_owned())),
            },
        }
    }

    /// All values of the headers that `wanted` means.
    fn headers(&self, wanted: &str) -> Result<Vec<String>, SelectError> {
        let all = self.headers.iter().filter(|(name, _)| is_header(wanted, name.as_str())).take(SPLIT_MAX);
        let text = |(name, value): (&HeaderName, &HeaderValue)| match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(SelectError::HeaderNotText(name.to_string())),
        };
        all.map(text).collect()
    }

    /// Whether the body is a form, by the content type.
    pub fn form_kind(&self) -> Result<FormKind, SelectError> {
        Ok(FormKind::of(self.header("content-type")?))
    }

    fn query(&self, name: &str) -> Result<Option<String>, SelectError> {
        urlencoded_value(self.query.as_bytes(), name)
            .map_err(|error| SelectError::Query { name: name.to_owned(), error })
    }

    fn form(&self, name: &str) -> Result<Option<String>, SelectError> {
        form_value(&self.form_kind()?, self.body, name)
            .map_err(|error| SelectError::Form { name: name.to_owned(), error })
    }

    fn claim(&self, name: &str) -> Option<String> {
        match self.claims?.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// All values of `selector`, its steps applied. `document` reads the places that stand in the document.
    pub fn select<E: From<SelectError>>(
        &self,
        selector: &Selector,
        document: impl FnOnce(&Place) -> Result<Vec<String>, E>,
    ) -> Result<Vec<String>, E> {
        let one = |value: Option<String>| Ok::<_, E>(value.into_iter().collect());
        let values: Vec<String> = match &selector.place {
            place @ (Place::Body(_) | Place::BodyBy(_) | Place::Keys(_) | Place::BodyDigest) => document(place),
            Place::Batch(pointer) => one(self.item.and_then(|item| item.context(pointer))),
            Place::BatchIndex => one(self.item.map(|item| item.index.to_string())),
            Place::BatchPath => one(self.item.map(|item| item.path.clone())),
            Place::Header(name) => one(self.header(name)?.map(str::to_owned)),
            Place::Headers(wanted) => Ok(self.headers(wanted)?),
            Place::Query(name) => one(self.query(name)?),
            Place::Form(name) => one(self.form(name)?),
            Place::Claim(name) => one(self.claim(name)),
            Place::Setting(name) => one(self.settings.get(name).cloned()),
            Place::Const(text) => one(Some(text.clone())),
        }?;
        Ok(selector.steps.iter().fold(values, |values, step| step.apply(values)))
    }
}
