//! Compares what was processed with what was answered. Written from the promises, not from the processor:
//! an event is a number of its object's steps, the greatest step is the state, each event has one effect.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use seriatim_processor::inspect::{Inspect, ObjectState};
use seriatim_processor::store::Arrival;
use seriatim_schemas::id::Sha256Digest;
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;

use super::{Ledger, Target};
use crate::api::lag::lags;
use crate::config::Config;
use crate::engine;
use crate::output::say;
use crate::traffic::{Plan, Traffic};

/// Objects looked at together.
const LOOKS_AT_ONCE: usize = 32;
/// Faults that are told one by one.
const FAULTS_TOLD_MAX: usize = 10;

pub struct Check<'a> {
    pub config: &'a Config,
    pub plan: &'a Plan,
    pub traffic: &'a Traffic,
    pub ledger: &'a Ledger,
    pub target: &'a Target,
    pub effects: &'a [PathBuf],
    pub started: Instant,
    pub wait: Duration,
}

/// The result. The first four must be 0.
#[derive(Debug, Default, Serialize)]
pub struct Verified {
    /// Requests that were answered with success and have no arrival.
    pub missing: u64,
    /// Events that had effects of different revs, or applied events without any effect.
    pub applied_twice: u64,
    pub effects_missing: u64,
    /// Objects whose state is not their newest event.
    pub states_differ: u64,
    /// Objects whose first effects came out of the order of their revs.
    pub out_of_order: u64,
    pub applied: u64,
    pub duplicates: u64,
    pub stale: u64,
    pub dead: u64,
    /// Effects that were sent again, with the same key and rev.
    pub resent: u64,
    pub processed_seconds: f64,
    pub events_per_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds_per_applied: Option<f64>,
}

impl Verified {
    pub fn is_good(&self) -> bool {
        self.missing + self.applied_twice + self.effects_missing + self.states_differ + self.out_of_order == 0
    }

    pub fn set_rounds(&mut self, rounds: u64) {
        self.rounds_per_applied =
            (self.applied > 0).then(|| (rounds as f64 / self.applied as f64 * 1000.0).round() / 1000.0);
    }
}

/// What is stored of one object.
struct Seen {
    object: usize,
    state: Option<ObjectState>,
    arrivals: Vec<Arrival>,
}

#[derive(Deserialize)]
struct EffectLine {
    idempotency_key: String,
    tenant: String,
    source: String,
    object: String,
    rev: i64,
}

