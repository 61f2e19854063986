//! The clean topic: what any consumer of CloudEvents reads of it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use seriatim_schemas::key::bucket_of;

use crate::support::{Engine, PATIENCE, Role, System, send_hmac, server, source};

const DECLARE: &str = "declare = { event_id = 'body:/id', event_type = 'body:/type', object = 'body:/o', version = { from = 'body:/v', kind = 'integer' }, tombstones = ['deleted'] }";
const PARTITIONS: u32 = 4;
const OBJECTS: usize = 10;

/// One message of the topic.
#[derive(Debug)]
struct Clean {
    key: String,
    partition: i32,
    headers: HashMap<String, String>,
    value: Option<Vec<u8>>,
}

fn read_all(topic: &str) -> Vec<Clean> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", server("SERIATIM_KAFKA"))
        .set("group.id", "test")
        .create()
        .expect("a consumer");
    let mut all = TopicPartitionList::new();
    let mut left = 0;
    for partition in 0..PARTITIONS as i32 {
        let (first, next) =
            consumer.fetch_watermarks(topic, partition, Duration::from_secs(10)).expect("the topic is there");
        all.add_partition_offset(topic, partition, Offset::Offset(first)).expect("an offset");
        left += next - first;
    }
    consumer.assign(&all).expect("assigned");
    let (mut found, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while found.len() < left as usize {
        assert!(Instant::now() < deadline, "{} of {left} messages came", found.len());
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        let message = message.expect("a message");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let headers = message.headers().expect("headers").iter();
        found.push(Clean {
            key: text(message.key().expect("a key")),
            partition: message.partition(),
            headers: headers.map(|h| (h.key.to_owned(), text(h.value.unwrap_or_default()))).collect(),
            value: message.payload().map(<[u8]>::to_vec),
        });
    }
    found
}

fn body(id: usize, object: usize, version: usize, event_type: &str) -> String {
    format!(r#"{{"id":"e{id}","o":"o{object}","v":{version},"type":"{event_type}"}}"#)
}

/// Also over a crash: each event once but for marked repeats, in order of rev, and a delete without a value.
#[test]
fn the_clean_topic_holds_each_applied_event_in_order() {
    let topic = format!("clean-{}", uuid::Uuid::new_v4().simple());
    let sink = format!("[[sink]]\nname = \"clean\"\nkafka = {{ topic = \"{topic}\", compact = true }}\n");
    let sources = source("hmac", crate::support::SECRET, DECLARE) + &sink;
    let mut system = System::new(Engine::Distributed, &sources);
    system.start(Role::Ingest);
    system.start(Role::Processor);
    let mut sent = Vec::new();
    for version in 0..30 {
        for object in 0..OBJECTS {
            let event_type = if version == 29 && object == 0 { "deleted" } else { "updated" };
            sent.push(body(version * OBJECTS + object, object, version, event_type));
        }
        if version == 15 {
            system.kill(Role::Processor);
            system.start(Role::Processor);
        }
        for body in sent.iter().rev().take(OBJECTS + 2) {
            assert_eq!(send_hmac(&system, "acme", "hmac", body.as_bytes()), 200);
        }
    }
    system.wait_processed();
    let mut revs: HashMap<String, u64> = HashMap::new();
    let mut seen = HashSet::new();
    for message in read_all(&topic) {
        let header = |name: &str| message.headers.get(name).unwrap_or_else(|| panic!("{name}: {message:?}")).as_str();
        assert_eq!((header("ce_specversion"), header("ce_source")), ("1.0", "/tenants/acme/sources/hmac"));
        assert_eq!(message.partition as u32, bucket_of(message.key.as_bytes(), PARTITIONS), "Kafka's own partitioner");
        assert_eq!(message.key, format!("acme/hmac/{}", header("ce_subject")));
        let is_deleted = header("ce_type") == "deleted";
        assert_eq!((message.value.is_none(), header("st_deleted") == "true"), (is_deleted, is_deleted));
        if !seen.insert(header("st_key").to_owned()) {
            assert_eq!(header("st_resent"), "true", "{message:?}");
            continue;
        }
        let rev: u64 = header("st_rev").parse().expect("a number");
        assert_eq!(rev, revs.insert(message.key.clone(), rev).unwrap_or(0) + 1, "in order, and none left out");
        let value = message.value.map(|v| String::from_utf8(v).expect("text"));
        assert!(is_deleted || sent.contains(&value.expect("a value")), "the bytes are the provider's");
    }
    assert_eq!(seen.len(), sent.len());
}
