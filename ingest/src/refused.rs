//! The last refused requests of each source, in memory, so that an operator can ask why. Bounded in number and in
//! bytes; what is, or may be, a secret is left out.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use jiff::Timestamp;
use seriatim_schemas::record::HEADERS_NEVER_KEPT;

use crate::error::Refusal;
use crate::sources::LiveSource;
use crate::webhook::Received;

/// Requests that are kept of one source.
const KEPT_PER_SOURCE: usize = 10;
/// Bytes of bodies and headers of all sources together.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// A larger body is not kept, only its size.
const BODY_MAX: usize = 64 * 1024;

/// What stands in the place of what is not told.
pub const HIDDEN: &str = "(hidden)";

/// A request that was refused.
#[derive(Debug, Clone)]
pub struct RefusedRequest {
    pub at: Timestamp,
    pub refusal: Refusal,
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Without those that are, or may be, secrets; of an unknown source, their names alone.
    pub headers: HeaderMap,
    /// None where it was too large to keep, may hold a secret, or is of an unknown source.
    pub body: Option<Bytes>,
    pub body_bytes: usize,
}

/// By tenant and source; those of unknown sources together, under empty names.
type BySource = HashMap<(String, String), VecDeque<RefusedRequest>>;

#[derive(Debug, Default)]
pub struct Refused {
    kept: Mutex<(BySource, usize)>,
}

impl RefusedRequest {
    pub fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        self.body.as_ref().map_or(0, Bytes::len) + headers + self.target.len()
    }
}

impl Refused {
    pub fn keep(&self, source: &LiveSource, received: &Received, refusal: Refusal) {
        let is_known = !source.source.name.is_empty();
        let mut headers = received.headers.clone();
        if !is_known {
            // Whose they are nobody can say, nor which of them is a secret: a misspelt name is enough.
            headers.values_mut().for_each(|value| *value = HeaderValue::from_static(HIDDEN));
        }
        for name in HEADERS_NEVER_KEPT.iter().copied().chain(source.secret_headers.iter().map(String::as_str)) {
            headers.remove(name);
        }
        // A handshake that was refused brings a secret.
        let keeps_body = is_known && refusal != Refusal::SecretNotKept && received.body.len() <= BODY_MAX;
        let request = RefusedRequest {
            at: received.at,
            refusal,
            method: received.method.to_string(),
            target: if is_known { source.kept_target(&received.target) } else { without_values(&received.target) },
            headers,
            body: keeps_body.then(|| Bytes::copy_from_slice(&received.body)),
            body_bytes: received.body.len(),
        };
        let mut kept = self.kept.lock().expect("nothing panics while it holds this lock");
        let (by_source, bytes) = &mut *kept;
        let own = by_source.entry((source.source.tenant.clone(), source.source.name.clone())).or_default();
        *bytes += request.size();
        own.push_back(request);
        if own.len() > KEPT_PER_SOURCE {
            *bytes -= own.pop_front().map_or(0, |old| old.size());
        }
        // Whoever holds most gives way first: one source under attack does not push out the others.
        while *bytes > BYTES_MAX {
            let size = |all: &VecDeque<RefusedRequest>| all.iter().map(RefusedRequest::size).sum::<usize>();
            let Some(largest) = by_source.values_mut().max_by_key(|all| size(all)) else { break };
            *bytes -= largest.pop_front().map_or(0, |old| old.size());
        }
    }

    /// The last ones of a source, the newest first.
    pub fn of(&self, tenant: &str, source: &str) -> Vec<RefusedRequest> {
        let kept = self.kept.lock().expect("nothing panics while it holds this lock");
        let own = kept.0.get(&(tenant.to_owned(), source.to_owned()));
        own.into_iter().flatten().rev().cloned().collect()
    }
}

/// Path and names of the query.
fn without_values(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let name = |pair: &str| pair.split_once('=').map_or(HIDDEN.to_owned(), |(name, _)| format!("{name}={HIDDEN}"));
    format!("{path}?{}", query.split('&').map(name).collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_query_only_names_are_kept() {
        assert_eq!(without_values("/in/t/s?token=hush&hush&a="), "/in/t/s?token=(hidden)&(hidden)&a=(hidden)");
        assert_eq!(without_values("/in/t/s"), "/in/t/s");
    }
}
