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

/// Bytes that are reserved for a body before any of it is there. More is as it comes: whoever declares much and sends
/// nothing holds no more than this.
const FIRST_BYTES: usize = 16 * 1024;

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
        let first = declared.min(FIRST_BYTES);
        let share = in_flight.share(first)?;
        let slow = |_| WebhookError::TooSlow { ms: within.as_millis() as u64 };
        tokio::time::timeout(within, read_frames(&mut body, first, max, share)).await.map_err(slow)?
    };
    let result = read.await;
    if matches!(result, Err(WebhookError::TooLarge { .. } | WebhookError::Busy { .. })) {
        drain(body);
    }
    result
}

async fn read_frames(
    body: &mut Body,
    first: usize,
    max: usize,
    mut share: Share,
) -> Result<(Bytes, Share), WebhookError> {
    let mut whole = BytesMut::with_capacity(first);
    let mut counted = first;
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

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1024 * 1024;

    async fn read(in_flight: &InFlight, declared: usize, body: Body) -> Result<usize, WebhookError> {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, declared.into())]);
        let within = Duration::from_millis(200);
        read_body(&headers, body, MAX, within, in_flight).await.map(|(bytes, _)| bytes.len())
    }

    fn silent() -> Body {
        Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>())
    }

    #[tokio::test]
    async fn whoever_declares_much_and_sends_nothing_holds_little() {
        let in_flight = InFlight::new(MAX, Gauge::default());
        let silent = futures::future::join_all((0..20).map(|_| read(&in_flight, MAX, silent())));
        let other = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            read(&in_flight, 500_000, Body::from(vec![0; 500_000])).await
        };
        let (silent, other) = tokio::join!(silent, other);
        assert_eq!(other.expect("there is room"), 500_000);
        assert!(silent.iter().all(|result| matches!(result, Err(WebhookError::TooSlow { .. }))), "{silent:?}");
        assert!(in_flight.share(MAX).is_ok(), "all is given back");
    }

    #[tokio::test]
    async fn what_comes_is_counted() {
        let in_flight = InFlight::new(100_000, Gauge::default());
        let _held = in_flight.share(50_000).expect("there is room");
        assert_eq!(read(&in_flight, 40_000, Body::from(vec![0; 40_000])).await.expect("there is room"), 40_000);
        let result = read(&in_flight, 60_000, Body::from(vec![0; 60_000])).await;
        assert!(matches!(result, Err(WebhookError::Busy { .. })), "{result:?}");
    }
}
