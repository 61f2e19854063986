//! Fetches the documents of thin events: a sink of its own for each source that asks for it, so that fetches wait, are
//! tried again, and are held up by nobody else, as all effects are. One fetch answers every event of an object that
//! has come by then. What is fetched is appended to the log, and is a snapshot from there on: nothing is decided here.
//!
//! A document without a version is ordered by when its fetch began: the fetch takes a number first, by a conditional
//! batch on the object's head. Of two owners, each with a document in hand, the one that began later is newer, and
//! whatever the provider had said to the other was said before. The number is (activation epoch, turn): it grows with
//! each batch on the object, and with each generation.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode};
use seriatim_schemas::fetch::{FetchConfig, FetchRule};
use seriatim_schemas::id::{IdFrom, RecordId, Sha256Digest};
use seriatim_schemas::key::{RecordKey, encode_part};
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::row::Head;
use seriatim_schemas::source::Source;
use thiserror::Error;
use uuid::Uuid;

use super::gate::Pace;
use super::push::{reason, retry_after_of};
use super::{Effect, Emitted, Fault, NamedSink, Sink, SinkPolicy};
use crate::error::StoreError;
use crate::log::Log;
use crate::outbound::{Guard, Network, OutboundError};
use crate::store::{Beside, Committed, Freshness, ObjectBatch, ObjectQuery, Store};

/// What the names of these sinks begin with: no configured sink has such a name.
pub const PREFIX: &str = "~fetch.";
/// Largest document that is taken: with its headers it must fit into a record.
pub const DOCUMENT_BYTES_MAX: usize = 960 * 1024;
/// Fetches that wait for their turn, or for an answer, longer than a request may take: they wait in the store instead.
const TURN_MS: u64 = 20_000;
/// Triggers that one fetch answers.
const BATCH_MAX: usize = 1000;
/// Turns that a fetch's number has room for.
const TURN_BITS: u32 = 40;

#[derive(Debug, Error)]
pub enum FetchError {
    #[error("source {tenant}/{source_name}: fetch: {problem}")]
    Source { tenant: String, source_name: String, problem: String },
    #[error(transparent)]
    Outbound(#[from] OutboundError),
    #[error("declare.fetch.headers.{0}: its name or its value is no header")]
    Header(String),
}

/// Requests a second to one host, whatever source they are of.
#[derive(Debug, Default)]
pub struct Hosts {
    per_s: u32,
    paces: std::sync::Mutex<BTreeMap<String, Arc<Pace>>>,
}

impl Hosts {
    /// 0: no limit.
    pub fn new(per_s: u32) -> Self {
        Self { per_s, paces: Default::default() }
    }

    fn pace(&self, host: &str) -> Arc<Pace> {
        let mut paces = self.paces.lock().expect("nothing panics while it holds this lock");
        paces.entry(host.to_owned()).or_insert_with(|| Arc::new(Pace::new(self.per_s))).clone()
    }
}

/// Fetches for one source.
pub struct Fetch {
    tenant: String,
    source: String,
    revision: String,
    rule: FetchRule,
    config: FetchConfig,
    settings: BTreeMap<String, String>,
    headers: HeaderMap,
    guard: Guard,
    client: Client,
    pace: Pace,
    hosts: Arc<Hosts>,
    parts: OnceLock<Parts>,
}

/// Where numbers are taken, and documents go.
struct Parts {
    store: Arc<dyn Store>,
    log: Arc<dyn Log>,
    epoch: u64,
}

/// What the provider says of an object.
enum Answer {
    Document {
        content_type: Option<String>,
        value: Bytes,
    },
    /// There is none.
    Missing(StatusCode),
}

/// The name of the sink that fetches for a source.
pub fn sink_name(tenant: &str, source: &str) -> String {
    format!("{PREFIX}{}.{}", encode_part(tenant), encode_part(source))
}

impl Fetch {
    /// For a source that fetches; `token` is its secret.
    pub fn new(source: &Source, token: Option<&str>, hosts: Arc<Hosts>) -> Result<Self, FetchError> {
        let (Some(config), Some(rule)) = (&source.fetch, &source.declaration.fetch) else {
            let (tenant, source_name) = (source.tenant.clone(), source.name.clone());
            return Err(FetchError::Source { tenant, source_name, problem: "is not declared".to_owned() });
        };
        let networks: Vec<Network> = config.allow_networks.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
        let (guard, timeout) = (Guard::new(networks), Duration::from_millis(config.timeout_ms));
        Ok(Self {
            tenant: source.tenant.clone(),
            source: source.name.clone(),
            revision: source.revision.clone(),
            rule: rule.clone(),
            config: config.clone(),
            settings: source.settings.clone(),
            headers: headers(rule, token)?,
            client: guard.client(timeout, timeout.min(Duration::from_secs(5)))?,
            guard,
            pace: Pace::new(config.rate_per_s),
            hosts,
            parts: OnceLock::new(),
        })
    }

