//! What a record means under its source's declaration: pure, and the same whenever it is asked.

use std::collections::HashMap;

use seriatim_schemas::declaration::{Declaration, Mode, Tie};
use seriatim_schemas::decode::document;
use seriatim_schemas::form::FormKind;
use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::row::State;
use seriatim_schemas::source::Source;
use seriatim_schemas::version::OrderKey;

/// A record as the decision sees it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub record: RecordId,
    pub event_row: String,
    pub event_type: String,
    pub version: Option<String>,
    pub digest: Sha256Digest,
    pub meaning: Meaning,
    /// Where the record was read. A hint.
    pub position: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Meaning {
    /// The whole state, at this place in the object's order.
    Snapshot { order_key: OrderKey, tombstone: bool },
    /// Counts once.
    Delta,
    /// The edge saw this event before, after it was durable: whatever it was decided to be, this is one more arrival.
    Repeat,
    /// Cannot be decided.
    Dead(Cause),
}

/// Why an event cannot be decided. `cause` is a word to group by, `detail` is for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub cause: &'static str,
    pub detail: String,
}

/// The declarations of all sources, by tenant and name.
#[derive(Debug, Default)]
pub struct Declarations {
    by_name: HashMap<(String, String), Declaration>,
}

impl Declarations {
    pub fn new(sources: &[Source]) -> Self {
        let entry = |s: &Source| ((s.tenant.clone(), s.name.clone()), s.declaration.clone());
        Self { by_name: sources.iter().map(entry).collect() }
    }

    pub fn get(&self, tenant: &str, source: &str) -> Option<&Declaration> {
        self.by_name.get(&(tenant.to_owned(), source.to_owned()))
    }

    /// Reads `record` as its source says.
    pub fn interpret(&self, record: &Record, position: String) -> Candidate {
        let declaration = self.get(record.key.tenant(), record.key.source());
        let event_row = record.event_row();
        let meaning = match declaration {
            Some(declaration) => meaning(declaration, record, &event_row),
            None => {
                dead("unknown_source", "no source of this tenant and name is declared: declare it, then redrive".into())
            }
        };
        Candidate {
            record: record.id,
            event_row,
            event_type: record.event_type.clone(),
            version: record.version.clone(),
            digest: record.digest,
            meaning,
            position,
        }
    }

    /// The document of `record`: what becomes the object's state.
    pub fn state(&self, record: &Record) -> State {
        let declaration = self.get(record.key.tenant(), record.key.source());
        let steps = declaration.and_then(|d| d.decode.as_deref()).unwrap_or_default();
        // An item of a batch is a slice of what was decoded.
        if steps.is_empty() || record.range.is_some() {
            return State(record.value.clone());
        }
        let form = FormKind::of(record.content_type.as_deref());
        let document = document(steps, &form, &record.value).ok().flatten();
        State(document.unwrap_or_else(|| record.value.clone()))
    }

    /// How long event rows of this source live, in seconds.
    pub fn dedupe_window_s(&self, tenant: &str, source: &str) -> u64 {
        self.get(tenant, source).map_or(seriatim_schemas::declaration::DEDUPE_WINDOW_S, Declaration::dedupe_window_s)
    }
}

fn dead(cause: &'static str, detail: String) -> Meaning {
    Meaning::Dead(Cause { cause, detail })
}

fn meaning(declaration: &Declaration, record: &Record, event_row: &str) -> Meaning {
    match record.kind {
        RecordKind::Event | RecordKind::Fetched => {}
        RecordKind::Repeat => return Meaning::Repeat,
        RecordKind::Unroutable => return dead("unroutable", record.problem.clone().unwrap_or_default()),
        RecordKind::Control | RecordKind::Evidence => {
            return dead(
                "unsupported_kind",
                format!("records of kind {} are of a newer version", record.kind.as_str()),
            );
        }
    }
    let plan = declaration.plan(&record.event_type);
    if plan.mode == Mode::Delta {
        return Meaning::Delta;
    }
    if let Some(problem) = &record.problem {
        return dead("version", problem.clone());
    }
    let (Some(rule), Some(text)) = (plan.version, &record.version) else {
        return dead("version", "no version: the event does not say its place in the object's order".into());
    };
    let version = match rule.parse(text) {
        Ok(version) => version,
        Err(error) => return dead("version", error.to_string()),
    };
    let ahead_s = declaration.future_max_s();
    let latest = record.recorded.as_nanosecond() + i128::from(ahead_s) * 1_000_000_000;
    if version.instant_ns().is_some_and(|at| at > latest) {
        let detail = format!(
            "version {text:?} is more than {ahead_s} s ahead of when it was received: it would make all later events stale"
        );
        return dead("future", detail);
    }
    let tie = if declaration.tie() == Tie::EventId { event_row } else { "" };
    Meaning::Snapshot {
        order_key: version.order_key(declaration.rank(&record.event_type), tie),
        tombstone: declaration.is_tombstone(&record.event_type),
    }
}
