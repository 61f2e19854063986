//! What selectors read of a request.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use seriatim_schemas::body::{Doubled, form_value};
use seriatim_schemas::id::Sha256Digest;
use seriatim_schemas::selector::{Place, SPLIT_MAX, Selector, is_header};
use thiserror::Error;

/// A request as verification and derivation see it.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a> {
    pub method: &'a str,
    pub headers: &'a HeaderMap,
    /// The query as sent, without its question mark.
    pub query: &'a str,
    pub body: &'a [u8],
    /// Of the JWT that was verified; none before.
    pub claims: Option<&'a Claims>,
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
    #[error("query parameter {0} comes more than once")]
    QueryDoubled(String),
    #[error("form field {0} comes more than once")]
    FormDoubled(String),
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

    fn query(&self, name: &str) -> Result<Option<String>, SelectError> {
        form_value(self.query.as_bytes(), name).map_err(|Doubled| SelectError::QueryDoubled(name.to_owned()))
    }

    fn form(&self, name: &str) -> Result<Option<String>, SelectError> {
        form_value(self.body, name).map_err(|Doubled| SelectError::FormDoubled(name.to_owned()))
    }

    fn claim(&self, name: &str) -> Option<String> {
        match self.claims?.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// All values of `selector`, its steps applied. `pointer` yields what the document holds.
    pub fn select<E: From<SelectError>>(
        &self,
        selector: &Selector,
        pointer: impl FnOnce(&[String]) -> Result<Option<String>, E>,
    ) -> Result<Vec<String>, E> {
        let value = match &selector.place {
            Place::Headers(_) => None,
            Place::Body(path) => pointer(path)?,
            Place::Header(name) => self.header(name)?.map(str::to_owned),
            Place::Query(name) => self.query(name)?,
            Place::Form(name) => self.form(name)?,
            Place::Claim(name) => self.claim(name),
            Place::Setting(name) => self.settings.get(name).cloned(),
            Place::Const(text) => Some(text.clone()),
            Place::BodyDigest => Some(Sha256Digest::of(self.body).to_string()),
        };
        let values = match &selector.place {
            Place::Headers(wanted) => self.headers(wanted)?,
            _ => value.into_iter().collect(),
        };
        Ok(selector.steps.iter().fold(values, |values, step| step.apply(values)))
    }
}