    pub fn is_of(&self, source: &Source) -> bool {
        self.tenant == source.tenant && self.source == source.name
    }

    /// The sink that the processor sends thin events to.
    pub(crate) fn into_sink(self, store: Arc<dyn Store>, log: Arc<dyn Log>, epoch: u64) -> NamedSink {
        let policy = SinkPolicy {
            concurrency: self.config.concurrency,
            wait_after_ms: self.config.timeout_ms.saturating_add(self.config.delay_ms).saturating_add(TURN_MS),
            retry_min_ms: self.config.retry_min_ms,
            retry_max_ms: self.config.retry_max_ms,
            ..SinkPolicy::default()
        };
        let name = sink_name(&self.tenant, &self.source);
        let _ = self.parts.set(Parts { store, log, epoch });
        NamedSink::new(name, policy, Arc::new(self))
    }

    async fn fetch(&self, effects: &[Effect]) -> Result<(), Fault> {
        let (Some(last), Some(parts)) = (effects.last(), self.parts.get()) else { return Ok(()) };
        let url = self.rule.url.of(&last.key.object, &self.settings, last.value());
        let url = self.guard.check_url(&url.map_err(refused)?).map_err(refused)?;
        tokio::time::sleep(Duration::from_millis(self.config.delay_ms)).await;
        let number = match self.rule.version {
            None => Some(self.take_number(parts, last).await?),
            Some(_) => None,
        };
        self.pace.wait(1).await;
        self.hosts.pace(url.host_str().unwrap_or_default()).wait(1).await;
        let target = format!("{}{}", url.path(), url.query().map_or_else(String::new, |query| format!("?{query}")));
        let record = match self.ask(url).await? {
            Answer::Document { content_type, value } => {
                let version = match number {
                    Some(number) => number,
                    None => self.version(&value, effects)?,
                };
                let event_type = self.rule.event_type.clone();
                self.record(last, target, version, event_type, content_type, value)
            }
            Answer::Missing(status) => match self.missing(parts, effects, number, status).await? {
                None => return Ok(()),
                Some((deleted, version)) => {
                    let record = &deleted.record;
                    let (event_type, content_type) = (record.event_type.clone(), record.content_type.clone());
                    self.record(deleted, target, version, event_type, content_type, record.value.clone())
                }
            },
        };
        parts.log.append(record).await.map_err(|error| unavailable(format!("the document is not in the log: {error}")))
    }

    /// A number above those of all fetches of this object that have begun.
    async fn take_number(&self, parts: &Parts, effect: &Effect) -> Result<String, Fault> {
        let (store, key) = (&parts.store, effect.key.as_ref());
        let bucket = key.bucket(store.buckets());
        let failed = |error: StoreError| unavailable(format!("the fetch has no number: {error}"));
        loop {
            let query = ObjectQuery { key: key.clone(), event_rows: Vec::new() };
            let head = store.read(bucket, &[query], Freshness::Serial).await.map_err(failed)?.remove(0).head;
            let turn = head.as_ref().map_or(0, |head| head.turn) + 1;
            let batch = ObjectBatch {
                key: key.clone(),
                turn: head.as_ref().map(|head| head.turn),
                head: Head { turn, ..head.unwrap_or_default() },
                state: None,
                rows: Vec::new(),
                rows_ttl_s: 0,
                beside: Beside::default(),
            };
            match store.commit(bucket, &[batch]).await {
                Ok(Committed::Applied) => {
                    let number = (u128::from(parts.epoch) << TURN_BITS) + turn as u128;
                    return Ok(number.to_string());
                }
                Ok(Committed::Refused) => {}
                // If it was applied, the next one is greater.
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn ask(&self, url: reqwest::Url) -> Result<Answer, Fault> {
        let sent = self.client.get(url).headers(self.headers.clone()).send().await;
        let answer = sent.map_err(|error| unavailable(reason(error)))?;
        let status = answer.status();
        if status.is_success() {
            let content_type = answer.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).map(str::to_owned);
            return Ok(Answer::Document { content_type, value: body(answer).await? });
        }
        let retry_after = retry_after_of(&answer);
        let redirect = if status.is_redirection() { ": redirects are not followed" } else { "" };
        let reason = format!("status {}{redirect}", status.as_u16());
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Ok(Answer::Missing(status)),
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Err(Fault::Refused { reason }),
            _ => Err(Fault::Unavailable { reason, retry_after }),
        }
    }

    /// The version in a document.
    fn version(&self, document: &[u8], effects: &[Effect]) -> Result<String, Fault> {
        let no_version =
            || Fault::Refused { reason: "the document has no version where declare.fetch says".to_owned() };
        let text = self.rule.version_of(document).ok_or_else(no_version)?;
        let place = |text: &str| self.rule.parse_version(text).map(|version| version.order_key(0, ""));
        let version = place(&text).map_err(refused)?;
        let said = effects.iter().filter_map(|e| place(e.record.version.as_deref()?).ok()).max();
        if self.rule.wait_for_version && said > Some(version) && !self.is_over(effects) {
            let reason = format!("the document of version {text} is older than the event");
            return Err(Fault::NotYet { reason });
        }
        Ok(text)
    }

    /// What a document that is not there means: the event that deleted it, and the version of that; none where that
    /// is known already.
    async fn missing<'e>(
        &self,
        parts: &Parts,
        effects: &'e [Effect],
        number: Option<String>,
        status: StatusCode,
    ) -> Result<Option<(&'e Effect, String)>, Fault> {
        if let Some(deleted) = effects.iter().rev().find(|effect| effect.tombstone) {
            let version = number.or_else(|| deleted.record.version.clone());
            let no_version =
                || Fault::Refused { reason: "the event that deletes the object has no version".to_owned() };
            return version.map(|version| Some((deleted, version))).ok_or_else(no_version);
        }
        let key = effects[0].key.as_ref();
        let query = ObjectQuery { key: key.clone(), event_rows: Vec::new() };
        let read = parts.store.read(key.bucket(parts.store.buckets()), &[query], Freshness::Quorum).await;
        let head = read.map_err(|error| unavailable(error.to_string()))?.remove(0).head;
        if head.and_then(|head| head.snapshot).is_some_and(|snapshot| snapshot.deleted) {
            return Ok(None);
        }
        let reason = format!("status {}", status.as_u16());
        // Created a moment ago, it may not be there yet; and what is missing was not deleted by that.
        Err(if self.is_over(effects) { Fault::Refused { reason } } else { Fault::NotYet { reason } })
    }

