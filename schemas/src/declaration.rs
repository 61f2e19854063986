//! Declarations: how a source is read. A preset is a declaration that ships with the binary; a source
//! takes one and lays its own fields over it, or says everything itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::BatchRule;
use crate::decode::DecodeStep;
use crate::expression::Expression;
use crate::fetch::FetchRule;
use crate::handshake::Handshake;
use crate::id::Sha256Digest;
use crate::pattern::Pattern;
use crate::pointer::parse_pointer;
use crate::problem::Problem;
use crate::selector::{Place, Selector};
use crate::sequence::SequenceRule;
use crate::template::Template;
use crate::verification::{Recipe, Verify};
use crate::version::{RANK_UNLISTED, Version, VersionError, VersionKind, ZoneOffset, rank_of};

/// Future bound where none is declared: a version further ahead than this is a dead letter.
pub const FUTURE_MAX_S: u64 = 24 * 3600;
/// Dedupe window where none is declared: longer than any provider's retries (30 days) and a margin.
pub const DEDUPE_WINDOW_S: u64 = 35 * 24 * 3600;

/// How the requests of a source are verified and read. Every field may be left to the preset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Declaration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// The provider signs the plain body and sends it with Content-Encoding: gzip: it is inflated before it is
    /// verified. Where it signs what it sends, see `decode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inflate: Option<bool>,
    /// Steps from the body to the JSON document in it; none: the body is the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<Vec<DecodeStep>>,
    /// Where the events of a request stand, when it carries many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchRule>,
    /// The provider's id of the event. Where it yields nothing, the digest of the body is the id; of a request
    /// without a body, that of its query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Expression>,
    /// JSON pointers to values that a retry changes: the digest leaves them out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest_ignores: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<Expression>,
    /// The business object that an event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<Expression>,
    /// The provider's order of an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionRule>,
    /// The provider's time of the event, for `ce_time`; it decides nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Expression>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The number that the provider gives each delta of an object, without gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceRule>,
    /// Event types from lowest to highest, for events of the same version; "*" stands for the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Vec<Pattern>>,
    /// What decides between events of the same version and rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie: Option<Tie>,
    /// Event types that delete their object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tombstones: Option<Vec<Pattern>>,
    /// A version further ahead of our clock than this is a dead letter. Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub future_max_s: Option<u64>,
    /// How long an event id is remembered. Seconds; longer than the provider's retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_window_s: Option<u64>,
    /// What differs by event type; the first entry whose pattern matches counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<EventRule>>,
    /// Where the documents of thin events are. It counts only where the source fetches them: see `fetch` there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchRule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// Requests that are answered and never published; the first that matches counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<Vec<Handshake>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionRule {
    pub from: Expression,
    pub kind: VersionKind,
    /// For kind = "ranked": the states from first to last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<String>,
    /// For a local time without a zone: its offset from UTC, such as "-03:00".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<ZoneOffset>,
}

impl VersionRule {
    pub fn parse(&self, text: &str) -> Result<Version, VersionError> {
        Version::parse_at(text, self.kind, &self.states, self.offset.unwrap_or(ZoneOffset::UTC))
    }
}

/// What an event means for its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The event carries the whole state; the greatest order key is the state.
    Snapshot,
    /// Each event counts once, whatever its version.
    Delta,
    /// The event only says that something changed: its document is fetched. Said by `fetch.types`.
    #[serde(skip)]
    Thin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tie {
    /// The greater event id wins: any order of arrival ends in the same state.
    EventId,
    /// The later in the log wins: only a replay of the same log ends in the same state.
    Log,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventRule {
    /// A pattern over event types.
    #[serde(rename = "type")]
    pub event_type: Pattern,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Expression>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceRule>,
}

/// The answer to a request that is durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// A success status: 200 to 299.
    pub status: u16,
    #[serde(default)]
    pub body: String,
}

/// What holds for one event type of a source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EventPlan<'a> {
    pub mode: Mode,
    pub object: Option<&'a Expression>,
    pub version: Option<&'a VersionRule>,
    /// Of deltas only; their version is then their number.
    pub sequence: Option<&'a SequenceRule>,
}

