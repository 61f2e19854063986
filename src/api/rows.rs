//! What is told and what is asked: by the API as JSON, and on the command line as tables.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::operations::OperationError;

/// Rows of one page where nothing is said, and at most.
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1000;
/// Longest reason of an act, in bytes.
const REASON_BYTES_MAX: usize = 2000;
const RATE_DEFAULT: u32 = 100;
const RATE_MAX: u32 = 10_000;

/// Some rows. A page may hold fewer than were asked for, or none, and not be the last.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub rows: Vec<T>,
    /// Where the next page begins; null where this is the last.
    pub after: Option<String>,
}

/// Which page.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// Rows of the page: 1 to 1000, 100 where it is left out
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// As the page before says
    pub after: Option<String>,
}

impl Paging {
    pub fn largest() -> Self {
        Self { limit: Some(LIMIT_MAX), after: None }
    }

    pub fn limit(&self) -> Result<usize, OperationError> {
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT);
        if (1..=LIMIT_MAX).contains(&limit) {
            return Ok(limit as usize);
        }
        Err(OperationError::Invalid(format!("limit is {limit}: give 1 to {LIMIT_MAX}")))
    }
}

/// One object, without its state.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ObjectSummary {
    pub object: String,
    pub rev: i64,
    /// Null while only deltas were seen, as what follows.
    pub deleted: Option<bool>,
    pub version: Option<String>,
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    pub event: Option<String>,
}

/// One object: the event that is its state, the state, and what of it waits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ObjectRow {
    pub tenant: String,
    pub source: String,
    pub object: String,
    pub rev: i64,
    /// Null while only deltas were seen, as what follows.
    pub deleted: Option<bool>,
    pub version: Option<String>,
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    pub event: Option<String>,
    pub record: Option<String>,
    pub sha256: Option<String>,
    /// Sinks that it waits for.
    pub waiting: Vec<WaitingFor>,
    /// Where its numbered deltas are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceRow>,
    /// What a reducer has made of the deltas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fold: Option<serde_json::Value>,
    /// The state, where it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub state: Option<Box<RawValue>>,
    /// The state, where it is anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_base64: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WaitingFor {
    pub sink: String,
    /// Effects that wait in rows of their own; at least as many as there are.
    pub queued: u64,
    /// Why nothing is sent before an operator says so.
    pub parked: Option<String>,
}

/// An object's place in its sequence.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SequenceRow {
    /// The number that is applied next; null while the first is not known.
    pub next: Option<u64>,
    /// Events that are held because a number before them is missing.
    pub held: u64,
    /// The lowest of them.
    pub held_from: Option<u64>,
    /// Since when the number is missing.
    pub since: Option<String>,
}

/// One event, as it was decided.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub object: String,
    pub event: String,
    pub outcome: String,
    /// Null where nothing of it was sent.
    pub rev: Option<i64>,
    #[serde(rename = "type")]
    pub event_type: String,
    pub version: Option<String>,
    pub sha256: String,
    pub record: String,
    pub position: String,
    pub decided: String,
}

/// One record of an event, and what it did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ArrivalRow {
    pub object: String,
    pub event: String,
    pub outcome: String,
    /// The rev of the effect that this arrival had.
    pub rev: Option<i64>,
    pub received: String,
    pub done: String,
    pub record: String,
    pub position: String,
    pub detail: Option<String>,
}

/// How an event id was decided, and how often it arrived.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// One for each object that has an event of this id, of those on this page.
    pub decided: Vec<Event>,
    pub arrivals: Vec<ArrivalRow>,
    /// Where the next page begins; null where this is the last.
    pub after: Option<String>,
}

/// Which dead letters: those that all of this is true of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams, clap::Args)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct LetterFilter {
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Event id or record id
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The word that the list shows, such as version, unroutable or refused
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// Which dead letters, and which page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LettersQuery {
    pub tenant: Option<String>,
    pub source: Option<String>,
    pub object: Option<String>,
    /// Event id or record id
    pub id: Option<String>,
    /// The word that the list shows, such as version, unroutable or refused
    pub cause: Option<String>,
    /// Rows of the page: 1 to 1000, 100 where it is left out
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// As the page before says
    pub after: Option<String>,
}

impl LettersQuery {
    pub fn split(self) -> (LetterFilter, Paging) {
        let Self { tenant, source, object, id, cause, limit, after } = self;
        (LetterFilter { tenant, source, object, id, cause }, Paging { limit, after })
    }
}

/// One dead letter, without what it holds.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LetterSummary {
    pub tenant: String,
    pub source: String,
    /// Empty for what could not be routed.
    pub object: String,
    pub event_id: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub record: String,
    pub cause: String,
    pub detail: String,
    /// A later delivery of the same event was applied.
    pub resolved: bool,
    pub received: String,
    pub dead: String,
    pub position: String,
}

