//! Between the decision on an event and its receiver: what dies, what is refused, and what is told twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    BY_VERSION, Delivery, dead_letters, deliver, deliver_all, get_object, hmac_source, signed, statuses, text,
};
use crate::receiver::{Answer, Receiver};
use crate::support::{Engine, Role, System, get_text, wait_until};

const DELTA: &str = "declare = { object = 'body:/o', mode = 'delta' }";

/// A source of tenant `acme`, and a sink of its name that pushes to the path of that name.
fn pushed(name: &str, receiver: &Receiver, declare: &str) -> String {
    let source = hmac_source("acme", name, &format!("sinks = [\"{name}\"]\n{declare}"));
    let url = receiver.url(&format!("/{name}"));
    format!(
        "{source}[[sink]]\nname = \"{name}\"\n[sink.policy]\nretry_min_ms = 50\nretry_max_ms = 500\n\
         [sink.push]\nurl = \"{url}\"\ntimeout_ms = 2000\nallow_networks = [\"127.0.0.0/8\"]\n"
    )
}

/// Sends a body to a source; it must be answered with success.
fn send(system: &System, source: &str, body: &str) {
    let answer = deliver(&signed(system, "acme", source, body));
    assert!((200..300).contains(&answer.status), "{body}: {answer:?}");
}

/// Refuses this event for good, and takes all others.
fn refuse(receiver: &Receiver, id: &'static str) {
    receiver.answer(move |push| Answer::Status(if push.json()["id"] == id { 400 } else { 200 }));
}

fn take_all(receiver: &Receiver) {
    receiver.answer(|_| Answer::Status(200));
}

/// Ids of the events of all that was received at a path, in its order.
fn received(receiver: &Receiver, path: &str) -> Vec<String> {
    receiver.pushes(path).iter().map(|push| text(&push.json(), "id").to_owned()).collect()
}

/// Idempotency keys of events of one object.
fn keys(source: &str, object: &str, ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| format!("acme/{source}/{object}/{id}")).collect()
}

/// The rows that a command prints; none where it finds nothing.
fn rows(system: &System, arguments: &[&str]) -> Vec<Value> {
    system.json(arguments).as_array().cloned().unwrap_or_default()
}

fn parked(system: &System) -> Vec<Value> {
    rows(system, &["object", "parked"])
}

fn wait_for_none_waiting(system: &System) {
    wait_until("nothing waits", || rows(system, &["object", "parked", "--waiting"]).is_empty());
}

/// What each arrival of an event did, sorted.
fn outcomes(system: &System, source: &str, id: &str) -> Vec<String> {
    let arrivals = rows(system, &["event", "trace", "acme", source, id]);
    let mut outcomes: Vec<_> = arrivals.iter().map(|arrival| text(arrival, "outcome").to_owned()).collect();
    outcomes.sort();
    outcomes
}

/// One, and so many duplicates of it.
fn once(first: &str, duplicates: usize) -> Vec<String> {
    let mut outcomes = vec!["duplicate".to_owned(); duplicates];
    outcomes.push(first.to_owned());
    outcomes.sort();
    outcomes
}

/// A field of each event that changed an object, in the order of their revs.
fn history(system: &System, source: &str, object: &str, field: &str) -> Vec<String> {
    let rows = rows(system, &["object", "history", "acme", source, object]);
    rows.iter().map(|row| text(row, field).to_owned()).collect()
}

/// Dead letters by event: of one millisecond they have no order of their own.
fn letters(system: &System) -> Vec<Value> {
    let mut letters = dead_letters(system);
    letters.sort_by_key(|letter| format!("{} {}", letter["source"], letter["event_id"]));
    letters
}

fn event_and_cause(letters: &[Value]) -> Vec<(&str, &str)> {
    letters.iter().map(|letter| (text(letter, "event_id"), text(letter, "cause"))).collect()
}