    /// Whether the newest event has waited for its document long enough.
    fn is_over(&self, effects: &[Effect]) -> bool {
        let newest = effects.iter().map(|effect| effect.record.recorded).max().unwrap_or(Timestamp::MIN);
        Timestamp::now().as_second() - newest.as_second() > self.config.missing_after_s as i64
    }

    /// The record of a document. Its id names the event that asked for it, and what was found: the same answer to the
    /// same event is one event.
    fn record(
        &self,
        trigger: &Effect,
        target: String,
        version: String,
        event_type: String,
        content_type: Option<String>,
        value: Bytes,
    ) -> Record {
        let digest = Sha256Digest::of(&value);
        Record {
            kind: RecordKind::Fetched,
            id: RecordId { request: Uuid::now_v7(), item: 0 },
            key: RecordKey::Object(trigger.key.as_ref().clone()),
            declaration: self.revision.clone(),
            event_id: format!("{}~{}", trigger.record.event_row(), hex::encode(&digest.0[..8])),
            id_from: IdFrom::Record,
            event_type,
            version: Some(version),
            time: None,
            recorded: Timestamp::now(),
            digest,
            id_digest: None,
            secret: String::new(),
            method: "GET".to_owned(),
            target,
            problem: None,
            content_type,
            traceparent: trigger.record.traceparent.clone(),
            range: None,
            context: None,
            http: Vec::new(),
            value,
        }
    }
}

fn headers(rule: &FetchRule, token: Option<&str>) -> Result<HeaderMap, FetchError> {
    let mut headers = HeaderMap::new();
    let is_named = rule.headers.values().any(|value| value.contains("{token"));
    let bearer = token.filter(|_| !is_named).map(|_| (AUTHORIZATION.as_str(), "Bearer {token}"));
    let declared = rule.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in declared.chain(bearer) {
        let token = token.unwrap_or_default();
        let text = value.replace("{token_base64}", &STANDARD.encode(token)).replace("{token}", token);
        let parsed = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(text).ok());
        let (name, mut value) = parsed.ok_or_else(|| FetchError::Header(name.to_owned()))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

async fn body(mut answer: Response) -> Result<Bytes, Fault> {
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| unavailable(reason(error)))? {
        body.extend_from_slice(&chunk);
        if body.len() > DOCUMENT_BYTES_MAX {
            return Err(Fault::Refused { reason: format!("the document is larger than {DOCUMENT_BYTES_MAX} bytes") });
        }
    }
    Ok(body.freeze())
}

fn refused(error: impl std::fmt::Display) -> Fault {
    Fault::Refused { reason: error.to_string() }
}

fn unavailable(reason: String) -> Fault {
    Fault::Unavailable { reason, retry_after: None }
}

#[async_trait]
impl Sink for Fetch {
    /// All or nothing; of those that are refused one stands for all, since they would be answered alike.
    async fn emit(&self, effects: &[Effect]) -> Emitted {
        match self.fetch(effects).await {
            Ok(()) => Emitted::all(effects.len()),
            Err(fault @ Fault::Refused { .. }) => Emitted { taken: effects.len() - 1, fault: Some(fault) },
            Err(fault) => Emitted { taken: 0, fault: Some(fault) },
        }
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX
    }
}
