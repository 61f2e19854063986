//! What a record means under its source's declaration: pure, and the same whenever it is asked.

use std::collections::HashMap;
use std::sync::Arc;

use seriatim_schemas::control::{Control, ControlAct};
use seriatim_schemas::declaration::{Declaration, Mode, Tie};
use seriatim_schemas::decode::document;
use seriatim_schemas::form::FormKind;
use seriatim_schemas::id::{RecordId, Sha256Digest};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;
use seriatim_schemas::record::{Record, RecordKind};
use seriatim_schemas::row::State;
use seriatim_schemas::source::Source;
use seriatim_schemas::version::OrderKey;

use crate::mutant::{self, Mutant};
use crate::sequence::{numbered, pass};
use crate::sink::fetch::sink_name;
use crate::sink::{Effect, NamedSink};

/// A record as the decision sees it.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub record: RecordId,
    pub event_row: String,
    pub event_type: String,
    pub version: Option<String>,
    pub digest: Sha256Digest,
    pub meaning: Meaning,
    /// Its version only says when it was fetched: where nothing else differs, nothing has changed.
    pub is_numbered: bool,
    /// A sink of its source wants stale events too.
    pub delivers_stale: bool,
    /// Where the record was read. A hint.
    pub position: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Meaning {
    /// The whole state, at this place in the object's order.
    Snapshot { order_key: OrderKey, tombstone: bool },
    /// Counts once.
    Delta,
    /// Its document is to be fetched.
    Thin,
    /// Counts once, when its turn is. `start`: the first number, where it is declared.
    Numbered { number: u64, start: Option<u64> },
    /// What is missing below this number is not waited for any more.
    Pass { to: u64 },
    /// The edge saw this event before, after it was durable: whatever it was decided to be, this is one more arrival.
    Repeat,
    /// An operator says that the object's order begins anew.
    ResetVersion,
    /// Cannot be decided.
    Dead(Cause),
}

/// Why an event cannot be decided. `cause` is a word to group by, `detail` is for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub cause: &'static str,
    pub detail: String,
}

/// The declarations of all sources, by tenant and name, and which sinks each has.
#[derive(Default)]
pub struct Declarations {
    by_tenant: HashMap<String, HashMap<String, Declared>>,
    sinks: Vec<Arc<NamedSink>>,
}

struct Declared {
    declaration: Declaration,
    /// Places in the list of all sinks.
    sinks: Vec<usize>,
    delivers_stale: bool,
}

impl Declarations {
    pub fn new(sources: &[Source], sinks: Vec<Arc<NamedSink>>) -> Self {
        let mut by_tenant: HashMap<String, HashMap<String, Declared>> = HashMap::new();
        for s in sources {
            let fetch = sink_name(&s.tenant, &s.name);
            let is_named = |name: &String| s.sinks.as_ref().is_none_or(|names| names.contains(name));
            let is_own = |sink: &NamedSink| if sink.is_fetch() { sink.name == fetch } else { is_named(&sink.name) };
            let own: Vec<usize> = (0..sinks.len()).filter(|i| is_own(&sinks[*i])).collect();
            let delivers_stale = own.iter().any(|i| sinks[*i].delivers_stale());
            let declared = Declared { declaration: s.declaration.clone(), sinks: own, delivers_stale };
            by_tenant.entry(s.tenant.clone()).or_default().insert(s.name.clone(), declared);
        }
        Self { by_tenant, sinks }
    }

    fn declared(&self, tenant: &str, source: &str) -> Option<&Declared> {
        self.by_tenant.get(tenant)?.get(source)
    }

    pub fn get(&self, tenant: &str, source: &str) -> Option<&Declaration> {
        self.declared(tenant, source).map(|d| &d.declaration)
    }

    pub fn sinks(&self) -> &[Arc<NamedSink>] {
        &self.sinks
    }

    /// Places, in the list of all sinks, of those of a source.
    pub fn sinks_of(&self, key: &ObjectKey) -> &[usize] {
        self.declared(&key.tenant, &key.source).map_or(&[], |d| &d.sinks)
    }

    pub fn mode(&self, record: &Record) -> Mode {
        self.get(record.key.tenant(), record.key.source()).map_or(Mode::Delta, |d| mode(d, record))
    }

