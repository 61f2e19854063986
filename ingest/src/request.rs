//! What selectors read of a request.

use axum::http::HeaderMap;
use seriatim_schemas::id::Sha256Digest;
use seriatim_schemas::selector::{Place, Selector};
use thiserror::Error;

/// A request as verification and derivation see it.
#[derive(Debug, Clone, Copy)]
pub struct RequestView<'a> {
    pub headers: &'a HeaderMap,
    /// The query as sent, without its question mark.
    pub query: &'a str,
    pub body: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SelectError {
    #[error("header {0} comes more than once")]
    HeaderDoubled(String),
    #[error("header {0} is not text")]
    HeaderNotText(String),
    #[error("query parameter {0} comes more than once")]
    QueryDoubled(String),
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

    fn query(&self, name: &str) -> Result<Option<String>, SelectError> {
        let named = |(n, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
            (n == name).then(|| value.into_owned())
        };
        let mut all = form_urlencoded::parse(self.query.as_bytes()).filter_map(named);
        match (all.next(), all.next()) {
            (Some(_), Some(_)) => Err(SelectError::QueryDoubled(name.to_owned())),
            (value, _) => Ok(value),
        }
    }

    /// All values of `selector`, its steps applied. `pointer` yields what the document holds.
    pub fn select<E: From<SelectError>>(
        &self,
        selector: &Selector,
        pointer: impl FnOnce(&[String]) -> Result<Option<String>, E>,
    ) -> Result<Vec<String>, E> {
        let value = match &selector.place {
            Place::Body(path) => pointer(path)?,
            Place::Header(name) => self.header(name)?.map(str::to_owned),
            Place::Query(name) => self.query(name)?,
            Place::Const(text) => Some(text.clone()),
            Place::BodyDigest => Some(Sha256Digest::of(self.body).to_string()),
        };
        let values: Vec<_> = value.into_iter().collect();
        Ok(selector.steps.iter().fold(values, |values, step| step.apply(values)))
    }
}