impl Check<'_> {
    pub async fn run(&self) -> anyhow::Result<Verified> {
        let store = engine::open_inspect(self.config).await?;
        self.wait_until_processed(store.as_ref()).await?;
        let seconds = self.started.elapsed().as_secs_f64();
        let mut verified = Verified { processed_seconds: (seconds * 1000.0).round() / 1000.0, ..Verified::default() };
        let effects = self.read_effects(&mut verified)?;
        let mut steps_of = vec![Vec::new(); self.plan.objects.max(1)];
        for (n, event) in self.traffic.events.iter().enumerate() {
            steps_of[event.object].push(n);
        }
        let look = |object: usize| {
            let (store, key) = (store.clone(), self.key(object));
            async move { look_at(store, key, object).await }
        };
        let mut seen = futures::stream::iter((0..steps_of.len()).map(look)).buffer_unordered(LOOKS_AT_ONCE);
        let mut faults = Vec::new();
        while let Some(seen) = seen.try_next().await? {
            self.check_object(&seen, &steps_of[seen.object], &effects, &mut verified, &mut faults);
        }
        for fault in faults.iter().take(FAULTS_TOLD_MAX) {
            say(fault);
        }
        let requests: u64 = self.ledger.acknowledged.iter().sum();
        verified.events_per_s = (requests as f64 / seconds) as u64;
        Ok(verified)
    }

    fn key(&self, object: usize) -> ObjectKey {
        ObjectKey::new(&self.target.source.tenant, &self.target.source.name, self.plan.object_id(object))
    }

    async fn wait_until_processed(&self, store: &dyn Inspect) -> anyhow::Result<()> {
        let log = engine::open_inspect_log(self.config).await?;
        let deadline = Instant::now() + self.wait;
        loop {
            let lag: i64 = lags(store, log.as_ref()).await?.iter().map(|l| l.lag).sum();
            if lag == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{lag} records are not processed after {} s", self.wait.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Effects of this source: revs by idempotency key. Counts resends and inversions.
    fn read_effects(&self, verified: &mut Verified) -> anyhow::Result<HashMap<String, Vec<i64>>> {
        let mut revs: HashMap<String, Vec<i64>> = HashMap::new();
        let mut newest: HashMap<String, i64> = HashMap::new();
        for path in self.effects {
            let text = std::fs::read_to_string(path).with_context(|| format!("effects in {}", path.display()))?;
            for line in text.lines() {
                let effect: EffectLine =
                    serde_json::from_str(line).with_context(|| format!("a line of {}", path.display()))?;
                if effect.tenant != self.target.source.tenant || effect.source != self.target.source.name {
                    continue;
                }
                let of_key = revs.entry(effect.idempotency_key).or_default();
                if of_key.contains(&effect.rev) {
                    verified.resent += 1;
                    continue;
                }
                of_key.push(effect.rev);
                // With several files, one per process, the order between them is not known.
                let newest = newest.entry(effect.object).or_insert(0);
                verified.out_of_order += u64::from(effect.rev <= *newest && self.effects.len() == 1);
                *newest = effect.rev.max(*newest);
            }
        }
        Ok(revs)
    }

    fn check_object(
        &self,
        seen: &Seen,
        events: &[usize],
        effects: &HashMap<String, Vec<i64>>,
        verified: &mut Verified,
        faults: &mut Vec<String>,
    ) {
        for arrival in &seen.arrivals {
            match arrival.row.outcome {
                Outcome::Applied | Outcome::Superseded => verified.applied += 1,
                Outcome::Duplicate => verified.duplicates += 1,
                Outcome::Stale => verified.stale += 1,
                Outcome::Dead | Outcome::Parked => verified.dead += 1,
            }
        }
        for &n in events {
            let event = &self.traffic.events[n];
            let arrivals: Vec<_> = seen.arrivals.iter().filter(|a| a.row.event_id == event.id).collect();
            let missing = self.ledger.acknowledged[n].saturating_sub(arrivals.len() as u64);
            if missing > 0 {
                faults.push(format!(
                    "missing: {} was answered {} times, {} arrivals",
                    event.id,
                    self.ledger.acknowledged[n],
                    arrivals.len()
                ));
            }
            verified.missing += missing;
            let applied = arrivals.iter().filter(|a| a.row.outcome == Outcome::Applied).count();
            let key = arrivals.first().map(|a| seriatim_processor::sink::idempotency_key(&a.key, &a.row.event_row));
            let revs = key.and_then(|k| effects.get(&k)).map_or(0, Vec::len);
            if applied > 1 || revs > 1 {
                verified.applied_twice += 1;
                faults.push(format!("applied twice: {} ({applied} arrivals, {revs} revs)", event.id));
            }
            if applied == 1 && revs == 0 && !self.effects.is_empty() {
                verified.effects_missing += 1;
                faults.push(format!("no effect of {}", event.id));
            }
        }
        if !self.state_is_newest(seen, events) {
            verified.states_differ += 1;
            faults.push(format!("state of {} is not its newest event", self.plan.object_id(seen.object)));
        }
    }

    /// The state is the newest acknowledged event, or a newer one whose acknowledgement was lost.
    fn state_is_newest(&self, seen: &Seen, events: &[usize]) -> bool {
        let newest =
            events.iter().filter(|n| self.ledger.acknowledged[**n] > 0).max_by_key(|n| self.traffic.events[**n].step);
        let Some(newest) = newest else { return true };
        let at_least = self.traffic.events[*newest].step;
        let Some(snapshot) = seen.state.as_ref().and_then(|s| s.head.snapshot.as_ref()) else { return false };
        let is_stored = |n: &&usize| {
            let id = &self.traffic.events[**n].id;
            snapshot.event_row == *id
                || snapshot.event_row.strip_prefix(id.as_str()).is_some_and(|rest| rest.starts_with('~'))
        };
        let Some(stored) = events.iter().find(is_stored).map(|n| &self.traffic.events[*n]) else { return false };
        let body = self.plan.request(stored).body;
        let state = seen.state.as_ref().and_then(|s| s.state.as_ref());
        stored.step >= at_least && state.is_some_and(|s| Sha256Digest::of(&s.0) == Sha256Digest::of(&body))
    }
}

async fn look_at(store: Arc<dyn Inspect>, key: ObjectKey, object: usize) -> anyhow::Result<Seen> {
    Ok(Seen { object, state: store.object(&key).await?, arrivals: store.arrivals(&key).await? })
}

/// Conditional batches sent so far, over all processors that answer.
pub async fn rounds(admins: &[SocketAddr]) -> Option<u64> {
    let mut sum = 0;
    for admin in admins {
        let text = reqwest::get(format!("http://{admin}/metrics")).await.ok()?.text().await.ok()?;
        let line = text.lines().find_map(|l| l.strip_prefix("seriatim_processor_paxos_rounds_total "));
        sum += line?.trim().parse::<u64>().ok()?;
    }
    Some(sum)
}
