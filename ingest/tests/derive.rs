//! Requests as providers send them, by their presets: what each event is, what it is about and where it stands in
//! its object's order. The expectations are written from what the provider means, not from the preset.

mod support;

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use bytes::Bytes;
use jiff::Timestamp;
use seriatim_ingest::records::{Content, Writer, content};
use seriatim_ingest::sources::Sources;
use seriatim_ingest::verify::Verified;
use seriatim_ingest::webhook::Received;
use seriatim_schemas::id::IdFrom;
use seriatim_schemas::key::RecordKey;
use seriatim_schemas::preset::{ExampleEvent, ExampleRequest, Preset};
use seriatim_schemas::record::Record;
use seriatim_schemas::source::SecretRef;

use support::source;

fn received(preset: &str, request: &ExampleRequest) -> Received {
    let header = |(name, value): (&String, &String)| {
        (HeaderName::try_from(name.as_str()).expect("a name"), HeaderValue::try_from(value).expect("a value"))
    };
    Received {
        tenant: "t".to_owned(),
        name: preset.to_owned(),
        method: Method::from_bytes(request.method.as_bytes()).expect("a method"),
        target: format!("/in/t/{preset}?{}", request.query),
        query: request.query.clone(),
        headers: request.headers.iter().map(header).collect::<HeaderMap>(),
        body: Bytes::copy_from_slice(request.body.as_bytes()),
        at: Timestamp::UNIX_EPOCH,
    }
}

/// A text that is a key for every algorithm that the presets use.
fn secret(preset: &str) -> SecretRef {
    let declaration = Preset::named(preset).expect("a preset").declare;
    let verify = declaration.verify.expect("verifies");
    let text = support::any_secret(&verify.0[0]);
    SecretRef::Value(text)
}

fn records(preset: &str, request: &ExampleRequest) -> Vec<Record> {
    let sources = Sources::new(vec![source(preset, preset, vec![secret(preset)], &[])], [0; 32]).expect("a source");
    let live = sources.get("t", preset).expect("declared");
    let received = received(preset, request);
    let writer = Writer { source: &live, received: &received, request: uuid::Uuid::nil() };
    let verified = Verified { secret: String::new(), claims: request.claims.clone() };
    match content(&live, &received) {
        Ok(Content::Many(document, items)) => items.iter().map(|i| writer.item(&document, i, &verified)).collect(),
        Ok(Content::One(document)) => vec![writer.one(Ok(document), &verified)],
        Err(error) => vec![writer.one(Err(error), &verified)],
    }
}

fn check(record: &Record, expected: &ExampleEvent) -> Result<(), String> {
    let object = match &record.key {
        RecordKey::Object(key) => &key.object,
        _ => return Err(format!("unroutable: {:?}", record.problem)),
    };
    let event_id = (record.id_from != IdFrom::Digest).then(|| record.event_id.clone());
    let found = (object, &event_id, &record.event_type, &record.version);
    let wanted = (&expected.object, &expected.event_id, &expected.event_type, &expected.version);
    if found != wanted {
        return Err(format!("found {found:?}\n      not {wanted:?}"));
    }
    record.problem.clone().map_or(Ok(()), Err)
}

/// The version must be readable, or the event would be a dead letter.
fn check_version(preset: &str, record: &Record) -> Result<(), String> {
    let declaration = Preset::named(preset).expect("a preset").declare;
    let plan = declaration.plan(&record.event_type);
    let (Some(rule), Some(text)) = (plan.version, &record.version) else { return Ok(()) };
    rule.parse(text).map(|_| ()).map_err(|error| error.to_string())
}

/// Where its document would be fetched from.
fn check_fetch(preset: &str, record: &Record, expected: &ExampleEvent) -> Result<(), String> {
    let fetch = Preset::named(preset).expect("a preset").declare.fetch;
    let fetch = fetch.filter(|fetch| fetch.is_thin(&record.event_type));
    let RecordKey::Object(key) = &record.key else { return Err("unroutable".to_owned()) };
    let url = fetch.map(|fetch| fetch.url.of(&key.object, &BTreeMap::new(), &record.value).map_err(|e| e.to_string()));
    let url = url.transpose()?;
    if url == expected.fetch { Ok(()) } else { Err(format!("fetched from {url:?}\n      not {:?}", expected.fetch)) }
}

#[test]
fn events_of_every_preset_are_read_as_the_provider_means_them() {
    let (mut failed, mut count) = (Vec::new(), 0);
    for preset in Preset::names() {
        let example = Preset::example(preset).expect("listed with its preset");
        for (n, request) in example.requests.iter().enumerate() {
            let found = records(preset, request);
            if found.len() != request.events.len() {
                failed.push(format!("{preset} {n}: {} events, not {}", found.len(), request.events.len()));
            }
            for (i, (record, expected)) in found.iter().zip(&request.events).enumerate() {
                count += 1;
                let result = check(record, expected)
                    .and_then(|()| check_version(preset, record))
                    .and_then(|()| check_fetch(preset, record, expected));
                failed.extend(result.err().map(|error| format!("{preset} {n}.{i}: {error}")));
            }
        }
    }
    println!("{count} events");
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
}

/// PayPal's signature covers a CRC-32 of the body, which anyone can keep while changing the rest.
#[test]
fn ids_that_only_a_checksum_covers_are_stored_with_the_digest() {
    for request in Preset::example("paypal").expect("listed with its preset").requests {
        let found = records("paypal", &request);
        assert!(found.iter().all(|record| record.id_from == IdFrom::UnsignedHeader), "{found:?}");
    }
}
