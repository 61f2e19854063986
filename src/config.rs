//! The configuration file, `seriatim.toml`, and what the environment lays over it:
//! `SERIATIM_INGEST__LISTEN=0.0.0.0:8080` sets `ingest.listen`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_ingest::config::IngestConfig;
use seriatim_processor::config::{CqlConfig, ProcessorConfig};
use seriatim_processor::outbound::{Guard, Network};
use seriatim_processor::sink::SinkPolicy;
#[cfg(feature = "kafka")]
use seriatim_processor::sink::kafka::CleanTopicConfig;
use seriatim_processor::sink::push::{Body, PushConfig};
use seriatim_schemas::document::{self, Overlay};
use seriatim_schemas::kafka::KafkaConfig;
use seriatim_schemas::name::check_sink_name;
use seriatim_schemas::problem::Problem;
use seriatim_schemas::source::{Source, SourceConfig};

use crate::api::auth::{self, TokenConfig};
use crate::api::client::TOKEN_VARIABLE;

/// Prefix of environment variables that lie over the file.
const ENV_PREFIX: &str = "SERIATIM_";
/// Variables with the prefix that are not settings.
const ENV_NOT_SETTINGS: [&str; 6] =
    ["SERIATIM_CONFIG", "SERIATIM_KAFKA", "SERIATIM_CQL", "SERIATIM_CACHE", "SERIATIM_SERVER", TOKEN_VARIABLE];

pub const FILE: &str = "seriatim.toml";

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which log and store.
    pub engine: Engine,
    /// Folder of the embedded log and store.
    pub data: PathBuf,
    pub embedded: EmbeddedConfig,
    pub kafka: KafkaConfig,
    pub cql: CqlConfig,
    pub admin: AdminConfig,
    pub ingest: IngestConfig,
    pub processor: ProcessorConfig,
    /// Configured senders.
    pub source: Vec<SourceConfig>,
    /// Where effects go.
    pub sink: Vec<SinkConfig>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// SQLite: one machine, no servers.
    #[default]
    Embedded,
    /// Kafka, and ScyllaDB or Cassandra.
    Distributed,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedConfig {
    /// Largest size of the log's file; past it senders get 503. 0: the disk is the bound.
    pub log_bytes_max: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Where /livez, /readyz and /metrics are served, and the admin API under /v1.
    pub listen: SocketAddr,
    /// Who may use the admin API; without any it answers nobody.
    pub tokens: Vec<TokenConfig>,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 9464)), tokens: Vec::new() }
    }
}

/// Where effects go: a name, and one kind.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkConfig {
    /// [a-z0-9-]{1,63}
    pub name: String,
    /// What is sent, how fast, and what becomes of what is not taken.
    #[serde(default)]
    pub policy: SinkPolicy,
    /// A file of JSON lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_lines: Option<JsonLinesConfig>,
    /// An HTTP endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PushConfig>,
    /// A topic of clean events.
    #[cfg(feature = "kafka")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<CleanTopicConfig>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonLinesConfig {
    pub path: PathBuf,
}

impl SinkConfig {
    /// The word for what it is.
    pub fn kind(&self) -> &'static str {
        match (&self.json_lines, &self.push) {
            (Some(_), _) => "json_lines",
            (_, Some(_)) => "push",
            _ => "kafka",
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let mut out: Vec<_> = self.policy.problems().into_iter().map(|p| p.under("policy")).collect();
        #[cfg(feature = "kafka")]
        let has_topic = self.kafka.is_some();
        #[cfg(not(feature = "kafka"))]
        let has_topic = false;
        let kinds = [self.json_lines.is_some(), self.push.is_some(), has_topic];
        if kinds.iter().filter(|is_set| **is_set).count() != 1 {
            let remedy =
                "needs one kind, such as json_lines = { path = \"effects.jsonl\" } or push = { url = \"https://..\" }";
            out.push(Problem::at("", remedy));
        }
        let Some(push) = &self.push else { return out };
        if let Err(error) = Guard::new(push.allow_networks.clone()).check_url(&push.url) {
            out.push(Problem::at("push.url", error.to_string()));
        }
        if push.batch_max > 0 && push.body == Body::Received {
            out.push(Problem::at("push.batch_max", "counts only with body = \"envelope\""));
        }
        if push.timeout_ms == 0 || push.timeout_ms > self.policy.wait_after_ms {
            out.push(Problem::at("push.timeout_ms", "must be above 0, and at most policy.wait_after_ms"));
        }
        out
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: Engine::default(),
            data: PathBuf::from("data"),
            embedded: EmbeddedConfig::default(),
            kafka: KafkaConfig::default(),
            cql: CqlConfig::default(),
            admin: AdminConfig::default(),
            ingest: IngestConfig::default(),
            processor: ProcessorConfig::default(),
            source: Vec::new(),
            sink: Vec::new(),
        }
    }
}