impl<'a> EventPlan<'a> {
    /// Where the event's place in its object's order stands.
    pub fn order_from(&self) -> Option<&'a Expression> {
        self.sequence.map(|rule| &rule.from).or(self.version.map(|rule| &rule.from))
    }

    /// Whether an event without such a place cannot be decided.
    pub fn needs_order(&self) -> bool {
        self.mode == Mode::Snapshot || self.sequence.is_some()
    }
}

impl Declaration {
    /// This declaration, with the fields of `over` laid over it.
    pub fn overlaid(self, over: Declaration) -> Self {
        Self {
            verify: over.verify.or(self.verify),
            inflate: over.inflate.or(self.inflate),
            decode: over.decode.or(self.decode),
            batch: over.batch.or(self.batch),
            event_id: over.event_id.or(self.event_id),
            digest_ignores: over.digest_ignores.or(self.digest_ignores),
            event_type: over.event_type.or(self.event_type),
            object: over.object.or(self.object),
            version: over.version.or(self.version),
            time: over.time.or(self.time),
            mode: over.mode.or(self.mode),
            sequence: over.sequence.or(self.sequence),
            rank: over.rank.or(self.rank),
            tie: over.tie.or(self.tie),
            tombstones: over.tombstones.or(self.tombstones),
            future_max_s: over.future_max_s.or(self.future_max_s),
            dedupe_window_s: over.dedupe_window_s.or(self.dedupe_window_s),
            events: over.events.or(self.events),
            fetch: over.fetch.or(self.fetch),
            answer: over.answer.or(self.answer),
            handshakes: over.handshakes.or(self.handshakes),
        }
    }