/// Arrivals with this outcome, as the metric counts them.
fn arrivals(system: &System, source: &str, outcome: &str) -> usize {
    let metrics = get_text(&format!("http://127.0.0.1:{}/metrics", system.admin)).expect("metrics");
    let labels = format!("{{tenant=\"acme\",source=\"{source}\",outcome=\"{outcome}\"}} ");
    let name = format!("seriatim_processor_arrivals_total{labels}");
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
}

/// Runs a command that must do what it is told; what it says beside the data.
fn run(system: &System, arguments: &[&str]) -> String {
    let output = system.cli(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

/// How soon the event of a worker that died must be with its receiver, once that answers.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(60);

/// After 2witstudios/PageSpace#1588, Robert-Velhorst/013-Hire-AI#61, hookdeck/outpost#1063.
#[test]
fn the_event_of_a_worker_that_died_is_taken_over_embedded() {
    taken_over(Engine::Embedded);
}

#[test]
fn the_event_of_a_worker_that_died_is_taken_over_distributed() {
    taken_over(Engine::Distributed);
}

/// Killed again and again between the decision and the receiver's answer, at last when the effect waits in the store.
/// The sender delivers the event again all the while, and is never told that it is being processed.
fn taken_over(engine: Engine) {
    const KILLS: usize = 3;
    const BODY: &str = r#"{"id":"e1","o":"x","v":7}"#;
    let receiver = Receiver::start();
    receiver.answer(|_| Answer::Hang);
    let mut system = System::new(engine, &pushed("app", &receiver, BY_VERSION));
    let role = if engine == Engine::Embedded { Role::All } else { Role::Processor };
    system.start(role);
    if role == Role::Processor {
        system.start(Role::Ingest);
    }
    send(&system, "app", BODY);
    let (mut sent, mut before) = (1, 0);
    for kill in 1..=KILLS {
        wait_until("on its way", || receiver.pushes("/app").len() > before);
        send(&system, "app", BODY);
        if kill == KILLS {
            wait_until("in the store", || !rows(&system, &["object", "parked", "--waiting"]).is_empty());
        }
        system.kill(role);
        before = receiver.pushes("/app").len();
        if role == Role::Processor {
            send(&system, "app", BODY);
            sent += 1;
        }
        system.start(role);
        send(&system, "app", BODY);
        sent += 2;
    }
    wait_until("on its way", || receiver.pushes("/app").len() > before);
    let started = Instant::now();
    take_all(&receiver);
    wait_until("taken", || !receiver.taken("/app").is_empty());
    let within = started.elapsed();
    println!("{engine:?}: taken over after {KILLS} kills, within {within:?}");
    assert!(within <= TAKEN_OVER_WITHIN, "{within:?}");

    wait_for_none_waiting(&system);
    system.wait_processed();
    assert_eq!(receiver.keys("/app"), keys("app", "x", &["e1"]), "one effect");
    receiver.check_marks();
    assert_eq!(outcomes(&system, "app", "e1"), once("applied", sent - 1));
    assert_eq!(history(&system, "app", "x", "event"), ["e1"]);
    let object = get_object(&system, "acme", "app", "x");
    assert_eq!((text(&object, "version"), object["rev"].as_i64()), ("7", Some(1)), "one state");
    assert!(letters(&system).is_empty());
}

/// A header that each delivery has anew.
const DELIVERY_ID: &str = "x-delivery-id";

/// One event under many ids, some at once and one later. After Vexa-ai/vexa#519, KickEngineering/KickDevDocs#246,
/// reapit/foundations#10832.
#[test]
fn an_id_of_each_delivery_makes_no_event_of_each() {
    let by_header = format!("event_id = 'header:{DELIVERY_ID}'");
    let with = |declare: &str, id: &str| declare.replace("declare = {", &format!("declare = {{ {id},"));
    // Without an id in the body the digest of the body is the id: of the preset the id is `body:/id`.
    let sources = hmac_source("acme", "versioned", &with(BY_VERSION, &by_header))
        + &hmac_source("acme", "keyed", &with(DELTA, "event_id = 'body:/id'"))
        + &hmac_source("acme", "digested", DELTA)
        + &hmac_source("acme", "trusting", &with(DELTA, &by_header));
    let mut system = System::new(Engine::Embedded, &sources);
    system.start(Role::All);
    let body_of = |source: &str| match source {
        "digested" => r#"{"o":"x","v":3,"amount":1}"#,
        _ => r#"{"id":"e1","o":"x","v":3,"amount":1}"#,
    };
    let mut deliveries = 0;
    for count in [4, 1] {
        for source in ["versioned", "keyed", "digested", "trusting"] {
            let delivery = |n: usize| -> Delivery {
                let mut delivery = signed(&system, "acme", source, body_of(source));
                delivery.headers.push((DELIVERY_ID.to_owned(), format!("d{n}")));
                delivery
            };
            let started = Instant::now();
            let answers = deliver_all((deliveries..deliveries + count).map(delivery).collect(), count);
            println!("{source}: {count} deliveries within {:?}", started.elapsed());
            assert_eq!(statuses(&answers), vec![200; count], "{source}");
        }
        deliveries += count;
        system.wait_processed();
        let effects = system.effects();
        for source in ["versioned", "keyed", "digested"] {
            let counts = (arrivals(&system, source, "applied"), arrivals(&system, source, "duplicate"));
            assert_eq!(counts, (1, deliveries - 1), "{source}");
            assert_eq!(effects.iter().filter(|effect| effect["source"] == source).count(), 1, "{source}");
            let outcomes = history(&system, source, "x", "outcome");
            assert_eq!(outcomes.iter().filter(|outcome| *outcome == "applied").count(), 1, "{source}: changed once");
            assert_eq!(get_object(&system, "acme", source, "x")["rev"], 1, "{source}");
        }
        // Deltas whose ids say that they are many are many: why there is a choice.
        assert_eq!(arrivals(&system, "trusting", "applied"), deliveries);
    }
    assert!(letters(&system).is_empty());
}

/// A clock that is wrong must not freeze an object. After abhigyanpatwari/GitNexus#3169, n0-computer/iroh-docs#120,
/// openfollowapp/openfollow#24.
#[test]
fn an_event_from_the_future_is_put_aside_and_its_object_goes_on() {
    const HUNDRED_YEARS_S: u64 = 100 * 31_557_600;
    // How far ahead of our clock each may be; what is applied, what is stale, and what is put aside.
    type Fate = (&'static str, Option<u64>, &'static [&'static str], &'static [&'static str], &'static [&'static str]);
    let fates: [Fate; 3] = [
        ("day", None, &["now", "second", "hour"], &[], &["2099"]),
        ("minute", Some(60), &["now", "second"], &[], &["2099", "hour"]),
        ("century", Some(HUNDRED_YEARS_S), &["now", "2099"], &["second", "hour"], &[]),
    ];
    let source = |(name, bound, ..): &Fate| {
        let bound = bound.map_or(String::new(), |seconds| format!(", future_max_s = {seconds}"));
        let version = "{ from = 'body:/v', kind = 'rfc3339' }";
        hmac_source("acme", name, &format!("declare = {{ object = 'body:/o', version = {version}{bound} }}"))
    };
    let mut system = System::new(Engine::Embedded, &fates.iter().map(source).collect::<String>());
    system.start(Role::All);
    let now = Timestamp::now();
    let after = |seconds| (now + Duration::from_secs(seconds)).to_string();
    let far = "2099-01-01T00:00:00Z".to_owned();
    let versions = [("now", now.to_string()), ("2099", far), ("second", after(1)), ("hour", after(3600))];
    for (source, ..) in &fates {
        for (id, version) in &versions {
            send(&system, source, &format!(r#"{{"id":"{id}","o":"x","v":"{version}"}}"#));
        }
    }
    system.wait_processed();
    let before = letters(&system);
    for (source, bound, applied, stale, dead) in &fates {
        assert_eq!(history(&system, source, "x", "event"), *applied, "{source}");
        for id in *stale {
            assert_eq!(outcomes(&system, source, id), ["stale"], "{source}: {id}");
        }
        let own: Vec<_> = before.iter().filter(|letter| letter["source"] == *source).cloned().collect();
        assert_eq!(event_and_cause(&own), dead.iter().map(|id| (*id, "future")).collect::<Vec<_>>(), "{source}");
        for letter in &own {
            let told = format!("more than {} s ahead", bound.unwrap_or(24 * 3600));
            assert!(text(letter, "object") == "x" && text(letter, "detail").contains(&told), "{letter}");
        }
        assert_eq!(arrivals(&system, source, "dead"), dead.len(), "{source}");
        let last = applied.last().expect("some are applied");
        assert_eq!(get_object(&system, "acme", source, "x")["event"], *last, "{source}");
    }

    let said = run(&system, &["dead", "redrive", "--cause", "future"]);
    system.wait_processed();
    assert!(said.contains("redriven 0 of 3 letters"), "{said}");
    assert!(said.contains("(future: ") && said.contains("2099-01-01T00:00:00Z"), "{said}");
    assert_eq!(letters(&system), before, "they were not even touched");
}

const BATCH: &str = "[source.declare]\nobject = 'body:/o'\nversion = { from = 'body:/v', kind = 'integer' }\n\
    batch = { items = ['/*'] }\n";

/// Of one object: a good one, one whose version cannot be read, the first again, one that its sink refuses, another
/// good one. (An item without an object or an id is another matter: it is a letter of its own each time.)
const ITEMS: [&str; 5] = [
    r#"{"id":"e1","o":"x","v":1}"#,
    r#"{"id":"e2","o":"x","v":"soon"}"#,
    r#"{"id":"e1","o":"x","v":1}"#,
    r#"{"id":"e4","o":"x","v":4}"#,
    r#"{"id":"e5","o":"x","v":5}"#,
];

/// After gopherium/AlphOne#36, simstudioai/sim#6245, OctopusDeploy/Issues#7216, contember/contember#436.
#[test]
fn bad_items_of_a_batch_stop_neither_their_object_nor_a_redelivery_embedded() {
    batch(Engine::Embedded);
}

#[test]
fn bad_items_of_a_batch_stop_neither_their_object_nor_a_redelivery_distributed() {
    batch(Engine::Distributed);
}

fn batch(engine: Engine) {
    let receiver = Receiver::start();
    refuse(&receiver, "e4");
    let mut system = System::new(engine, &pushed("app", &receiver, BATCH));
    system.start(Role::All);
    for delivery in 1..=3 {
        send(&system, "app", &format!("[ {} ]\r\n", ITEMS.join(" ,\n")));
        system.wait_processed();
        assert_eq!(receiver.taken("/app"), keys("app", "x", &["e1", "e5"]), "after delivery {delivery}");
        assert_eq!(received(&receiver, "/app"), ["e1", "e4", "e5"], "each once, after delivery {delivery}");
        assert_eq!(event_and_cause(&letters(&system)), [("e2", "version"), ("e4", "refused")]);
        assert_eq!(outcomes(&system, "app", "e1"), once("applied", 2 * delivery - 1));
        assert_eq!(outcomes(&system, "app", "e2"), vec!["dead"; delivery]);
        for id in ["e4", "e5"] {
            assert_eq!(outcomes(&system, "app", id), once("applied", delivery - 1), "{id}");
        }
        assert_eq!(history(&system, "app", "x", "event"), ["e1", "e4", "e5"]);
        assert_eq!(get_object(&system, "acme", "app", "x")["event"], "e5");
    }
    receiver.check_order();
    assert!(receiver.pushes("/app").iter().all(|push| !push.is_resent()), "none of them was in doubt");
}

/// After moneat-io/moneat#873, timgit/pg-boss#874.
#[test]
fn one_bad_event_of_an_object_is_seen_and_what_is_behind_it_arrives_embedded() {
    bad_head(Engine::Embedded);
}

#[test]
fn one_bad_event_of_an_object_is_seen_and_what_is_behind_it_arrives_distributed() {
    bad_head(Engine::Distributed);
}

/// The second of five is refused for good. Of snapshots the others arrive, of deltas none behind it; either way an
/// operator sees it, also after a second try that fails, and releases it in order.
fn bad_head(engine: Engine) {
    const ALL: [&str; 5] = ["e1", "e2", "e3", "e4", "e5"];
    let receiver = Receiver::start();
    refuse(&receiver, "e2");
    let sources = pushed("snapshot", &receiver, BY_VERSION) + &pushed("delta", &receiver, DELTA);
    let mut system = System::new(engine, &sources);
    system.start(Role::All);
    for source in ["snapshot", "delta"] {
        for n in 1..=5 {
            send(&system, source, &format!(r#"{{"id":"e{n}","o":"x","v":{n}}}"#));
        }
    }
    system.wait_processed();
    for source in ["snapshot", "delta"] {
        assert_eq!(history(&system, source, "x", "event"), ALL, "{source}: what a sink refuses was applied");
    }
    assert_eq!(received(&receiver, "/snapshot"), ALL);
    assert_eq!(receiver.taken("/snapshot"), keys("snapshot", "x", &["e1", "e3", "e4", "e5"]));
    assert_eq!(get_object(&system, "acme", "snapshot", "x")["event"], "e5");
    assert_eq!(received(&receiver, "/delta"), ["e1", "e2"], "nothing passes what is refused");
    check_seen(&system);

    let first = text(&letters(&system)[0], "dead").to_owned();
    let redrive_both = || {
        run(&system, &["object", "redrive", "acme", "delta", "x"]);
        run(&system, &["dead", "redrive", "--source", "snapshot", "--id", "e2"]);
    };
    redrive_both();
    let tries = |path| received(&receiver, path).iter().filter(|id| *id == "e2").count();
    wait_until("tried again", || [tries("/snapshot"), tries("/delta")] == [2, 2]);
    wait_until("parked again", || parked(&system).len() == 1);
    let is_anew = |letters: Vec<Value>| letters.len() == 1 && text(&letters[0], "dead") != first;
    wait_until("a letter again", || is_anew(letters(&system)));
    check_seen(&system);

    take_all(&receiver);
    redrive_both();
    for (source, path) in [("snapshot", "/snapshot"), ("delta", "/delta")] {
        wait_until("all taken", || receiver.taken(path) == keys(source, "x", &ALL));
    }
    wait_for_none_waiting(&system);
    wait_until("no letter is left", || letters(&system).is_empty());
    assert_eq!(received(&receiver, "/delta"), ["e1", "e2", "e2", "e2", "e3", "e4", "e5"], "in order");
    assert_eq!(received(&receiver, "/snapshot"), ["e1", "e2", "e3", "e4", "e5", "e2", "e2"]);
    receiver.check_order();
    receiver.check_marks();
    assert_eq!(get_object(&system, "acme", "snapshot", "x")["event"], "e5", "no redrive changes a state");
}

/// The refused snapshot is a dead letter; the object of the refused delta is parked.
fn check_seen(system: &System) {
    let letters = letters(system);
    assert_eq!(event_and_cause(&letters), [("e2", "refused")]);
    assert_eq!((text(&letters[0], "source"), text(&letters[0], "object")), ("snapshot", "x"));
    let parked = parked(system);
    assert_eq!(parked.len(), 1, "{parked:?}");
    let told = ["source", "object", "sink", "state", "first_event"].map(|field| text(&parked[0], field));
    assert_eq!(told, ["delta", "x", "delta", "parked", "e2"]);
    assert!(text(&parked[0], "cause").contains("400"), "{parked:?}");
}
