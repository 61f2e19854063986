//! Sinks of kind push, against an endpoint that is well, slow, away, or of another mind. What is promised of effects
//! must hold over HTTP: each arrives, in order per object, a second time only with a mark; and a sink that is away
//! holds up neither the log nor another sink.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};

use crate::receiver::{Answer, Push, Receiver};
use crate::support::{BINARY, Engine, Role, SECRET, System, block_on, sign, source_of, wait_until};

on_each_engine!(
    each_effect_arrives_once_in_order_and_signed,
    a_sink_that_is_away_holds_up_no_other,
    kills_while_effects_wait_lose_nothing,
    a_refused_snapshot_is_a_dead_letter_and_its_object_goes_on,
    a_refused_delta_parks_its_object_and_no_other,
    a_neighbour_that_hangs_is_not_felt,
    a_sink_is_left_alone_for_as_long_as_it_asks,
    redirects_are_not_followed,
    the_newest_is_enough_for_a_sink_that_says_so,
    envelopes_come_in_batches_in_order,
);

const PATH: &str = "/app";
const SECRETS: [&str; 2] = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"];
const CONTENT_TYPE: &str = "application/vnd.acme.v2+json; charset=UTF-8";

const SNAPSHOT: &str = "declare = { object = 'body:/object', version = { from = 'body:/version', kind = 'integer' } }";
const DELTA: &str = "declare = { object = 'body:/object', mode = 'delta' }";

/// Part of a policy: how long a sink that is away is left alone at most.
const SOON: &str = "retry_max_ms = 500";
/// Longer than any wait between tries under [`SOON`].
const LONGER_THAN_SOON: Duration = Duration::from_secs(1);
const ALLOW_LOCAL: &str = "allow_networks = [\"127.0.0.0/8\"]";

const OBJECTS: [&str; 5] = ["a", "b", "c", "d", "e/5"];

/// Version `n` of an object.
#[derive(Debug, Clone, Copy)]
struct Event {
    tenant: &'static str,
    object: &'static str,
    n: u64,
}

impl Event {
    /// Not as our serialiser would write it: a push that makes it anew is found out.
    fn body(&self) -> Vec<u8> {
        let Self { object, n, .. } = self;
        let odd = "\"price\": 1.50,\"name\":\"\\u00e4\"";
        format!("{{ \"id\" :\"{object}-{n}\",\"object\":\"{object}\",  \"version\":{n}, {odd} }}\n").into_bytes()
    }

    fn key(&self) -> String {
        let object = self.object.replace('/', "%2F");
        format!("{}/hmac/{object}/{object}-{}", self.tenant, self.n)
    }
}

/// Versions of each of some objects, in their order.
fn events(objects: &[&'static str], versions: RangeInclusive<u64>) -> Vec<Event> {
    versions.flat_map(|n| objects.iter().map(move |&object| Event { tenant: "acme", object, n })).collect()
}

fn keys<'e>(events: impl IntoIterator<Item = &'e Event>) -> BTreeSet<String> {
    events.into_iter().map(Event::key).collect()
}

/// Sends events, one after the answer to the other. When each was sent.
fn send(system: &System, events: &[Event]) -> Vec<Instant> {
    block_on(async {
        let client = reqwest::Client::new();
        let mut times = Vec::with_capacity(events.len());
        for event in events {
            let body = event.body();
            let signature = sign(SECRET, &body);
            times.push(Instant::now());
            let request = client.post(system.url(event.tenant, "hmac")).body(body);
            let request = request.header("content-type", CONTENT_TYPE).header("x-signature", signature);
            assert_eq!(request.send().await.expect("an answer").status(), 200, "{event:?}");
        }
        times
    })
}

/// A source whose effects go to these sinks.
fn source(tenant: &str, sinks: &[&str], declare: &str) -> String {
    source_of(tenant, "hmac", SECRET, &format!("sinks = {sinks:?}\n{declare}"))
}

