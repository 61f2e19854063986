//! Reads a body under its bounds, before anything is hashed: bytes of one body, bytes of all bodies in
//! flight, and time. Chunked bodies are counted as they come.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::WebhookError;

/// What a refused sender may still send before its connection is dropped. A sender that is cut off while it
/// writes never sees its answer, and would try again for ever.
const DRAIN_BYTES_MAX: usize = 8 * 1024 * 1024;
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// Bytes of bodies in flight, together; at most u32::MAX.
#[derive(Debug, Clone)]
pub struct InFlight {
    semaphore: Arc<Semaphore>,
    max: usize,
    gauge: Gauge,
}

/// A share of the bytes in flight; given back when dropped.
#[derive(Debug)]
pub struct Share {
    permit: Option<OwnedSemaphorePermit>,
    in_flight: InFlight,
}

impl InFlight {
    pub fn new(max: usize, gauge: Gauge) -> Self {
        let max = max.min(u32::MAX as usize).min(Semaphore::MAX_PERMITS);
        Self { semaphore: Arc::new(Semaphore::new(max)), max, gauge }
    }

    fn show(&self) {
        self.gauge.set((self.max - self.semaphore.available_permits()) as i64);
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, WebhookError> {
        let busy = WebhookError::Busy { max: self.max };
        let Ok(bytes) = u32::try_from(bytes) else { return Err(busy) };
        let permit = self.semaphore.clone().try_acquire_many_owned(bytes).map_err(|_| busy)?;
        self.show();
        Ok(permit)
    }

    fn share(&self, bytes: usize) -> Result<Share, WebhookError> {
        Ok(Share { permit: Some(self.take(bytes)?), in_flight: self.clone() })
    }
}

impl Share {
    /// Takes a further share.
    pub fn grow(&mut self, bytes: usize) -> Result<(), WebhookError> {
        let more = self.in_flight.take(bytes)?;
        self.permit.as_mut().expect("held until dropped").merge(more);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.permit.take();
        self.in_flight.show();
    }
}

/// Reads the whole body. The share is held for as long as the body is in memory.
pub async fn read_body(
    headers: &HeaderMap,
    mut body: Body,
    max: usize,
    within: Duration,
    in_flight: &InFlight,
) -> Result<(Bytes, Share), WebhookError> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    let read = async {
        if declared > max {
            return Err(WebhookError::TooLarge { max });
        }
        let share = in_flight.share(declared)?;
        let slow = |_| WebhookError::TooSlow { ms: within.as_millis() as u64 };
        tokio::time::timeout(within, read_frames(&mut body, declared, max, share)).await.map_err(slow)?
    };
    let result = read.await;
    if matches!(result, Err(WebhookError::TooLarge { .. } | WebhookError::Busy { .. })) {
        drain(body);
    }
    result
}

async fn read_frames(
    body: &mut Body,
    declared: usize,
    max: usize,
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
            share.grow(length - counted)?;
            counted = length;
        }
        whole.extend_from_slice(&data);
    }
    Ok((whole.freeze(), share))
}

/// Takes the rest of a body that is refused, while the answer is on its way, up to a bound.
pub fn drain(mut body: Body) {
    let read = async move {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(DRAIN_WITHIN, read));
}
