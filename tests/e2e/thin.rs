//! Thin events: they say that something changed, and the document is fetched. Whatever the provider's API does, what is
//! stored is what it said last, it is asked no more often than was agreed, and nobody else waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::provider::{Asked, Provider, document, status, with_header};
use crate::support::{Engine, Role, SECRET, System, block_on, send_hmac, sign, source_of, wait_until};

on_each_engine!(
    a_thousand_events_of_an_object_cost_three_fetches,
    the_agreed_rate_is_never_exceeded,
    a_document_that_is_not_there_yet_is_asked_for_again,
    what_stays_missing_is_a_dead_letter_that_can_be_redriven,
    a_document_is_deleted_by_the_event_that_says_so,
    an_older_document_changes_nothing,
    a_redirect_is_not_followed,
    kills_between_event_and_document_lose_nothing,
    one_tenants_provider_that_is_away_holds_up_nobody,
);

const OBJECT: &str =
    "declare = { object = 'body:/o', event_type = 'body:/t', event_id = 'body:/id', tombstones = ['gone'],";

/// A source of thin events; `rule` and `config` are further fields of `declare.fetch` and of `fetch`.
fn source(name: &str, provider: &Provider, rule: &str, config: &str) -> String {
    let url = provider.url(&format!("/{name}/{{object}}"));
    let fetch = format!(
        "fetch = {{ token = {{ value = 'to-k3n' }}, allow_networks = ['127.0.0.0/8'], retry_min_ms = 50, retry_max_ms = 400, {config} }}"
    );
    source_of(name, "hmac", SECRET, &format!("{fetch}\n{OBJECT} fetch = {{ url = '{url}', {rule} }} }}"))
}