/// A sink that pushes to `url`; `policy` and `push` are further lines of its tables.
fn sink(name: &str, url: &str, policy: &str, push: &str) -> String {
    let [first, second] = SECRETS;
    format!(
        "[[sink]]\nname = \"{name}\"\n\
         [sink.policy]\nretry_min_ms = 50\nwait_after_ms = 2000\nfailures_max = 3\nconcurrency = 16\nwaiting_max = 1000\n\
         {policy}\n\
         [sink.push]\nurl = \"{url}\"\nsecrets = [{{ value = \"{first}\" }}, {{ value = \"{second}\" }}]\n\
         timeout_ms = 1000\n{ALLOW_LOCAL}\n{push}\n"
    )
}

/// One source, whose effects go to the receiver alone.
fn sources(receiver: &Receiver, declare: &str, policy: &str, push: &str) -> String {
    source("acme", &["app"], declare) + &sink("app", &receiver.url(PATH), policy, push)
}

fn start(engine: Engine, sources: &str) -> System {
    let mut system = System::new(engine, sources);
    system.start(Role::All);
    system
}

/// Waits until exactly these were answered with success.
fn wait_taken<'e>(receiver: &Receiver, events: impl IntoIterator<Item = &'e Event>) {
    let all = keys(events);
    wait_until("all taken", || receiver.taken(PATH) == all);
}

fn dead_letters(system: &System) -> Vec<Value> {
    system.json(&["dead", "list"]).as_array().expect("a list").clone()
}

/// A sink that is well gets each effect once, whole, and can verify it with nothing of ours.
fn each_effect_arrives_once_in_order_and_signed(engine: Engine) {
    let receiver = Receiver::start();
    // Now slower, now faster: an effect that did not wait for the one before it would pass it.
    receiver.answer(|push| Answer::After(Duration::from_millis(push.rev() * 17 % 30)));
    let system = start(engine, &sources(&receiver, SNAPSHOT, SOON, ""));
    let sent = events(&OBJECTS, 1..=6);
    send(&system, &sent);
    wait_taken(&receiver, &sent);
    system.wait_processed();
    let pushes = receiver.pushes(PATH);
    assert_eq!(pushes.len(), sent.len(), "each once");
    receiver.check_order();
    for event in &sent {
        let push = pushes.iter().find(|push| push.key() == event.key()).expect("it was taken");
        check_push(push, event);
    }
    let ids: BTreeSet<_> = pushes.iter().map(|push| push.header("webhook-id")).collect();
    assert_eq!(ids.len(), sent.len(), "each has an id of its own");
}

fn check_push(push: &Push, event: &Event) {
    assert_eq!(push.body, event.body(), "{event:?}: byte for byte");
    assert_eq!(push.header("content-type"), CONTENT_TYPE);
    assert_eq!((push.rev(), push.is_resent()), (event.n, false), "{event:?}");
    assert_eq!(push.header("seriatim-outcome"), "applied");
    push.header("seriatim-epoch").parse::<u64>().expect("an epoch");
    check_signature(push);
}