    /// What holds for `event_type`. Without a mode: thin where its document is fetched; else snapshot where a version is
    /// declared, else delta.
    pub fn plan(&self, event_type: &str) -> EventPlan<'_> {
        let rule = self.events.iter().flatten().find(|rule| rule.event_type.matches(event_type));
        let version = rule.map_or(self.version.as_ref(), |r| r.version.as_ref().or(self.version.as_ref()));
        let object = rule.and_then(|r| r.object.as_ref()).or(self.object.as_ref());
        let by_version = if version.is_some() { Mode::Snapshot } else { Mode::Delta };
        let is_thin = self.fetch.as_ref().is_some_and(|fetch| fetch.is_thin(event_type));
        let declared = rule.and_then(|r| r.mode).or(self.mode).unwrap_or(by_version);
        let mode = if is_thin { Mode::Thin } else { declared };
        let sequence = rule.and_then(|r| r.sequence.as_ref()).or(self.sequence.as_ref());
        EventPlan { mode, object, version, sequence: sequence.filter(|_| mode == Mode::Delta) }
    }

    /// How gaps are dealt with: the same for all types that share the sequence.
    pub fn sequence(&self) -> Option<&SequenceRule> {
        self.sequence_rules().map(|(_, rule)| rule).next()
    }

    fn sequence_rules(&self) -> impl Iterator<Item = (String, &SequenceRule)> {
        let of_types = self.events.iter().flatten().enumerate();
        let of_types = of_types.filter_map(|(i, r)| Some((format!("events.{i}.sequence"), r.sequence.as_ref()?)));
        self.sequence.iter().map(|rule| ("sequence".to_owned(), rule)).chain(of_types)
    }

    pub fn rank(&self, event_type: &str) -> u16 {
        self.rank.as_deref().map_or(RANK_UNLISTED, |ranks| rank_of(event_type, ranks))
    }

    pub fn is_tombstone(&self, event_type: &str) -> bool {
        self.tombstones.iter().flatten().any(|p| p.matches(event_type))
    }

    pub fn tie(&self) -> Tie {
        self.tie.unwrap_or(Tie::EventId)
    }

    pub fn future_max_s(&self) -> u64 {
        self.future_max_s.unwrap_or(FUTURE_MAX_S)
    }

    pub fn dedupe_window_s(&self) -> u64 {
        self.dedupe_window_s.unwrap_or(DEDUPE_WINDOW_S)
    }

    /// Every expression that a request is read by, verification left out.
    pub fn expressions(&self) -> Vec<&Expression> {
        let rules = self.events.iter().flatten();
        let of_rules = rules.flat_map(|r| r.object.iter().chain(r.version.iter().map(|v| &v.from)));
        let own = [&self.event_id, &self.event_type, &self.object, &self.time].into_iter().flatten();
        let numbers = self.sequence_rules().map(|(_, rule)| &rule.from);
        own.chain(self.version.iter().map(|v| &v.from)).chain(of_rules).chain(numbers).collect()
    }

    /// Every header that verification or derivation reads and that may be kept, in lower case.
    pub fn header_names(&self) -> Vec<String> {
        let selectors = self.expressions().into_iter().flat_map(Expression::selectors);
        let named = selectors.filter_map(|s| s.place.header()).filter(|name| *name != "authorization");
        let verify = self.verify.iter().flat_map(Verify::kept_headers);
        let mut names: Vec<_> = named.map(str::to_owned).chain(verify).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Names of the settings that a source of this declaration must have.
    pub fn setting_names(&self) -> Vec<&str> {
        let verify = self.verify.iter().flat_map(|v| &v.0).flat_map(Recipe::selectors);
        let handshakes = self.handshakes.iter().flatten().flat_map(Handshake::selectors);
        let all = self.expressions().into_iter().flat_map(Expression::selectors).chain(verify).chain(handshakes);
        let mut names: Vec<_> = all
            .filter_map(|s| match &s.place {
                Place::Setting(name) => Some(name.as_str()),
                _ => None,
            })
            .chain(self.fetch.iter().flat_map(|fetch| fetch.url.settings()))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Places of a request whose value is compared with a setting.
    pub fn compared_with_settings(&self) -> Vec<Place> {
        let is_setting = |selector: &Selector| matches!(selector.place, Place::Setting(_));
        let recipes = self.verify.iter().flat_map(|verify| &verify.0);
        let required = recipes.flat_map(|recipe| &recipe.require).map(|require| (&require.from, &require.equals));
        let asked = self.handshakes.iter().flatten().flat_map(|handshake| &handshake.when);
        let asked = asked.filter_map(|condition| Some((&condition.from, condition.equals.as_ref()?)));
        required.chain(asked).filter(|(_, equals)| is_setting(equals)).map(|(from, _)| from.place.clone()).collect()
    }

    /// Whether the source's public URL is part of what is signed.
    pub fn needs_url(&self) -> bool {
        let of_verify = self.verify.iter().flat_map(|v| &v.0).flat_map(Recipe::templates).any(Template::needs_url);
        of_verify || self.handshakes.iter().flatten().any(Handshake::needs_url)
    }

    /// 16 hex digits that name this declaration.
    pub fn revision(&self) -> String {
        let text = serde_json::to_vec(self).expect("a declaration is plain data");
        hex::encode(&Sha256Digest::of(&text).0[..8])
    }

    /// Mistakes of a whole declaration, with paths relative to it.
    pub fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        match &self.verify {
            None => out.push(Problem::at("verify", "is missing: name a preset, or declare how requests are verified")),
            Some(verify) => out.extend(verify.problems().into_iter().map(|p| p.under("verify"))),
        }
        let every_rule_names_it = self.events.iter().flatten().any(|r| r.event_type.0 == "*" && r.object.is_some());
        if self.object.is_none() && !every_rule_names_it {
            let remedy = "is missing: say where the business object's id stands, such as \"body:/data/id\"";
            out.push(Problem::at("object", remedy));
        }
        out.extend(self.version_problems());
        out.extend(self.fetch_problems());
        out.extend(self.sequence_problems());
        if self.future_max_s == Some(0) {
            out.push(Problem::at("future_max_s", "is 0: every version would be too far ahead"));
        }
        if self.dedupe_window_s == Some(0) {
            out.push(Problem::at("dedupe_window_s", "is 0: no event would be remembered"));
        }
        for (i, text) in self.digest_ignores.iter().flatten().enumerate() {
            if parse_pointer(text).is_none_or(|pointer| pointer.is_empty()) {
                out.push(Problem::at(
                    format!("digest_ignores.{i}"),
                    format!("{text:?} is no JSON pointer such as /attempt"),
                ));
            }
        }
        out.extend(self.batch_problems());
        for (i, handshake) in self.handshakes.iter().flatten().enumerate() {
            let path = format!("handshakes.{i}");
            out.extend(handshake.problems().into_iter().map(|p| p.under(&path)));
        }
        if let Some(answer) = self.answer.as_ref().filter(|a| !(200..300).contains(&a.status)) {
            out.push(Problem::at(
                "answer.status",
                format!("is {}: only a success, 200 to 299, can be configured", answer.status),
            ));
        }
        out
    }

    fn batch_problems(&self) -> Vec<Problem> {
        let mut out: Vec<_> = self.batch.iter().flat_map(|b| b.problems()).map(|p| p.under("batch")).collect();
        let of_batches = |s: &&Selector| matches!(s.place, Place::Batch(_) | Place::BatchIndex | Place::BatchPath);
        let all = self.expressions().into_iter().flat_map(Expression::selectors);
        if let (None, Some(selector)) = (&self.batch, all.into_iter().find(of_batches)) {
            out.push(Problem::at(
                "batch",
                format!("is missing, but {selector} reads of one: say where the items stand"),
            ));
        }
        out
    }

    fn fetch_problems(&self) -> Vec<Problem> {
        let Some(fetch) = &self.fetch else { return Vec::new() };
        let mut out = fetch.problems();
        let of_events =
            self.version.iter().chain(self.events.iter().flatten().filter_map(|rule| rule.version.as_ref()));
        let others: Vec<_> = of_events.map(|rule| rule.kind).filter(|_| !fetch.is_all()).collect();
        match &fetch.version {
            None if !others.is_empty() => out.push(Problem::at(
                "version",
                "is missing: events that are not fetched have versions, and both must be comparable",
            )),
            Some(version) if !others.iter().all(|kind| version.kind.reads(*kind)) => {
                let remedy = "cannot be compared with that of the events: declare the same, or instant for times";
                out.push(Problem::at("version.kind", remedy));
            }
            _ => {}
        }
        out.into_iter().map(|p| p.under("fetch")).collect()
    }

    fn sequence_problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        let only_deltas = "counts only for deltas: say mode = \"delta\"";
        let by_default = self.mode.or(self.version.as_ref().map(|_| Mode::Snapshot)).unwrap_or(Mode::Delta);
        let has_delta = self.events.iter().flatten().any(|rule| rule.mode == Some(Mode::Delta));
        if self.sequence.is_some() && by_default != Mode::Delta && !has_delta {
            out.push(Problem::at("sequence", only_deltas));
        }
        for (i, rule) in self.events.iter().flatten().enumerate().filter(|(_, rule)| rule.sequence.is_some()) {
            let by_version = rule.version.as_ref().map(|_| Mode::Snapshot);
            let mode = rule.mode.or(self.mode).or(by_version).unwrap_or(by_default);
            if mode != Mode::Delta {
                out.push(Problem::at(format!("events.{i}.sequence"), only_deltas));
            }
        }
        let shared = |rule: &SequenceRule| (rule.start, rule.gap, rule.hold_s);
        for (path, rule) in self.sequence_rules() {
            if rule.hold_s == 0 {
                out.push(Problem::at(format!("{path}.hold_s"), "is 0: no gap would be held"));
            }
            if self.sequence().map(shared) != Some(shared(rule)) {
                let message = "has another start, gap or hold_s than one before it: an object has one sequence";
                out.push(Problem::at(path, message));
            }
        }
        out
    }

    fn version_problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        let rules = self.events.iter().flatten().enumerate();
        let named = rules.clone().filter_map(|(i, r)| Some((format!("events.{i}.version"), r.version.as_ref()?)));
        let all: Vec<_> = self.version.iter().map(|v| ("version".to_owned(), v)).chain(named).collect();
        for (path, rule) in &all {
            let ranked = rule.kind == VersionKind::Ranked;
            if ranked && rule.states.is_empty() {
                out.push(Problem::at(format!("{path}.states"), "is missing: list the states from first to last"));
            } else if !ranked && !rule.states.is_empty() {
                out.push(Problem::at(format!("{path}.states"), "counts only with kind = \"ranked\""));
            }
            if rule.kind != all[0].1.kind {
                out.push(Problem::at(
                    format!("{path}.kind"),
                    "differs from another of this source: versions must be comparable",
                ));
            }
        }
        if self.mode == Some(Mode::Snapshot) && self.version.is_none() {
            out.push(Problem::at("mode", "snapshot needs a version: declare one, or mode = \"delta\""));
        }
        for (i, rule) in rules {
            if rule.mode == Some(Mode::Snapshot) && rule.version.is_none() && self.version.is_none() {
                out.push(Problem::at(format!("events.{i}.mode"), "snapshot needs a version"));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests;