fn event(id: &str, object: &str, event_type: &str) -> Vec<u8> {
    format!(r#"{{"id":"{id}","o":"{object}","t":"{event_type}"}}"#).into_bytes()
}

fn send(system: &System, tenant: &str, id: &str, object: &str, event_type: &str) {
    assert_eq!(send_hmac(system, tenant, "hmac", &event(id, object, event_type)), 200, "{id}");
}

fn object(system: &System, tenant: &str, object: &str) -> Value {
    system.json(&["object", "get", tenant, "hmac", object])
}

/// The state of an object, once it is there.
fn state(system: &System, tenant: &str, of: &str) -> Value {
    object(system, tenant, of)["state"].clone()
}

/// Effects of an object at the sink, in their order.
fn effects(system: &System, of: &str) -> Vec<Value> {
    system.effects().into_iter().filter(|effect| effect["object"] == of).collect()
}

fn dead(system: &System) -> Vec<Value> {
    system.json(&["dead", "list"]).as_array().cloned().unwrap_or_default()
}

/// Whether an operator finds something that waits.
fn waits(system: &System) -> bool {
    system.json(&["object", "parked"]).as_array().is_some_and(|all| !all.is_empty())
}

fn a_thousand_events_of_an_object_cost_three_fetches(engine: Engine) {
    let provider = Provider::start();
    let changes = Arc::new(AtomicU64::new(0));
    let now = changes.clone();
    provider.answer(move |_| document(format!(r#"{{"changes":{}}}"#, now.load(Ordering::SeqCst))));
    let mut system = System::new(engine, &source("a", &provider, "", ""));
    system.start(Role::Ingest);
    let client = reqwest::Client::new();
    let post = async |n: usize| {
        let body = event(&format!("e{n}"), "o/1", "changed");
        let request = client.post(system.url("a", "hmac")).header("x-signature", sign(SECRET, &body)).body(body);
        assert_eq!(request.send().await.expect("an answer").status(), 200);
    };
    block_on(async {
        for from in (0..1000).step_by(50) {
            changes.store(from as u64 + 50, Ordering::SeqCst);
            futures::future::join_all((from..from + 50).map(&post)).await;
        }
    });
    system.start(Role::Processor);
    wait_until("fetched", || state(&system, "a", "o/1")["changes"] == 1000);
    system.wait_processed();
    let fetches = provider.asked_for("/a/o%2F1");
    println!("{fetches} fetches for 1000 events");
    assert!((1..=3).contains(&fetches), "{fetches} fetches");
    let asked = provider.asked().remove(0);
    assert_eq!(asked.headers["authorization"], "Bearer to-k3n");
    // Thin events are sent to nobody: what changed is.
    let sent = effects(&system, "o/1");
    assert!(sent.iter().all(|effect| effect["type"] == "fetched"), "{sent:?}");
    assert_eq!(sent.last().expect("an effect")["data"]["changes"], 1000, "{sent:?}");
    // A repeat of an event changes nothing, and asks nobody.
    send(&system, "a", "e7", "o/1", "changed");
    system.wait_processed();
    assert_eq!(provider.asked_for("/a/o%2F1"), fetches);
    let arrivals = system.json(&["event", "trace", "a", "hmac", "e7"]);
    let outcomes: Vec<_> = arrivals.as_array().expect("arrivals").iter().map(|a| &a["outcome"]).collect();
    assert_eq!(outcomes, ["applied", "duplicate"], "{arrivals}");
    // What is fetched and is what is known is no change.
    send(&system, "a", "e1001", "o/1", "changed");
    wait_until("asked once more", || provider.asked_for("/a/o%2F1") == fetches + 1);
    system.wait_processed();
    assert_eq!(effects(&system, "o/1").len(), sent.len());
}

fn the_agreed_rate_is_never_exceeded(engine: Engine) {
    const PER_S: usize = 20;
    let provider = Provider::start();
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    // The provider keeps its own count, and once asks to be left alone.
    provider.answer(move |asked| match count.fetch_add(1, Ordering::SeqCst) {
        30 => with_header(429, "retry-after", "1".to_owned()),
        _ => document(format!(r#"{{"at":"{}"}}"#, asked.target)),
    });
    let mut system = System::new(engine, &source("a", &provider, "", &format!("rate_per_s = {PER_S}")));
    system.start(Role::All);
    for n in 0..100 {
        send(&system, "a", &format!("e{n}"), &format!("o{n}"), "changed");
    }
    wait_until("all fetched", || (0..100).all(|n| state(&system, "a", &format!("o{n}"))["at"] == format!("/a/o{n}")));
    let times: Vec<Instant> = provider.asked().iter().map(|asked| asked.at).collect();
    for (index, from) in times.iter().enumerate() {
        let within = times[index..].iter().take_while(|at| at.duration_since(*from) < Duration::from_secs(1)).count();
        // The clock of the one that asks is not that of the one that counts: a request may be late on its way.
        assert!(within <= PER_S + 2, "{within} requests within a second");
    }
    let quiet = times[31..].iter().map(|at| at.duration_since(times[30])).min().expect("more");
    println!("{} requests, the next after Retry-After: 1 came {quiet:?} later", times.len());
    assert_eq!(dead(&system).len(), 0);
}

fn a_document_that_is_not_there_yet_is_asked_for_again(engine: Engine) {
    let provider = Provider::start();
    let is_there = Arc::new(AtomicBool::new(false));
    let there = is_there.clone();
    provider.answer(move |asked: &Asked| match asked.target.as_str() {
        "/a/new" if !there.load(Ordering::SeqCst) => status(404),
        _ => document(r#"{"is":"there"}"#),
    });
    let mut system = System::new(engine, &source("a", &provider, "", ""));
    system.start(Role::All);
    send(&system, "a", "e1", "new", "created");
    wait_until("asked", || provider.asked_for("/a/new") > 0);
    send(&system, "a", "e2", "other", "created");
    wait_until("the other is not held up", || state(&system, "a", "other")["is"] == "there");
    let object = object(&system, "a", "new");
    assert!(object["state"].is_null() && object["deleted"] != true, "404 deletes nothing: {object}");
    is_there.store(true, Ordering::SeqCst);
    wait_until("there", || state(&system, "a", "new")["is"] == "there");
    assert!(provider.asked_for("/a/new") >= 2);
    wait_until("nothing waits", || !waits(&system));
    assert_eq!(dead(&system).len(), 0);
}

fn what_stays_missing_is_a_dead_letter_that_can_be_redriven(engine: Engine) {
    let provider = Provider::start();
    let mut system = System::new(engine, &source("a", &provider, "", "missing_after_s = 1"));
    system.start(Role::All);
    send(&system, "a", "e1", "o1", "changed");
    wait_until("a dead letter", || dead(&system).len() == 1);
    let letter = dead(&system).remove(0);
    assert_eq!(letter["cause"], "refused");
    assert!(letter["detail"].as_str().is_some_and(|detail| detail.contains("status 404")), "{letter}");
    provider.answer(|_| document(r#"{"is":"there"}"#));
    let redriven = system.cli(&["dead", "redrive", "--all"]);
    assert!(redriven.status.success(), "{}", String::from_utf8_lossy(&redriven.stderr));
    wait_until("fetched", || state(&system, "a", "o1")["is"] == "there");
    wait_until("no letter is left", || dead(&system).is_empty());
}

fn a_document_is_deleted_by_the_event_that_says_so(engine: Engine) {
    let provider = Provider::start();
    provider.answer(|_| document(r#"{"is":"there"}"#));
    let mut system = System::new(engine, &source("a", &provider, "", ""));
    system.start(Role::All);
    send(&system, "a", "e1", "o1", "changed");
    wait_until("fetched", || state(&system, "a", "o1")["is"] == "there");
    provider.answer(|_| status(404));
    send(&system, "a", "e2", "o1", "gone");
    wait_until("deleted", || object(&system, "a", "o1")["deleted"] == true);
    wait_until("the delete was sent", || effects(&system, "o1").last().expect("an effect")["deleted"] == true);
    // One that was late finds nothing any more, and there is nothing to wait for.
    send(&system, "a", "e3", "o1", "changed");
    system.wait_processed();
    wait_until("nothing waits", || !waits(&system));
    assert_eq!(object(&system, "a", "o1")["deleted"], true);
    // Made again, it is there again.
    provider.answer(|_| document(r#"{"is":"again"}"#));
    send(&system, "a", "e4", "o1", "changed");
    wait_until("there again", || state(&system, "a", "o1")["is"] == "again");
    assert_ne!(object(&system, "a", "o1")["deleted"], true);
}

fn an_older_document_changes_nothing(engine: Engine) {
    let provider = Provider::start();
    let answers = Arc::new(AtomicUsize::new(0));
    let count = answers.clone();
    // A copy that lags behind answers the second time.
    provider.answer(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => document(r#"{"updated":"2026-01-01T00:00:02Z","n":2}"#),
        1 => document(r#"{"updated":"2026-01-01T00:00:01Z","n":1}"#),
        2 => status(500),
        _ => document(r#"{"updated":"2026-01-01T00:00:03Z","n":3}"#),
    });
    let rule = "version = { from = 'body:/updated', kind = 'rfc3339' }";
    let mut system = System::new(engine, &source("a", &provider, rule, ""));
    system.start(Role::All);
    send(&system, "a", "e1", "o1", "changed");
    wait_until("fetched", || state(&system, "a", "o1")["n"] == 2);
    send(&system, "a", "e2", "o1", "changed");
    wait_until("asked again", || answers.load(Ordering::SeqCst) >= 2);
    system.wait_processed();
    assert_eq!(state(&system, "a", "o1")["n"], 2, "the older one is stale");
    send(&system, "a", "e3", "o1", "changed");
    wait_until("the newest is there", || state(&system, "a", "o1")["n"] == 3);
    let sent = || effects(&system, "o1").iter().map(|effect| effect["data"]["n"].clone()).collect::<Vec<_>>();
    wait_until("both were sent", || sent().len() >= 2);
    assert_eq!(sent(), [2, 3]);
}

fn a_redirect_is_not_followed(engine: Engine) {
    let (provider, other) = (Provider::start(), Provider::start());
    other.answer(|_| document(r#"{"is":"elsewhere"}"#));
    let places = [other.url("/a/o1"), "http://169.254.169.254/latest/meta-data/".to_owned()];
    let count = AtomicUsize::new(0);
    provider.answer(move |_| match places.get(count.fetch_add(1, Ordering::SeqCst)) {
        Some(place) => with_header(302, "location", place.clone()),
        None => document(r#"{"is":"here"}"#),
    });
    let mut system = System::new(engine, &source("a", &provider, "", ""));
    system.start(Role::All);
    send(&system, "a", "e1", "o1", "changed");
    wait_until("fetched", || state(&system, "a", "o1")["is"] == "here");
    assert_eq!(other.asked().len(), 0, "nobody else was asked");
}

fn kills_between_event_and_document_lose_nothing(engine: Engine) {
    let provider = Provider::start();
    let current = Arc::new(AtomicU64::new(0));
    let (now, flaky) = (current.clone(), AtomicUsize::new(0));
    provider.answer(move |asked| match flaky.fetch_add(1, Ordering::SeqCst) % 4 {
        0 => status(503),
        _ => document(format!(r#"{{"of":"{}","n":{}}}"#, asked.target, now.load(Ordering::SeqCst))),
    });
    let mut system = System::new(engine, &source("a", &provider, "", "rate_per_s = 0, delay_ms = 20"));
    system.start(Role::Ingest);
    for round in 1..=4_u64 {
        system.start(Role::Processor);
        current.store(round, Ordering::SeqCst);
        for n in 0..40 {
            send(&system, "a", &format!("e{round}-{n}"), &format!("o{}", n % 8), "changed");
        }
        std::thread::sleep(Duration::from_millis(50 * round));
        system.kill(Role::Processor);
    }
    system.start(Role::Processor);
    wait_until("all as the provider has it", || (0..8).all(|n| state(&system, "a", &format!("o{n}"))["n"] == 4));
    wait_until("nothing waits", || !waits(&system));
    system.wait_processed();
    assert_eq!(dead(&system).len(), 0);
    // What the sink has last is the state, and it never went back.
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for effect in system.effects() {
        let (of, n) = (effect["object"].as_str().expect("text"), effect["data"]["n"].as_u64().expect("a number"));
        let before = last.insert(of.to_owned(), n).unwrap_or(0);
        assert!(before <= n || effect["resent"] == true, "{of} went back from {before} to {n}");
    }
    assert!(last.values().all(|n| *n == 4), "{last:?}");
}

fn one_tenants_provider_that_is_away_holds_up_nobody(engine: Engine) {
    let (away, well) = (Provider::start(), Provider::start());
    away.answer(|_| status(503));
    well.answer(|_| document(r#"{"is":"there"}"#));
    let sources = source("a", &away, "", "") + &source("b", &well, "", "rate_per_s = 0, delay_ms = 0");
    let mut system = System::new(engine, &sources);
    system.start(Role::All);
    for n in 0..50 {
        send(&system, "a", &format!("e{n}"), &format!("o{n}"), "changed");
    }
    wait_until("asked in vain", || away.asked().len() >= 5);
    send(&system, "b", "e1", "o1", "changed");
    wait_until("the other is fetched", || state(&system, "b", "o1")["is"] == "there");
    wait_until("the log is done", || {
        system.json(&["lag"]).as_array().is_some_and(|all| all.iter().all(|l| l["lag"] == 0))
    });
    let asked = away.asked().len();
    assert!(asked < 50, "the breaker let {asked} requests through");
    away.answer(|_| document(r#"{"is":"back"}"#));
    wait_until("all fetched", || (0..50).all(|n| state(&system, "a", &format!("o{n}"))["is"] == "back"));
}
