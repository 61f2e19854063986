//! What errors say: `application/problem+json`. Each kind of failure has one status, here.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::operations::OperationError;

/// Seconds after which to ask again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");

/// Why a request was not done.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    pub title: String,
    pub detail: String,
    pub status: u16,
}

#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    detail: String,
}

impl ApiError {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// Nobody's fault, and worth another try.
    pub fn away(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl From<OperationError> for ApiError {
    fn from(error: OperationError) -> Self {
        let status = match error {
            OperationError::NotFound(_) => StatusCode::NOT_FOUND,
            OperationError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            OperationError::Away(_) => StatusCode::SERVICE_UNAVAILABLE,
            OperationError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or_default().to_owned();
        let problem = Problem { title, detail: self.detail, status: self.status.as_u16() };
        let body = serde_json::to_vec(&problem).expect("plain data");
        let mut answer = (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let extra = match self.status {
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            StatusCode::SERVICE_UNAVAILABLE => Some((header::RETRY_AFTER, RETRY_AFTER)),
            _ => None,
        };
        answer.headers_mut().extend(extra);
        answer
    }
}
