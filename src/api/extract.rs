//! What a request says, or why it cannot be read.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use super::problem::ApiError;

/// Largest body.
const BODY_BYTES_MAX: usize = 64 * 1024;

pub struct PathOf<T>(pub T);
pub struct QueryOf<T>(pub T);
pub struct JsonOf<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path)).map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, e.body_text()))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, e.body_text()))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonOf<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, ApiError> {
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|text| text.split(';').next()).map(str::trim);
        // A browser sends it to no other site without asking first.
        if !media_type.is_some_and(|text| text.eq_ignore_ascii_case("application/json")) {
            let detail = "send the body as Content-Type: application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let too_large = |_| {
            let detail = format!("the body is larger than {BODY_BYTES_MAX} bytes, or did not come whole");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
        };
        let body = to_bytes(request.into_body(), BODY_BYTES_MAX).await.map_err(too_large)?;
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            let status = if error.is_data() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::BAD_REQUEST };
            ApiError::new(status, format!("the body: {error}"))
        })
    }
}
