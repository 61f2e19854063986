//! What the processor counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::lane::Pending;
use crate::sink::Effect;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabels {
    pub tenant: String,
    pub source: String,
    pub outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PartitionLabels {
    pub partition: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SinkLabels {
    pub sink: String,
    /// Whether the effects may have been sent before.
    pub resent: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FoundLabels {
    /// `applied` or `not_applied`.
    pub found: &'static str,
}

#[derive(Debug, Clone, Default)]
pub struct ProcessorMetrics {
    pub sent: Family<SinkLabels, Counter>,
    pub superseded: Counter,
    pub dead_effects: Counter,
    /// By partition: objects that wait for a sink, counted once for each.
    pub waiting: Family<PartitionLabels, Gauge>,
    pub parked: Family<PartitionLabels, Gauge>,
    /// By partition: objects that hold events behind a gap which time passes.
    pub gaps: Family<PartitionLabels, Gauge>,
    pub passed: Counter,
    /// By partition: objects whose events wait for the owner of another partition.
    pub held_up: Family<PartitionLabels, Gauge>,
    pub outcomes: Family<OutcomeLabels, Counter>,
    pub resends: Counter,
    pub rounds: Counter,
    pub refusals: Counter,
    pub unknown_commits: Counter,
    /// What became of those, as the next read has found.
    pub resolved_commits: Family<FoundLabels, Counter>,
    pub store_errors: Counter,
    pub sink_errors: Counter,
    pub assigned_partitions: Gauge,
    pub budget_used_bytes: Gauge,
    /// By partition: age of the oldest record that was read and is not done; 0 if there is none.
    pub oldest_pending_ms: Family<PartitionLabels, Gauge>,
}

impl ProcessorMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        let r = registry.sub_registry_with_prefix("seriatim_processor");
        r.register(
            "arrivals",
            "Records that were done, by what they did; duplicates over all is the duplicate rate",
            own.outcomes.clone(),
        );
        r.register("resends", "Effects that were sent again after a crash", own.resends.clone());
        r.register("paxos_rounds", "Conditional batches sent to the store", own.rounds.clone());
        r.register("refused_batches", "Conditional batches that were refused and decided again", own.refusals.clone());
        r.register("unknown_commits", "Conditional batches whose answer was lost", own.unknown_commits.clone());
        r.register(
            "resolved_commits",
            "Batches whose answer was lost, by what the next read has found of them",
            own.resolved_commits.clone(),
        );
        r.register("store_errors", "Calls on the store that failed", own.store_errors.clone());
        r.register("sink_errors", "Groups of effects that a sink did not take", own.sink_errors.clone());
        r.register("sent", "Effects that a sink has taken", own.sent.clone());
        r.register("superseded", "Effects left out since their sink takes only the newest", own.superseded.clone());
        r.register("dead_effects", "Effects that a sink refused for good", own.dead_effects.clone());
        r.register("waiting", "Objects that wait for a sink, counted for each sink", own.waiting.clone());
        r.register("parked", "Of those, how many wait for an operator", own.parked.clone());
        r.register("gaps", "Objects that hold events until a gap is passed", own.gaps.clone());
        r.register("held_up", "Objects whose events wait for the owner of another partition", own.held_up.clone());
        r.register("passed_gaps", "Gaps that have lasted too long", own.passed.clone());
        r.register("assigned_partitions", "Partitions that this process owns", own.assigned_partitions.clone());
        r.register("budget_used_bytes", "Bytes of the log in memory", own.budget_used_bytes.clone());
        r.register(
            "oldest_pending_milliseconds",
            "Age of the oldest record that was read and is not done",
            own.oldest_pending_ms.clone(),
        );
        own
    }

    /// Effects that a sink has taken.
    pub fn sent_to(&self, sink: &str) -> u64 {
        let of = |resent| self.sent.get_or_create(&SinkLabels { sink: sink.to_owned(), resent }).get();
        of("false") + of("true")
    }

    pub fn count_sent(&self, sink: &str, effects: &[Effect]) {
        self.count(sink, effects.iter().map(|effect| effect.resent));
    }

    pub fn count_pending(&self, sink: &str, effects: &[Pending]) {
        self.count(sink, effects.iter().map(|pending| pending.effect.resent));
    }

    fn count(&self, sink: &str, resent: impl Iterator<Item = bool>) {
        let mut counts = [0, 0];
        resent.for_each(|resent| counts[usize::from(resent)] += 1);
        for (count, resent) in counts.into_iter().zip(["false", "true"]).filter(|(count, _)| *count > 0) {
            self.sent.get_or_create(&SinkLabels { sink: sink.to_owned(), resent }).inc_by(count);
        }
    }
}