    /// What the sinks are sent of `record`.
    pub fn effect(&self, key: ObjectKey, record: Record, outcome: Outcome, rev: i64, epoch: u64) -> Effect {
        let (declaration, mode) = (self.get(&key.tenant, &key.source), self.mode(&record));
        let tombstone = mode != Mode::Delta && declaration.is_some_and(|d| d.is_tombstone(&record.event_type));
        Effect { key: Arc::new(key), record: Arc::new(record), outcome, mode, tombstone, epoch, rev, resent: false }
    }

    /// Reads `record` as its source says.
    pub fn interpret(&self, record: &Record, position: String) -> Candidate {
        let declared = self.declared(record.key.tenant(), record.key.source());
        let declaration = declared.map(|d| &d.declaration);
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
            is_numbered: record.kind == RecordKind::Fetched
                && declaration.is_some_and(|d| d.fetch.as_ref().is_some_and(|fetch| fetch.version.is_none())),
            delivers_stale: declared.is_some_and(|d| d.delivers_stale),
            position,
        }
    }

    /// The document of `record`: what becomes the object's state.
    pub fn state(&self, record: &Record) -> State {
        let declaration = self.get(record.key.tenant(), record.key.source());
        let steps = declaration.and_then(|d| d.decode.as_deref()).unwrap_or_default();
        // An item of a batch is a slice of what was decoded, and a fetched document is none of the events.
        if steps.is_empty() || record.range.is_some() || record.kind == RecordKind::Fetched {
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

fn mode(declaration: &Declaration, record: &Record) -> Mode {
    if record.kind == RecordKind::Fetched { Mode::Snapshot } else { declaration.plan(&record.event_type).mode }
}

pub fn dead(cause: &'static str, detail: String) -> Meaning {
    Meaning::Dead(Cause { cause, detail })
}

fn meaning(declaration: &Declaration, record: &Record, event_row: &str) -> Meaning {
    match record.kind {
        RecordKind::Event | RecordKind::Fetched => {}
        RecordKind::Repeat => return Meaning::Repeat,
        RecordKind::Unroutable => return dead("unroutable", record.problem.clone().unwrap_or_default()),
        RecordKind::Control => {
            return match Control::parse(&record.value) {
                Ok(Control { act: ControlAct::ResetVersion {}, .. }) => Meaning::ResetVersion,
                Ok(Control { act: ControlAct::Pass { to }, .. }) => pass(declaration, to),
                // The others never come here: they change nothing that is decided.
                Ok(other) => dead("control", format!("{} is no act on an object's order", other.event_type())),
                Err(error) => dead("control", error.to_string()),
            };
        }
        RecordKind::Evidence => {
            return dead(
                "unsupported_kind",
                format!("records of kind {} are of a newer version", record.kind.as_str()),
            );
        }
    }
    match mode(declaration, record) {
        Mode::Delta => {
            let rule = declaration.plan(&record.event_type).sequence;
            return rule.map_or(Meaning::Delta, |rule| numbered(rule, record));
        }
        Mode::Thin => return Meaning::Thin,
        Mode::Snapshot => {}
    }
    if let Some(problem) = &record.problem {
        return dead("version", problem.clone());
    }
    let Some(text) = &record.version else {
        return dead("version", "no version: the event does not say its place in the object's order".into());
    };
    let version = match (record.kind, &declaration.fetch, declaration.plan(&record.event_type).version) {
        (RecordKind::Fetched, Some(fetch), _) => fetch.parse_version(text),
        (RecordKind::Fetched, None, _) => {
            return dead("fetch", "a fetched document, but its source fetches none any more".into());
        }
        (_, _, Some(rule)) => rule.parse(text),
        (_, _, None) => return dead("version", "no version is declared for this type of event".into()),
    };
    let version = match version {
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
    let tie = if declaration.tie() == Tie::EventId && !mutant::is(Mutant::TieByLog) { event_row } else { "" };
    Meaning::Snapshot {
        order_key: version.order_key(declaration.rank(&record.event_type), tie),
        tombstone: declaration.is_tombstone(&record.event_type),
    }
}
