//! Makes the raw topic, or checks one that is there: with fewer copies or a shorter memory than configured
//! it would lose records, and is refused.

use std::collections::HashMap;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use seriatim_schemas::kafka::KafkaConfig;

use super::{ANSWER, unavailable};
use crate::error::LogError;

/// Largest record, as the edge bounds it, with room for Kafka's own framing.
pub(crate) const MESSAGE_BYTES_MAX: i64 = 1024 * 1024 + 64 * 1024;

/// What was done, or, with `dry_run`, would be; one line each.
pub async fn migrate(config: &KafkaConfig, dry_run: bool) -> Result<Vec<String>, LogError> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &config.brokers).create().map_err(|e| unavailable(&e))?;
    let topic = config.topic();
    let metadata = admin.inner().fetch_metadata(Some(&topic), ANSWER).map_err(|e| unavailable(&e))?;
    let found = metadata.topics().iter().find(|t| t.name() == topic && !t.partitions().is_empty());
    let Some(found) = found else {
        return create(&admin, config, &topic, dry_run).await;
    };
    let replicas = found.partitions().iter().map(|p| p.replicas().len()).min().unwrap_or(0);
    let settings = settings(&admin, &topic).await?;
    let problems = problems(config, found.partitions().len(), replicas, &settings);
    if problems.is_empty() {
        Ok(vec![format!("topic {topic}: good")])
    } else {
        Err(LogError::Refused(format!("topic {topic}:\n  {}", problems.join("\n  "))))
    }
}

async fn create(
    admin: &AdminClient<DefaultClientContext>,
    config: &KafkaConfig,
    topic: &str,
    dry_run: bool,
) -> Result<Vec<String>, LogError> {
    let (partitions, copies) = (config.partitions, config.replication);
    if dry_run {
        return Ok(vec![format!("would make topic {topic}: {partitions} partitions, {copies} copies")]);
    }
    let (retention, insync, bytes) =
        (config.retention_ms.to_string(), config.min_insync_replicas.to_string(), MESSAGE_BYTES_MAX.to_string());
    let new = NewTopic::new(topic, partitions as i32, TopicReplication::Fixed(copies as i32))
        .set("cleanup.policy", "delete")
        .set("message.timestamp.type", "LogAppendTime")
        .set("retention.ms", &retention)
        .set("min.insync.replicas", &insync)
        .set("unclean.leader.election.enable", "false")
        .set("max.message.bytes", &bytes);
    if !create_topic(admin, new).await? {
        // Whoever made it may have made another one than we would have.
        return Err(LogError::Refused(format!("topic {topic} was made meanwhile: run this again, to check it")));
    }
    Ok(vec![format!("topic {topic}: made with {partitions} partitions, {copies} copies")])
}

/// Makes a topic. False: it was there.
pub(crate) async fn create_topic(
    admin: &AdminClient<DefaultClientContext>,
    new: NewTopic<'_>,
) -> Result<bool, LogError> {
    let options = AdminOptions::new().operation_timeout(Some(ANSWER));
    let mut results = admin.create_topics([&new], &options).await.map_err(|e| unavailable(&e))?;
    match results.pop() {
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(false),
        Some(Err((topic, code))) => Err(LogError::Refused(format!("topic {topic} was not made: {code}"))),
        Some(Ok(_)) | None => Ok(true),
    }
}

async fn settings(admin: &AdminClient<DefaultClientContext>, topic: &str) -> Result<HashMap<String, String>, LogError> {
    let (resource, options) = (ResourceSpecifier::Topic(topic), AdminOptions::new().request_timeout(Some(ANSWER)));
    let answers = admin.describe_configs([&resource], &options).await.map_err(|e| unavailable(&e))?;
    let mut settings = HashMap::new();
    for answer in answers {
        let resource = answer.map_err(|code| LogError::Unavailable(format!("settings of topic {topic}: {code}")))?;
        settings.extend(resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))));
    }
    Ok(settings)
}

/// Why records could be lost with this topic, or objects would change their owner.
fn problems(
    config: &KafkaConfig,
    partitions: usize,
    replicas: usize,
    settings: &HashMap<String, String>,
) -> Vec<String> {
    let mut out = Vec::new();
    let number = |name: &str| settings.get(name).and_then(|text| text.parse::<i64>().ok());
    let text = |name: &str| settings.get(name).map_or("", String::as_str);
    let expected = config.partitions as usize;
    if partitions > expected {
        out.push(format!("has {partitions} partitions, kafka.partitions says {expected}: it was given some; set kafka.partitions to {partitions}"));
    } else if partitions < expected {
        out.push(format!("has {partitions} partitions, kafka.partitions says {expected}: set it back, or give the topic partitions (`kafka-topics.sh --alter --partitions {expected}`)"));
    }
    if replicas < config.replication as usize {
        out.push(format!(
            "has {replicas} copies, kafka.replication says {}: reassign its partitions",
            config.replication
        ));
    }
    let insync = number("min.insync.replicas").unwrap_or(1);
    if insync < i64::from(config.min_insync_replicas) {
        out.push(format!(
            "min.insync.replicas is {insync}, below {}: a record could be lost after its acknowledgement",
            config.min_insync_replicas
        ));
    }
    if text("cleanup.policy") != "delete" {
        out.push(format!("cleanup.policy is {:?}: compaction drops events, set it to delete", text("cleanup.policy")));
    }
    let retention = number("retention.ms").unwrap_or(0);
    let is_shorter = retention >= 0 && (config.retention_ms < 0 || retention < config.retention_ms);
    if is_shorter {
        out.push(format!("retention.ms is {retention}, below {}: a replay could not reach back", config.retention_ms));
    }
    if config.retention_ms >= 0 && (retention < 0 || retention > config.retention_ms) {
        out.push(format!(
            "retention.ms is {retention}, above {}: the log would outlive what is remembered of its events",
            config.retention_ms
        ));
    }
    if text("unclean.leader.election.enable") == "true" {
        out.push("unclean.leader.election.enable is true: acknowledged records could vanish".to_owned());
    }
    if number("max.message.bytes").unwrap_or(0) < MESSAGE_BYTES_MAX {
        out.push(format!("max.message.bytes is below {MESSAGE_BYTES_MAX}: the largest records would be refused"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> HashMap<String, String> {
        let pairs = [
            ("min.insync.replicas", "2"),
            ("cleanup.policy", "delete"),
            ("retention.ms", "1209600000"),
            ("unclean.leader.election.enable", "false"),
            ("max.message.bytes", "1114112"),
        ];
        pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_topic_that_would_lose_records_is_refused() {
        let config = KafkaConfig::default();
        assert!(problems(&config, 16, 3, &good()).is_empty());
        let bad = [
            ("min.insync.replicas", "1", "lost after its acknowledgement"),
            ("cleanup.policy", "compact", "compaction"),
            ("retention.ms", "1000", "reach back"),
            ("retention.ms", "-1", "outlive"),
            ("unclean.leader.election.enable", "true", "vanish"),
            ("max.message.bytes", "1000000", "refused"),
        ];
        for (name, value, reason) in bad {
            let mut settings = good();
            settings.insert(name.to_owned(), value.to_owned());
            let found = problems(&config, 16, 3, &settings);
            assert!(found.len() == 1 && found[0].contains(reason), "{name}={value}: {found:?}");
        }
        assert!(problems(&config, 12, 3, &good())[0].contains("--partitions 16"));
        assert!(problems(&config, 32, 3, &good())[0].contains("set kafka.partitions to 32"));
        assert!(problems(&config, 16, 1, &good())[0].contains("1 copies"));
    }
}