/// One dead letter, whole.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LetterRow {
    #[serde(flatten)]
    pub summary: LetterSummary,
    pub bytes: u64,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// The body, where it is text.
    pub value: Option<String>,
    /// The body, where it is anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

/// Dead letters of one cause.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Group {
    pub tenant: String,
    pub source: String,
    pub cause: String,
    pub letters: u64,
    /// The detail of one of them.
    pub example: String,
}

/// An act on dead letters.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LettersRequest {
    pub filter: LetterFilter,
    /// All that the filter leaves, even where it is empty.
    pub all: bool,
    /// Only count what would be done.
    pub dry_run: bool,
    /// Letters a second at most.
    #[schema(minimum = 1, maximum = 10000)]
    pub rate: u32,
    /// Why: it stands in the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// As the last answer says: where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl Default for LettersRequest {
    fn default() -> Self {
        Self {
            filter: LetterFilter::default(),
            all: false,
            dry_run: false,
            rate: RATE_DEFAULT,
            reason: None,
            after: None,
        }
    }
}

impl LettersRequest {
    pub fn check(&self) -> Result<(), OperationError> {
        let problem = if self.filter == LetterFilter::default() && !self.all {
            "name a filter, such as source, or say all".to_owned()
        } else if !(1..=RATE_MAX).contains(&self.rate) {
            format!("rate is {}: give 1 to {RATE_MAX}", self.rate)
        } else {
            return check_reason(self.reason.as_deref());
        };
        Err(OperationError::Invalid(problem))
    }
}

/// What was done in one go.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LettersDone {
    /// Letters that the filter leaves behind `after`, as they were when it began.
    pub matching: u64,
    /// Letters that were acted on, or would be.
    pub done: u64,
    pub left_alone: Vec<LeftAlone>,
    /// Where to go on: the same request with this does the rest. Null where all was done.
    pub after: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LeftAlone {
    pub reason: String,
    pub letters: u64,
}

/// Which objects that wait.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitingQuery {
    pub tenant: Option<String>,
    pub source: Option<String>,
    /// True: only those that wait for an operator; false: only those that wait for a sink
    pub parked: Option<bool>,
    /// Rows of the page: 1 to 1000, 100 where it is left out
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// As the page before says
    pub after: Option<String>,
}

impl WaitingQuery {
    pub fn paging(&self) -> Paging {
        Paging { limit: self.limit, after: self.after.clone() }
    }
}

/// An object that waits for a sink.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WaiterRow {
    pub tenant: String,
    pub source: String,
    pub object: String,
    pub sink: String,
    /// `parked` or `waiting`.
    pub state: String,
    pub cause: String,
    pub since: String,
    pub first_event: Option<String>,
    pub first_rev: Option<i64>,
}

/// An act on an object.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectRequest {
    /// The sink that it is parked for; left out where it is parked for one only. Acts on its order take none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// Of a pass: the number that is next; left out, the lowest that is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Why: it stands in the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only say what would be done.
    pub dry_run: bool,
}

impl ObjectRequest {
    pub fn check(&self) -> Result<(), OperationError> {
        check_reason(self.reason.as_deref())
    }
}

fn check_reason(reason: Option<&str>) -> Result<(), OperationError> {
    match reason.map_or(0, str::len) {
        0..=REASON_BYTES_MAX => Ok(()),
        bytes => Err(OperationError::Invalid(format!("reason is {bytes} bytes long: give {REASON_BYTES_MAX} at most"))),
    }
}

/// What was done to an object: the act is in the log, and its owner does it in order.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ObjectDone {
    pub tenant: String,
    pub source: String,
    pub object: String,
    pub sink: Option<String>,
    /// The first effect that is parked; the one that a skip leaves out.
    pub rev: Option<i64>,
    /// Of a pass: the number that is next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Nothing was done.
    pub dry_run: bool,
}

/// One sink of this process.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SinkRow {
    pub name: String,
    /// `json_lines`, `push`, `kafka` or `fetch` (which fetches the documents of thin events).
    pub kind: String,
    /// Its breaker is open: it failed too often in a row, and is asked now and then whether it is back.
    pub away: bool,
    /// Bytes of effects that are in memory for it.
    pub pending_bytes: u64,
    /// Sends under way.
    pub under_way: u64,
}

/// How much of a partition is not done.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PartitionLag {
    pub partition: i32,
    /// All offsets below it are done.
    pub low_watermark: i64,
    pub next: i64,
    pub lag: i64,
    /// Age of the oldest record that is not done.
    pub oldest_s: Option<i64>,
}