impl Config {
    /// Reads `path`, lays the environment over it, validates. The error names every mistake with its line.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{}: write one, or run `seriatim dev`, which needs none", path.display()))?;
        Self::read(&path.display().to_string(), &text, std::env::vars())
    }

    /// The defaults, with the environment laid over them.
    pub fn from_environment() -> anyhow::Result<Self> {
        Self::read("the environment", "", std::env::vars())
    }

    fn read(name: &str, text: &str, variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Self> {
        let overlays: Vec<_> = variables.filter_map(|(variable, text)| overlay(variable, text)).collect();
        let result = document::read(text, &overlays, Self::problems);
        result.map_err(|problems| {
            let rendered: Vec<_> = problems.iter().map(|p| p.render(name, text)).collect();
            anyhow::anyhow!("{}", rendered.join("\n\n"))
        })
    }

    fn problems(&self) -> Vec<Problem> {
        let mut out = Vec::new();
        let mut section = |name: &str, problems: Vec<Problem>| out.extend(problems.into_iter().map(|p| p.under(name)));
        section("admin", auth::problems(&self.admin.tokens));
        section("ingest", self.ingest.problems());
        section("processor", self.processor.problems());
        if self.engine == Engine::Distributed {
            section("kafka", self.kafka.problems());
            section("cql", self.cql.problems(self.kafka.partitions));
        }
        for (i, source) in self.source.iter().enumerate() {
            section(&format!("source.{i}"), source.resolve().err().unwrap_or_default());
            let networks = source.fetch.iter().flat_map(|fetch| &fetch.allow_networks);
            let wrong = networks.filter_map(|text| text.parse::<Network>().err());
            let wrong = wrong.map(|error| Problem::at("fetch.allow_networks", error.to_string())).collect();
            section(&format!("source.{i}"), wrong);
            let known = |name: &&String| !self.sink.iter().any(|sink| sink.name == **name);
            for name in source.sinks.iter().flatten().filter(known) {
                section(
                    &format!("source.{i}"),
                    vec![Problem::at("sinks", format!("{name:?} is no sink of this file"))],
                );
            }
            let twin = self.source[..i].iter().any(|s| s.tenant == source.tenant && s.name == source.name);
            if twin {
                section(
                    &format!("source.{i}"),
                    vec![Problem::at("name", "is declared more than once for this tenant")],
                );
            }
        }
        for (i, sink) in self.sink.iter().enumerate() {
            let mut problems = Vec::new();
            if let Err(error) = check_sink_name(&sink.name) {
                problems.push(Problem::at("name", error.to_string()));
            }
            if self.sink[..i].iter().any(|s| s.name == sink.name) {
                problems.push(Problem::at("name", "is used more than once"));
            }
            problems.extend(sink.problems());
            section(&format!("sink.{i}"), problems);
        }
        out.extend(self.horizon_problems());
        out
    }

    /// An event row must outlive the log: else a record that is read again would be applied again.
    fn horizon_problems(&self) -> Vec<Problem> {
        const MARGIN_S: i64 = 24 * 3600;
        if self.engine == Engine::Embedded || self.kafka.retention_ms < 0 {
            return Vec::new();
        }
        let horizon_s = self.kafka.retention_ms / 1000 + MARGIN_S;
        let too_short = |(i, source): (usize, &SourceConfig)| {
            let window_s = source.resolve().ok()?.declaration.dedupe_window_s();
            (i64::try_from(window_s).unwrap_or(i64::MAX) < horizon_s).then(|| {
                let message = format!("remembers events for {window_s} s, less than kafka.retention_ms and a day ({horizon_s} s): lengthen one or shorten the other");
                Problem::at(format!("source.{i}.declare.dedupe_window_s"), message)
            })
        };
        self.source.iter().enumerate().filter_map(too_short).collect()
    }

    /// All sources, resolved; the configuration was validated.
    pub fn sources(&self) -> Vec<Source> {
        self.source.iter().map(|s| s.resolve().expect("validated when it was read")).collect()
    }
}

/// `SERIATIM_A__B_C` is `a.b_c`.
fn overlay(variable: String, text: String) -> Option<Overlay> {
    if ENV_NOT_SETTINGS.contains(&variable.as_str()) || variable.starts_with("SERIATIM_TEST_") {
        return None;
    }
    let path = variable.strip_prefix(ENV_PREFIX)?.to_ascii_lowercase().replace("__", ".");
    Some(Overlay { variable, path, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, variables: &[(&str, &str)]) -> anyhow::Result<Config> {
        Config::read("seriatim.toml", text, variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
    }

    #[test]
    fn the_environment_lies_over_the_file() {
        let variables =
            [("SERIATIM_INGEST__LISTEN", "127.0.0.1:1"), ("SERIATIM_ENGINE", "distributed"), ("OTHER", "x")];
        let config = read("ingest.listen = \"127.0.0.1:2\"", &variables).expect("valid");
        assert_eq!(config.ingest.listen.port(), 1);
        assert_eq!(config.engine, Engine::Distributed);
        let error = read("", &[("SERIATIM_INGEST__LISTN", "x")]).expect_err("a typo").to_string();
        assert!(error.contains("ingest.listn"), "{error}");
    }

    #[test]
    fn relations_between_settings_are_checked() {
        let error = read("engine = \"distributed\"\nkafka.partitions = 12\n", &[])
            .expect_err("12 does not divide 1024")
            .to_string();
        assert!(error.contains("cql.buckets: must be a multiple of kafka.partitions (12)"), "{error}");
        let text = "engine = \"distributed\"\n[[source]]\ntenant = \"a\"\nname = \"b\"\npreset = \"stripe\"\nsecrets = [{ value = \"s\" }]\ndeclare.dedupe_window_s = 3600\n";
        let error = read(text, &[]).expect_err("too short").to_string();
        assert!(
            error.starts_with("seriatim.toml:7:27: source.0.declare.dedupe_window_s: remembers events for 3600 s"),
            "{error}"
        );
        let error = read("ingest.body_bytes_max = 2000000\n", &[]).expect_err("too large").to_string();
        assert!(error.contains("must fit into one record"), "{error}");
    }

    #[test]
    fn the_json_schema_in_the_repository_is_current() {
        let schema = serde_json::to_string_pretty(&schemars::schema_for!(Config)).expect("plain data") + "\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/json/config.schema.json");
        if std::env::var_os("SERIATIM_TEST_WRITE").is_some() {
            std::fs::write(path, &schema).expect("written");
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == schema,
            "run the tests once with SERIATIM_TEST_WRITE=1 and commit schemas/json/config.schema.json"
        );
    }
}
