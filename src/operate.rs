//! What an operator does: acts become records of the log, whoever asks for them, so that they reach the owner of
//! their object in order and survive what it survives. Nothing here writes to the store.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::bail;
use jiff::Timestamp;
use seriatim_ingest::log::{Append, AppendError};
use seriatim_ingest::rederive::rederive;
use seriatim_ingest::sources::LiveSource;
use seriatim_processor::candidate::{Declarations, Meaning};
use seriatim_processor::sink::fetch::sink_name;
use seriatim_schemas::control::{Control, ControlAct};
use seriatim_schemas::id::RecordId;
use seriatim_schemas::key::{ObjectKey, RecordKey};
use seriatim_schemas::record::{Record, RecordKind, decode};
use seriatim_schemas::row::{DeadLetter, parse_refused_row};
use seriatim_schemas::source::Source;
use uuid::Uuid;

use crate::config::Config;

/// On which log, by which declarations.
pub struct Operator {
    log: Arc<dyn Append>,
    sources: HashMap<(String, String), LiveSource>,
    declarations: Declarations,
    sinks: Vec<String>,
}

/// Who acts, and why.
#[derive(Debug, Clone)]
pub struct Who {
    pub by: String,
    pub reason: Option<String>,
}

/// What a redrive of a dead letter comes to.
pub enum Redrive {
    /// These records go into the log, and the letter goes.
    Again(Vec<Record>),
    /// Its sink is sent the effect again.
    Effect { sink: String, event_row: String },
    /// It would be a dead letter again, and why.
    StillDead(String),
}

impl Operator {
    pub fn new(log: Arc<dyn Append>, config: &Config) -> anyhow::Result<Self> {
        let sources = config.sources();
        let declarations = Declarations::new(&sources, Vec::new());
        let fetched = config.source.iter().filter(|source| source.fetch.is_some());
        let fetches = fetched.map(|source| sink_name(&source.tenant, &source.name));
        let sinks = config.sink.iter().map(|sink| sink.name.clone()).chain(fetches).collect();
        let live = |source: Source| {
            let name = (source.tenant.clone(), source.name.clone());
            Ok((name, LiveSource::without_secrets(source)?))
        };
        let sources = sources.into_iter().map(live).collect::<anyhow::Result<_>>()?;
        Ok(Self { log, sources, declarations, sinks })
    }

    /// What a redrive would do now.
    pub fn plan(&self, letter: &DeadLetter) -> Redrive {
        self.try_plan(letter).unwrap_or_else(|error| Redrive::StillDead(format!("{error:#}")))
    }

    fn try_plan(&self, letter: &DeadLetter) -> anyhow::Result<Redrive> {
        if let Some((sink, event_row)) = parse_refused_row(&letter.event_row) {
            if !self.sinks.iter().any(|name| name == sink) {
                return Ok(Redrive::StillDead(format!("sink {sink} is not configured")));
            }
            return Ok(Redrive::Effect { sink: sink.to_owned(), event_row: event_row.to_owned() });
        }
        if letter.cause == "foreign" {
            bail!("{} is no record of ours: it cannot be redriven", letter.position);
        }
        let source = self.sources.get(&(letter.tenant.clone(), letter.source.clone()));
        let Some(source) = source else {
            return Ok(Redrive::StillDead(format!("{}/{} is not declared", letter.tenant, letter.source)));
        };
        let record = decode(&key_of(letter).to_string(), &letter.headers, letter.value.clone())?;
        if !matches!(record.kind, RecordKind::Event | RecordKind::Unroutable | RecordKind::Fetched) {
            bail!("{}: a record of kind {} is no event", letter.event_id, record.kind.as_str());
        }
        // A document was read by nobody's declaration: it is decided again as it is.
        let again = |record: &Record| Record { id: RecordId { request: Uuid::now_v7(), item: 0 }, ..record.clone() };
        let records = match record.kind {
            RecordKind::Fetched => vec![again(&record)],
            _ => rederive(source, &record)?,
        };
        let of_events = records.iter().filter(|record| record.kind != RecordKind::Evidence);
        let problem = of_events.map(|record| self.declarations.interpret(record, String::new()).meaning);
        let problem = problem.into_iter().find_map(|meaning| match meaning {
            Meaning::Dead(cause) => Some(format!("{}: {}", cause.cause, cause.detail)),
            _ => None,
        });
        Ok(problem.map_or(Redrive::Again(records), Redrive::StillDead))
    }

    /// The new records first: a crash in between leaves the letter, and the event is decided once all the same.
    pub async fn redrive(&self, letter: &DeadLetter, records: Vec<Record>, who: &Who) -> Result<(), AppendError> {
        self.log.append(records).await?;
        self.discard(letter, who).await
    }

    pub async fn redrive_effect(
        &self,
        letter: &DeadLetter,
        sink: String,
        event_row: String,
        who: &Who,
    ) -> Result<(), AppendError> {
        self.act(key_of(letter), ControlAct::RedriveEffect { sink, event_row }, who).await
    }

    pub async fn discard(&self, letter: &DeadLetter, who: &Who) -> Result<(), AppendError> {
        let act = ControlAct::Discard { letter: letter.event_row.clone(), record: letter.record.to_string() };
        self.act(key_of(letter), act, who).await
    }

    pub async fn act_on(&self, key: ObjectKey, act: ControlAct, who: &Who) -> Result<(), AppendError> {
        self.act(RecordKey::Object(key), act, who).await
    }

    async fn act(&self, key: RecordKey, act: ControlAct, who: &Who) -> Result<(), AppendError> {
        let control = Control { act, by: who.by.clone(), reason: who.reason.clone() };
        self.log.append(vec![control.record(key, Uuid::now_v7(), Timestamp::now())]).await
    }
}

/// The key under which a letter's record lies in the log.
fn key_of(letter: &DeadLetter) -> RecordKey {
    let (tenant, source) = (letter.tenant.clone(), letter.source.clone());
    if letter.object.is_empty() {
        RecordKey::Unroutable { tenant, source, record: letter.record.to_string() }
    } else {
        RecordKey::Object(ObjectKey::new(tenant, source, &letter.object))
    }
}