/// As the Standard Webhooks specification has it: HMAC-SHA256 over `ID.TIMESTAMP.BODY`, by each secret.
fn check_signature(push: &Push) {
    let (id, at) = (push.header("webhook-id"), push.header("webhook-timestamp"));
    let expected = SECRETS.map(|secret| {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").expect("a prefix")).expect("base64");
        let mut mac: Hmac<sha2::Sha256> = KeyInit::new_from_slice(&key).expect("any length");
        mac.update(format!("{id}.{at}.").as_bytes());
        mac.update(&push.body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    });
    let signatures: Vec<_> = push.header("webhook-signature").split(' ').collect();
    assert_eq!(signatures, expected, "{}", push.key());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(now.abs_diff(at.parse().expect("seconds")) < 90, "{at}, now {now}");
}

/// Two sinks of one source, one of which is away: the other feels nothing, the log is done with, and the one that was
/// away gets all of it in order once it is back.
fn a_sink_that_is_away_holds_up_no_other(engine: Engine) {
    let (well, mut away) = (Receiver::start(), Receiver::start());
    away.down();
    let sinks = sink("app", &well.url(PATH), SOON, "") + &sink("away", &away.url(PATH), SOON, "");
    let system = start(engine, &(source("acme", &["app", "away"], SNAPSHOT) + &sinks));
    let sent = events(&OBJECTS, 1..=6);
    send(&system, &sent);
    wait_taken(&well, &sent);
    system.wait_processed();
    assert!(away.keys(PATH).is_empty(), "it is away all the time");
    away.up();
    wait_taken(&away, &sent);
    away.check_order();
    away.check_marks();
    well.check_order();
    let pushes = well.pushes(PATH);
    assert_eq!(pushes.len(), sent.len(), "each once");
    assert!(pushes.iter().all(|push| !push.is_resent()), "none of them was in doubt");
}

/// Starts a system; the part that sends effects.
fn start_parts(system: &mut System) -> Role {
    if system.engine == Engine::Embedded {
        system.start(Role::All);
        return Role::All;
    }
    system.start(Role::Processor);
    system.start(Role::Ingest);
    Role::Processor
}

/// `kill -9`, twice, while effects wait for a sink that is away, some of which it got without our knowing.
fn kills_while_effects_wait_lose_nothing(engine: Engine) {
    let mut receiver = Receiver::start();
    receiver.answer(|_| Answer::Drop);
    let mut system = System::new(engine, &sources(&receiver, SNAPSHOT, SOON, ""));
    let role = start_parts(&mut system);
    send(&system, &events(&OBJECTS, 1..=3));
    wait_until("received, and not answered", || receiver.pushes(PATH).len() >= 3);
    receiver.down();
    system.wait_processed();
    for versions in [4..=6, 7..=9] {
        system.kill(role);
        system.start(role);
        send(&system, &events(&OBJECTS, versions));
        system.wait_processed();
    }
    receiver.answer(|_| Answer::Status(200));
    receiver.up();
    wait_taken(&receiver, &events(&OBJECTS, 1..=9));
    system.wait_processed();
    receiver.check_order();
    receiver.check_marks();
    assert!(receiver.pushes(PATH).iter().any(|push| push.earlier > 0), "what was not answered came again");
}

/// A sink that does not want some events of an object: they are kept as dead letters, one each and tried once, and all
/// else arrives, also of the same object.
fn a_refused_snapshot_is_a_dead_letter_and_its_object_goes_on(engine: Engine) {
    let receiver = Receiver::start();
    receiver.answer(|push| {
        Answer::Status(match (push.json()["object"].as_str(), push.rev()) {
            (Some("bad"), 1) => 400,
            (Some("bad"), 2) => 413,
            (Some("bad"), 3) => 422,
            _ => 200,
        })
    });
    let system = start(engine, &sources(&receiver, SNAPSHOT, SOON, ""));
    let sent = events(&["a", "bad", "c"], 1..=5);
    let (refused, good): (Vec<_>, Vec<_>) = sent.iter().partition(|event| event.object == "bad" && event.n <= 3);
    send(&system, &sent);
    wait_taken(&receiver, good);
    system.wait_processed();
    assert_eq!(receiver.pushes(PATH).len(), sent.len(), "each once, refused or not");
    receiver.check_order();
    let letters = system.whole_letters();
    assert_eq!(letters.len(), refused.len(), "{letters:?}");
    for event in refused {
        let id = format!("bad-{}", event.n);
        let letter = letters.iter().find(|letter| letter["event_id"] == id).unwrap_or_else(|| panic!("{letters:?}"));
        assert_eq!((&letter["cause"], &letter["object"]), (&"refused".into(), &"bad".into()), "{letter}");
        assert_eq!(letter["value"].as_str().expect("text").as_bytes(), event.body());
    }
}

/// A delta that is refused must not be passed by later ones of its object, which wait for an operator. The log is
/// done with, and other objects go on.
fn a_refused_delta_parks_its_object_and_no_other(engine: Engine) {
    let receiver = Receiver::start();
    let is_refused = |push: &Push| push.rev() == 2 && push.json()["object"] == "x";
    receiver.answer(move |push| Answer::Status(if is_refused(push) { 400 } else { 200 }));
    let system = start(engine, &sources(&receiver, DELTA, SOON, ""));
    let sent = events(&["x", "y", "z"], 1..=5);
    let good = |event: &&Event| event.object != "x" || event.n < 2;
    send(&system, &sent);
    wait_taken(&receiver, sent.iter().filter(good));
    system.wait_processed();
    // Whoever tried again by himself would have by now.
    std::thread::sleep(LONGER_THAN_SOON);
    let later = events(&["x", "y", "z"], 6..=6);
    send(&system, &later);
    wait_taken(&receiver, sent.iter().chain(&later).filter(good));
    system.wait_processed();
    let pushes = receiver.pushes(PATH);
    let of_x: Vec<_> = pushes.iter().filter(|push| push.json()["object"] == "x").map(Push::rev).collect();
    assert_eq!(of_x, [1, 2], "nothing behind the refused one, and nothing again");
    receiver.check_order();
    assert!(dead_letters(&system).is_empty(), "it waits: it is not dead");
}

/// A tenant whose endpoint answers nothing costs another tenant no time: 99 of 100 of its effects arrive within twice
/// what they took while the neighbour was well, or 250 ms more, which on a machine that is not ours alone is noise.
fn a_neighbour_that_hangs_is_not_felt(engine: Engine) {
    let (calm, busy) = (Receiver::start(), Receiver::start());
    let sinks = sink("calm", &calm.url(PATH), SOON, "") + &sink("busy", &busy.url(PATH), SOON, "");
    let sources = source("calm", &["calm"], SNAPSHOT) + &source("busy", &["busy"], SNAPSHOT);
    let system = start(engine, &(sources + &sinks));
    // What is made once, such as a first connection, is no part of it.
    p99(&system, &calm, 1..=5);
    let alone = p99(&system, &calm, 6..=35);
    let well = neighbours("busy", 1..=35);
    wait_taken(&busy, &well);
    busy.answer(|_| Answer::Hang);
    let beside = p99(&system, &calm, 36..=65);
    println!("{engine:?}: 99 of 100 within {alone:?}, beside a neighbour that hangs {beside:?}");
    assert!(beside <= alone * 2 || beside <= alone + Duration::from_millis(250), "{beside:?}, was {alone:?}");
    system.wait_processed();
    assert_eq!(busy.taken(PATH), keys(&well), "it hangs all the time");
    busy.answer(|_| Answer::Status(200));
    wait_taken(&busy, &neighbours("busy", 1..=65));
    for receiver in [&calm, &busy] {
        receiver.check_order();
        receiver.check_marks();
    }
}

fn neighbours(tenant: &'static str, versions: RangeInclusive<u64>) -> Vec<Event> {
    events(&OBJECTS, versions).into_iter().map(|event| Event { tenant, ..event }).collect()
}

/// Sends as much for either tenant, in turn. What 99 of 100 events of the calm one took to their receiver.
fn p99(system: &System, calm: &Receiver, versions: RangeInclusive<u64>) -> Duration {
    let pairs = neighbours("calm", versions.clone()).into_iter().zip(neighbours("busy", versions));
    let sent: Vec<Event> = pairs.flat_map(|(calm, busy)| [calm, busy]).collect();
    let times = send(system, &sent);
    let sent_at: HashMap<String, Instant> =
        sent.iter().zip(times).filter(|(event, _)| event.tenant == "calm").map(|(e, at)| (e.key(), at)).collect();
    wait_until("all taken", || {
        let taken = calm.taken(PATH);
        sent_at.keys().all(|key| taken.contains(key))
    });
    let taken_within = |push: &Push| Some(push.at.duration_since(*sent_at.get(push.key())?));
    let mut all: Vec<Duration> = calm.pushes(PATH).iter().filter_map(taken_within).collect();
    all.sort();
    all[all.len() * 99 / 100]
}

/// 429 with Retry-After: nothing at all is sent to the sink before its time, then everything is.
fn a_sink_is_left_alone_for_as_long_as_it_asks(engine: Engine) {
    let receiver = Receiver::start();
    let has_asked = AtomicBool::new(false);
    receiver.answer(move |_| {
        if has_asked.swap(true, Ordering::SeqCst) {
            Answer::Status(200)
        } else {
            Answer::With(429, "retry-after", "1".to_owned())
        }
    });
    // What a sink asks for counts up to the policy's longest wait.
    let system = start(engine, &sources(&receiver, SNAPSHOT, "retry_max_ms = 5000", ""));
    let sent = events(&["a", "b", "c"], 1..=2);
    send(&system, &sent[..1]);
    wait_until("told", || system.metric("seriatim_processor_sink_errors_total") > 0.0);
    send(&system, &sent[1..]);
    wait_taken(&receiver, &sent);
    let pushes = receiver.pushes(PATH);
    let soonest = pushes[1..].iter().map(|push| push.at.duration_since(pushes[0].at)).min().expect("some");
    println!("{engine:?}: asked for 1 s, left alone for {soonest:?}");
    assert!(soonest >= Duration::from_secs(1), "{soonest:?}");
    receiver.check_order();
    receiver.check_marks();
}

/// A redirect would lead past the check of the address: the effect waits until the sink is set up well.
fn redirects_are_not_followed(engine: Engine) {
    let receiver = Receiver::start();
    let other = receiver.url("/other");
    receiver.answer(move |_| Answer::With(307, "location", other.clone()));
    let system = start(engine, &sources(&receiver, SNAPSHOT, SOON, ""));
    let sent = events(&["a"], 1..=2);
    send(&system, &sent);
    wait_until("tried again", || receiver.pushes(PATH).len() >= 2);
    system.wait_processed();
    receiver.answer(|_| Answer::Status(200));
    wait_taken(&receiver, &sent);
    assert!(receiver.pushes("/other").is_empty(), "nobody sent it there");
    assert!(dead_letters(&system).is_empty(), "it waited");
    receiver.check_order();
    receiver.check_marks();
}

/// A sink that was away and wants the newest only is spared the versions between.
fn the_newest_is_enough_for_a_sink_that_says_so(engine: Engine) {
    const VERSIONS: u64 = 20;
    let mut receiver = Receiver::start();
    receiver.down();
    let policy = format!("{SOON}\ndeliver = \"newest\"");
    let system = start(engine, &sources(&receiver, SNAPSHOT, &policy, ""));
    let newest = |n: u64| Event { tenant: "acme", object: "a", n };
    send(&system, &events(&["a"], 1..=VERSIONS));
    system.wait_processed();
    receiver.up();
    wait_until("the newest is taken", || receiver.taken(PATH).contains(&newest(VERSIONS).key()));
    // Whatever would come after the newest has come once the next is there.
    send(&system, &[newest(VERSIONS + 1)]);
    wait_until("the next is taken", || receiver.taken(PATH).contains(&newest(VERSIONS + 1).key()));
    let revs: Vec<_> = receiver.pushes(PATH).iter().map(Push::rev).collect();
    println!("{engine:?}: of {VERSIONS} versions and a later one it was sent {revs:?}");
    assert!(revs.ends_with(&[VERSIONS, VERSIONS + 1]), "{revs:?}");
    assert!(revs.len() <= VERSIONS as usize, "{revs:?}");
    receiver.check_order();
    receiver.check_marks();
}

/// Envelopes in arrays: what waited comes many at a time, each with its own key, fence and mark, in order per object.
fn envelopes_come_in_batches_in_order(engine: Engine) {
    const BATCH_MAX: usize = 10;
    let mut receiver = Receiver::start();
    receiver.down();
    let push = format!("body = \"envelope\"\nbatch_max = {BATCH_MAX}");
    let system = start(engine, &sources(&receiver, SNAPSHOT, SOON, &push));
    let sent = events(&["a", "e/5"], 1..=25);
    send(&system, &sent);
    system.wait_processed();
    receiver.up();
    let key = |envelope: &Value| envelope["idempotency_key"].as_str().expect("a key").to_owned();
    let batches = || receiver.pushes(PATH).iter().map(batch_of).collect::<Vec<_>>();
    wait_until("all is there", || batches().iter().flatten().map(key).collect::<BTreeSet<_>>() == keys(&sent));
    let lengths: Vec<_> = batches().iter().map(Vec::len).collect();
    assert!(lengths.iter().all(|length| (1..=BATCH_MAX).contains(length)), "{lengths:?}");
    assert!(lengths.contains(&BATCH_MAX), "what waited comes together: {lengths:?}");
    let mut seen = Vec::new();
    for envelope in batches().iter().flatten() {
        if seen.contains(&key(envelope)) {
            assert_eq!(envelope["resent"], true, "{envelope}");
        } else {
            seen.push(key(envelope));
        }
    }
    for object in ["a", "e/5"] {
        let own: Vec<_> = sent.iter().filter(|event| event.object == object).map(Event::key).collect();
        let received: Vec<_> = seen.iter().filter(|key| own.contains(key)).cloned().collect();
        assert_eq!(received, own, "first receipts in order");
    }
    for event in &sent {
        let all = batches();
        let envelope = all.iter().flatten().find(|envelope| key(envelope) == event.key()).expect("it was received");
        check_envelope(envelope, event);
    }
}

/// The envelopes of one request, whose headers are those of the last.
fn batch_of(push: &Push) -> Vec<Value> {
    let Value::Array(batch) = push.json() else { panic!("no array: {}", push.json()) };
    let last = batch.last().expect("at least one");
    assert_eq!((&last["idempotency_key"], &last["rev"]), (&push.key().into(), &push.rev().into()));
    assert_eq!(push.header("content-type"), "application/json");
    check_signature(push);
    batch
}

fn check_envelope(envelope: &Value, event: &Event) {
    let data: Value = serde_json::from_slice(&event.body()).expect("JSON");
    assert_eq!(envelope["data"], data);
    let told = ["tenant", "source", "object", "event_id", "rev", "outcome"].map(|field| envelope[field].clone());
    let id = format!("{}-{}", event.object, event.n);
    assert_eq!(told, [json!("acme"), json!("hmac"), json!(event.object), json!(id), json!(event.n), json!("applied")]);
}

/// `check` of a file with one sink: exit code, and what it says.
fn check(engine: &str, sink: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("seriatim.toml");
    let text = format!("engine = \"{engine}\"\n{}{sink}", source("acme", &["app"], SNAPSHOT));
    std::fs::write(&path, text).expect("written");
    let output = Command::new(BINARY).arg("--config").arg(&path).arg("check").output().expect("runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// An address that only this machine, or its network, should reach is told before anything starts, however it is
/// spelt; where its network is allowed it is good.
#[test]
fn check_refuses_a_private_address() {
    const PRIVATE: [&str; 6] = [
        "http://127.0.0.1:1/app",
        "http://2130706433/app",
        "http://10.1.2.3/app",
        "https://192.168.0.1/app",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]:1/app",
    ];
    for engine in ["embedded", "distributed"] {
        for url in PRIVATE {
            let (code, err) = check(engine, &sink("app", url, SOON, "").replace(ALLOW_LOCAL, ""));
            assert_eq!(code, Some(2), "{url}: {err}");
            assert!(err.contains("sink.0.push.url"), "{url}: {err}");
        }
        let (code, err) = check(engine, &sink("app", PRIVATE[0], SOON, ""));
        assert_eq!(code, Some(0), "{err}");
    }
}

/// A name is looked up when it is sent to: where it is that of a private address nothing goes there, and the effect
/// waits.
#[test]
fn a_name_of_a_private_address_is_not_pushed_to() {
    let receiver = Receiver::start();
    let url = format!("http://localhost:{}{PATH}", receiver.port());
    let sink = sink("app", &url, SOON, "");
    let text = source("acme", &["app"], SNAPSHOT) + &sink.replace(ALLOW_LOCAL, "");
    let system = start(Engine::Embedded, &text);
    send(&system, &events(&["a"], 1..=3));
    wait_until("tried", || system.metric("seriatim_processor_sink_errors_total") >= 3.0);
    system.wait_processed();
    assert!(receiver.pushes(PATH).is_empty());
    assert!(dead_letters(&system).is_empty(), "it waits");
}
