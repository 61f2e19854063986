//! Reads a body under its bounds, before anything is hashed: bytes of one body, bytes of all bodies in
//! flight, and time. Chunked bodies are counted as they come.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::WebhookError;

/// Bytes of bodies in flight, together; at most u32::MAX.
#[derive(Debug, Clone)]
pub struct InFlight {
    semaphore: Arc<Semaphore>,
    max: usize,
}

/// A share of the bytes in flight; given back when dropped.
#[derive(Debug)]
pub struct Share(OwnedSemaphorePermit);

impl InFlight {
    pub fn new(max: usize) -> Self {
        let max = max.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self { semaphore: Arc::new(Semaphore::new(max)), max }
    }

    pub fn bytes(&self) -> usize {
        self.max - self.semaphore.available_permits()
    }

    fn take(&self, bytes: usize) -> Result<Share, WebhookError> {
        let busy = WebhookError::Busy { max: self.max };
        let Ok(bytes) = u32::try_from(bytes) else { return Err(busy) };
        self.semaphore.clone().try_acquire_many_owned(bytes).map(Share).map_err(|_| busy)
    }
}

impl Share {
    fn add(&mut self, other: Share) {
        self.0.merge(other.0);
    }
}

/// Reads the whole body. The share is held for as long as the body is in memory.
pub async fn read_body(
    headers: &HeaderMap,
    body: Body,
    max: usize,
    within: Duration,
    in_flight: &InFlight,
) -> Result<(Bytes, Share), WebhookError> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > max) {
        return Err(WebhookError::TooLarge { max });
    }
    let share = in_flight.take(declared.unwrap_or(0))?;
    let read = read_frames(body, declared.unwrap_or(0), max, in_flight, share);
    let slow = |_| WebhookError::TooSlow { ms: within.as_millis() as u64 };
    tokio::time::timeout(within, read).await.map_err(slow)?
}

async fn read_frames(
    mut body: Body,
    declared: usize,
    max: usize,
    in_flight: &InFlight,
    mut share: Share,
) -> Result<(Bytes, Share), WebhookError> {
    let mut whole = BytesMut::with_capacity(declared);
    let mut counted = declared;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| WebhookError::Truncated(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = whole.len() + data.len();
        if length > max {
            return Err(WebhookError::TooLarge { max });
        }
        if length > counted {
            share.add(in_flight.take(length - counted)?);
            counted = length;
        }
        whole.extend_from_slice(&data);
    }
    Ok((whole.freeze(), share))
}
