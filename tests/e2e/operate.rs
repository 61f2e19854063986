//! What an operator does about what is parked or dead, from outside: the commands on one side, what a receiver gets
//! on the other. Acts are records of the log, so each test waits for what its act comes to.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};

use crate::receiver::{Answer, Push, Receiver};
use crate::support::{Engine, Role, SECRET, System, block_on, send_hmac, sign, source_of, wait_until};

on_each_engine!(
    a_parked_object_is_released_in_order,
    what_is_skipped_is_never_sent_again,
    a_refused_effect_is_sent_again_as_it_was,
    dead_events_are_decided_by_a_mended_declaration,
    what_had_no_object_finds_it_by_a_mended_declaration,
    a_redelivery_of_a_dead_event_needs_no_redrive,
    a_discard_removes_what_was_named_and_nothing_else,
    an_order_that_is_reset_begins_anew_once,
    what_was_stale_before_a_reset_stays_so_after_a_crash,
    a_poisoned_object_stops_no_other_and_comes_through_kills,
    a_sink_that_refuses_parks_for_itself_alone,
    an_act_waits_for_the_processor,
    acts_at_once_do_not_send_at_once,
    what_waits_in_the_log_alone_can_be_skipped,
    a_full_queue_loses_no_effect_that_is_redriven,
    a_letter_whose_sink_is_gone_stays,
    what_would_be_dead_again_is_left_alone,
    acts_stand_in_the_ledger,
);

const PATH: &str = "/app";
const SNAPSHOT: &str = "declare = { object = 'body:/object', version = { from = 'body:/version', kind = 'integer' } }";
const DELTA: &str = "declare = { object = 'body:/object', mode = 'delta' }";
/// So seldom that no test sees it: after a crash all of the log is read again.
const NEVER_ADVANCE: &str = "[processor]\nadvance_interval_ms = 600000\n";
const AT_ONCE: usize = 16;

/// Version `n` of an object.
#[derive(Debug, Clone)]
struct Event {
    object: String,
    n: u64,
}

impl Event {
    fn id(&self) -> String {
        format!("{}-{}", self.object, self.n)
    }

    fn body(&self) -> Vec<u8> {
        json!({ "id": self.id(), "object": self.object, "version": self.n }).to_string().into_bytes()
    }

    fn key(&self) -> String {
        let part = |text: &str| text.replace('/', "%2F");
        format!("acme/hmac/{}/{}", part(&self.object), part(&self.id()))
    }
}

/// Versions of an object, in their order.
fn events(object: &str, versions: RangeInclusive<u64>) -> Vec<Event> {
    versions.map(|n| Event { object: object.to_owned(), n }).collect()
}

fn keys<'e>(events: impl IntoIterator<Item = &'e Event>) -> BTreeSet<String> {
    events.into_iter().map(Event::key).collect()
}

/// Sends events, one after the answer to the other.
fn send(system: &System, events: &[Event]) {
    send_lanes(system, vec![events.to_vec()]);
}

/// Sends each lane in its order, many lanes at a time.
fn send_lanes(system: &System, lanes: Vec<Vec<Event>>) {
    let (client, url) = (reqwest::Client::new(), system.url("acme", "hmac"));
    let lane = |events: Vec<Event>| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            for event in events {
                let body = event.body();
                let request = client.post(&url).header("x-signature", sign(SECRET, &body)).body(body);
                assert_eq!(request.send().await.expect("an answer").status(), 200, "{event:?}");
            }
        }
    };
    block_on(futures::stream::iter(lanes).map(lane).buffer_unordered(AT_ONCE).for_each(|()| async {}));
}

/// Sends a body as it is.
fn send_text(system: &System, body: &str) {
    assert_eq!(send_hmac(system, "acme", "hmac", body.as_bytes()), 200, "{body}");
}

/// The source, whose effects go to these sinks.
fn source(sinks: &[&str], declare: &str) -> String {
    source_of("acme", "hmac", SECRET, &format!("sinks = {sinks:?}\n{declare}"))
}

/// A sink that pushes to a receiver; `policy` is further lines of its table.
fn sink(name: &str, receiver: &Receiver, policy: &str) -> String {
    format!(
        "[[sink]]\nname = \"{name}\"\n\
         [sink.policy]\nretry_min_ms = 50\nretry_max_ms = 500\nwait_after_ms = 2000\nfailures_max = 3\nconcurrency = 16\n\
         {policy}\n\
         [sink.push]\nurl = \"{}\"\ntimeout_ms = 1000\nallow_networks = [\"127.0.0.0/8\"]\n",
        receiver.url(PATH)
    )
}

/// A source whose effects go to one receiver.
fn one_sink(receiver: &Receiver, declare: &str, policy: &str) -> String {
    source(&["app"], declare) + &sink("app", receiver, policy)
}

/// A source whose effects go to the file.
fn to_file(declare: &str) -> String {
    source(&["effects"], declare)
}

fn start(engine: Engine, sources: &str) -> System {
    let mut system = System::new(engine, sources);
    system.start(Role::All);
    system
}

/// Starts a system; the part that owns its objects.
fn start_parts(system: &mut System) -> Role {
    if system.engine == Engine::Embedded {
        system.start(Role::All);
        return Role::All;
    }
    system.start(Role::Processor);
    system.start(Role::Ingest);
    Role::Processor
}

/// Stops all, replaces a text of the configuration, and starts again.
fn mend(system: &mut System, wrong: &str, right: &str) {
    system.terminate(Role::All);
    let config = std::fs::read_to_string(system.config()).expect("the configuration");
    assert!(config.contains(wrong), "{wrong} is not in\n{config}");
    std::fs::write(system.config(), config.replace(wrong, right)).expect("written");
    system.start(Role::All);
}

/// Answers so to one event, and takes all others.
fn refuse(receiver: &Receiver, id: &str, status: u16) {
    let id = id.to_owned();
    receiver.answer(move |push| Answer::Status(if push.json()["id"] == id.as_str() { status } else { 200 }));
}

/// Takes all from now on.
fn take_all(receiver: &Receiver) {
    receiver.answer(|_| Answer::Status(200));
}

/// Waits until exactly these were answered with success.
fn wait_taken<'e>(receiver: &Receiver, events: impl IntoIterator<Item = &'e Event>) {
    let all = keys(events);
    wait_until("all taken", || receiver.taken(PATH) == all);
}

/// What was received of an event, again and again, in its order.
fn pushes_of(receiver: &Receiver, event: &Event) -> Vec<Push> {
    receiver.pushes(PATH).into_iter().filter(|push| push.key() == event.key()).collect()
}

/// Waits until an event was received so often.
fn wait_pushes(receiver: &Receiver, event: &Event, count: usize) {
    wait_until("sent again", || pushes_of(receiver, event).len() == count);
}

/// The revs of all that was received, in its order.
fn revs(receiver: &Receiver) -> Vec<u64> {
    receiver.pushes(PATH).iter().map(Push::rev).collect()
}

/// Runs a command that must do what it is told; what it says beside the data.
fn run(system: &System, arguments: &[&str]) -> String {
    let output = system.cli(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

fn exit_code(system: &System, arguments: &[&str]) -> Option<i32> {
    system.cli(arguments).status.code()
}

/// A command on an object of the source.
fn on_object(system: &System, command: &str, object: &str) {
    run(system, &["object", command, "acme", "hmac", object]);
}

/// The rows that a command prints; none where it finds nothing.
fn rows(system: &System, arguments: &[&str]) -> Vec<Value> {
    system.json(arguments).as_array().cloned().unwrap_or_default()
}

fn parked(system: &System) -> Vec<Value> {
    rows(system, &["object", "parked"])
}

/// All dead letters, by record: those of one millisecond have no order of their own.
fn letters(system: &System) -> Vec<Value> {
    let mut letters = rows(system, &["dead", "list"]);
    letters.sort_by_key(|letter| letter["record"].to_string());
    letters
}

fn wait_letters(system: &System, count: usize) {
    wait_until("so many letters left", || letters(system).len() == count);
}

fn texts(rows: &[Value], field: &str) -> Vec<String> {
    rows.iter().map(|row| text(row, field).to_owned()).collect()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_else(|| panic!("no text {field} in {value}"))
}

/// What each arrival of an event did, whatever their order.
fn outcomes(system: &System, id: &str) -> Vec<String> {
    let mut outcomes = texts(&rows(system, &["event", "trace", "acme", "hmac", id]), "outcome");
    outcomes.sort();
    outcomes
}

/// Sends an event, and waits for what becomes of it.
fn send_and_see(system: &System, event: &Event) -> Vec<String> {
    send(system, std::slice::from_ref(event));
    wait_until("decided", || !outcomes(system, &event.id()).is_empty());
    outcomes(system, &event.id())
}

fn get_object(system: &System, object: &str) -> Value {
    system.json(&["object", "get", "acme", "hmac", object])
}

/// The object is at this event, and its state is that event's body.
fn check_state(system: &System, event: &Event) {
    let stored = get_object(system, &event.object);
    let state: Value = serde_json::from_slice(&event.body()).expect("JSON");
    assert_eq!((text(&stored, "event"), text(&stored, "version")), (event.id().as_str(), event.n.to_string().as_str()));
    assert_eq!(stored["state"], state);
}

/// Idempotency keys of the file's effects, none of which comes twice.
fn effects_once(system: &System) -> BTreeSet<String> {
    let effects = texts(&system.effects(), "idempotency_key");
    let keys: BTreeSet<_> = effects.iter().cloned().collect();
    assert_eq!(keys.len(), effects.len(), "an effect came twice: {effects:?}");
    keys
}

/// This object is parked, for this sink, before this event; and no other is.
fn check_parked(system: &System, sink: &str, event: &Event) {
    let all = parked(system);
    assert_eq!(all.len(), 1, "{all:?}");
    let told = ["tenant", "source", "object", "sink", "state", "first_event"].map(|field| text(&all[0], field));
    assert_eq!(told, ["acme", "hmac", &event.object, sink, "parked", &event.id()]);
    assert!(text(&all[0], "cause").contains("400"), "{all:?}");
}

/// An object whose second event is refused is parked there, visibly, and again after a redrive that came too soon.
/// Once the receiver is mended a redrive sends the rest in order.
fn a_parked_object_is_released_in_order(engine: Engine) {
    let receiver = Receiver::start();
    // A name that must be encoded wherever it stands.
    let (of_x, of_y) = (events("x/1", 1..=5), events("y", 1..=5));
    refuse(&receiver, &of_x[1].id(), 400);
    let system = start(engine, &one_sink(&receiver, DELTA, ""));
    send(&system, &of_x);
    send(&system, &of_y);
    wait_taken(&receiver, of_x[..1].iter().chain(&of_y));
    system.wait_processed();
    check_parked(&system, "app", &of_x[1]);

    on_object(&system, "redrive", "x/1");
    wait_pushes(&receiver, &of_x[1], 2);
    wait_until("parked again", || parked(&system).len() == 1);
    check_parked(&system, "app", &of_x[1]);
    assert_eq!(receiver.taken(PATH), keys(of_x[..1].iter().chain(&of_y)), "it let nothing pass");

    take_all(&receiver);
    on_object(&system, "redrive", "x/1");
    wait_taken(&receiver, of_x.iter().chain(&of_y));
    wait_until("nothing is parked", || parked(&system).is_empty());
    receiver.check_order();
    receiver.check_marks();
    let counts: Vec<_> = of_x.iter().map(|event| pushes_of(&receiver, event).len()).collect();
    assert_eq!(counts, [1, 3, 1, 1, 1], "only what was refused came again");
    assert_eq!(exit_code(&system, &["object", "redrive", "acme", "hmac", "x/1"]), Some(3), "it is not parked");
}

/// The first event that is parked is left out, for good, and the rest goes on in order.
fn what_is_skipped_is_never_sent_again(engine: Engine) {
    let receiver = Receiver::start();
    let sent = events("x", 1..=5);
    refuse(&receiver, "x-2", 400);
    let system = start(engine, &one_sink(&receiver, DELTA, ""));
    send(&system, &sent);
    wait_taken(&receiver, &sent[..1]);
    system.wait_processed();
    check_parked(&system, "app", &sent[1]);
    on_object(&system, "skip", "x");
    wait_taken(&receiver, sent.iter().filter(|event| event.n != 2));
    wait_until("nothing is parked", || parked(&system).is_empty());
    let later = events("x", 6..=6);
    send(&system, &later);
    wait_taken(&receiver, sent.iter().chain(&later).filter(|event| event.n != 2));
    assert_eq!(revs(&receiver), [1, 2, 3, 4, 5, 6], "in order, and what was refused but once");
    receiver.check_marks();
    assert!(letters(&system).is_empty(), "what is skipped is no dead letter");
}

/// A refused snapshot is a letter. Redriven it has its old key and its old rev, and says that it came before; while
/// its sink still refuses it, it ends as the letter that it was.
fn a_refused_effect_is_sent_again_as_it_was(engine: Engine) {
    let receiver = Receiver::start();
    let sent = events("x", 1..=3);
    refuse(&receiver, "x-2", 422);
    let system = start(engine, &one_sink(&receiver, SNAPSHOT, ""));
    send(&system, &sent);
    wait_taken(&receiver, sent.iter().filter(|event| event.n != 2));
    system.wait_processed();
    let before = letters(&system);
    assert_eq!((texts(&before, "cause"), texts(&before, "event_id")), (vec!["refused".into()], vec!["x-2".into()]));

    let said = run(&system, &["dead", "redrive", "--id", "x-2"]);
    assert!(said.contains("redriven 1 of 1 letters"), "{said}");
    wait_pushes(&receiver, &sent[1], 2);
    let is_anew = |letters: Vec<Value>| letters.len() == 1 && letters[0]["dead"] != before[0]["dead"];
    wait_until("a letter again", || is_anew(letters(&system)));
    system.wait_processed();
    assert_eq!(texts(&letters(&system), "event_id"), ["x-2"], "and it stays one");

    take_all(&receiver);
    run(&system, &["dead", "redrive", "--id", text(&before[0], "record")]);
    wait_taken(&receiver, &sent);
    wait_letters(&system, 0);
    let pushes = pushes_of(&receiver, &sent[1]);
    let told: Vec<_> = pushes.iter().map(|push| (push.rev(), push.is_resent())).collect();
    assert_eq!(told, [(2, false), (2, true), (2, true)]);
    assert!(pushes.iter().all(|push| push.body == sent[1].body()));
    receiver.check_order();
}

/// Events that a wrong declaration made dead: a dry run counts them and changes nothing, a redrive applies each once,
/// at the rate that was asked for.
fn dead_events_are_decided_by_a_mended_declaration(engine: Engine) {
    const RATE: u32 = 10;
    let mut system = start(engine, &to_file(&SNAPSHOT.replace("body:/version", "body:/wrong")));
    let objects = ["a", "b", "c"].map(|object| events(object, 1..=4));
    objects.iter().for_each(|events| send(&system, events));
    system.wait_processed();
    assert_eq!(texts(&letters(&system), "cause"), vec!["version"; 12]);
    mend(&mut system, "body:/wrong", "body:/version");

    let (before, logged) = (letters(&system), system.log_count());
    let redrive = ["dead", "redrive", "--source", "hmac"];
    let said = run(&system, &[&redrive[..], &["--dry-run"]].concat());
    assert!(said.contains("would act on 12 of 12 letters"), "{said}");
    system.wait_processed();
    assert_eq!((letters(&system), system.log_count()), (before, logged), "it changes nothing");

    let started = Instant::now();
    let said = run(&system, &[&redrive[..], &["--rate", &RATE.to_string()]].concat());
    assert!(said.contains("redriven 12 of 12 letters"), "{said}");
    assert!(started.elapsed() >= Duration::from_secs(11) / RATE, "{:?}", started.elapsed());
    wait_letters(&system, 0);
    system.wait_processed();
    objects.iter().for_each(|events| check_state(&system, &events[3]));
    assert_eq!(effects_once(&system), keys(objects.iter().flatten()));
    for events in &objects {
        assert_eq!(outcomes(&system, &events[0].id()), ["applied", "dead"], "{events:?}");
    }
}

/// Events for which no object could be found are keyed anew. One that names none under the mended declaration either
/// is left alone, and told.
fn what_had_no_object_finds_it_by_a_mended_declaration(engine: Engine) {
    let mut system = start(engine, &to_file(&SNAPSHOT.replace("body:/object", "body:/wrong")));
    let objects = ["a", "b/2"].map(|object| events(object, 1..=2));
    objects.iter().for_each(|events| send(&system, events));
    send_text(&system, r#"{"id":"homeless","version":1}"#);
    system.wait_processed();
    let before = letters(&system);
    assert_eq!(texts(&before, "cause"), vec!["unroutable"; 5]);
    assert_eq!(texts(&before, "object"), vec![""; 5]);
    mend(&mut system, "body:/wrong", "body:/object");

    let said = run(&system, &["dead", "redrive", "--cause", "unroutable"]);
    assert!(said.contains("redriven 4 of 5 letters") && said.contains("left alone: 1 ("), "{said}");
    assert!(said.contains("body:/object"), "it says what is missing: {said}");
    wait_letters(&system, 1);
    system.wait_processed();
    objects.iter().for_each(|events| check_state(&system, &events[1]));
    let effects = effects_once(&system);
    // The letters are of different lanes: which of two versions comes first is open.
    assert!(objects.iter().all(|events| effects.contains(&events[1].key())), "{effects:?}");
    for event in objects.iter().flatten() {
        assert!(["applied", "stale"].contains(&outcomes(&system, &event.id()).concat().as_str()), "{event:?}");
    }
    let left = letters(&system);
    assert!(text(&system.whole_letters()[0], "value").contains("homeless"), "{left:?}");
    assert!(before.contains(&left[0]), "it was not even touched");
}

/// A provider that delivers a dead event again, once the declaration is mended, is enough. A redrive of the letter
/// after that does no harm.
fn a_redelivery_of_a_dead_event_needs_no_redrive(engine: Engine) {
    let mut system = start(engine, &to_file(&SNAPSHOT.replace("body:/version", "body:/wrong")));
    let event = &events("x", 1..=1)[0];
    assert_eq!(send_and_see(&system, event), ["dead"]);
    mend(&mut system, "body:/wrong", "body:/version");
    send(&system, std::slice::from_ref(event));
    system.wait_processed();
    assert_eq!(outcomes(&system, "x-1"), ["applied", "dead"]);
    check_state(&system, event);
    assert_eq!(letters(&system)[0]["resolved"], true);
    run(&system, &["dead", "redrive", "--tenant", "acme", "--object", "x"]);
    wait_letters(&system, 0);
    system.wait_processed();
    assert_eq!(outcomes(&system, "x-1"), ["applied", "dead", "duplicate"]);
    assert_eq!(effects_once(&system), keys([event]));
}

/// Only the letters that the filters leave go. Without a filter all are meant only where it says so.
fn a_discard_removes_what_was_named_and_nothing_else(engine: Engine) {
    let system = start(engine, &to_file(SNAPSHOT));
    for id in ["1", "2"] {
        send_text(&system, &format!(r#"{{"id":"v{id}","object":"x","version":"many"}}"#));
        send_text(&system, &format!(r#"{{"id":"u{id}","version":1}}"#));
    }
    system.wait_processed();
    let groups = rows(&system, &["dead", "list", "--group"]);
    let counts: Vec<_> = groups.iter().map(|group| (text(group, "cause"), group["letters"].clone())).collect();
    assert_eq!(counts, [("unroutable", 2.into()), ("version", 2.into())]);
    let before = letters(&system);

    assert_eq!(exit_code(&system, &["dead", "discard"]), Some(2));
    assert_eq!(exit_code(&system, &["dead", "redrive"]), Some(2));
    let said = run(&system, &["dead", "discard", "--cause", "version", "--dry-run"]);
    assert!(said.contains("would act on 2 of 2 letters"), "{said}");
    system.wait_processed();
    assert_eq!(letters(&system), before, "nothing of this changes anything");

    let said = run(&system, &["dead", "discard", "--cause", "version", "--by", "kim", "--reason", "a test"]);
    assert!(said.contains("discarded 2 of 2 letters"), "{said}");
    wait_letters(&system, 2);
    system.wait_processed();
    let left: Vec<_> = before.iter().filter(|letter| letter["cause"] == "unroutable").cloned().collect();
    assert_eq!(letters(&system), left);
    run(&system, &["dead", "discard", "--all"]);
    wait_letters(&system, 0);
}

/// Resets of the object x, as its history shows them.
fn resets(system: &System) -> usize {
    let history = rows(system, &["object", "history", "acme", "hmac", "x"]);
    history.iter().filter(|row| row["type"] == "seriatim.reset_version").count()
}

fn reset(system: &System) {
    run(system, &["object", "reset-version", "acme", "hmac", "x", "--by", "kim", "--reason", "restored"]);
    wait_until("reset", || resets(system) == 1);
}

fn version(n: u64) -> Event {
    Event { object: "x".to_owned(), n }
}

/// After a reset the next event is applied, whatever its version; and though a crash makes the reset be read again,
/// what was decided since is not opened again.
fn an_order_that_is_reset_begins_anew_once(engine: Engine) {
    let mut system = System::with_settings(engine, &to_file(SNAPSHOT), NEVER_ADVANCE);
    system.start(Role::All);
    assert_eq!(send_and_see(&system, &version(100)), ["applied"]);
    assert_eq!(send_and_see(&system, &version(5)), ["stale"]);
    reset(&system);
    assert_eq!(send_and_see(&system, &version(6)), ["applied"]);
    check_state(&system, &version(6));
    assert_eq!(send_and_see(&system, &version(50)), ["applied"]);
    system.kill(Role::All);
    system.start(Role::All);
    assert_eq!(send_and_see(&system, &version(7)), ["stale"]);
    check_state(&system, &version(50));
    assert_eq!(resets(&system), 1);
    assert_eq!(effects_once(&system), keys(&[version(100), version(6), version(50)]));
    let revs: Vec<_> = system.effects().iter().map(|effect| effect["rev"].clone()).collect();
    assert_eq!(revs, [1, 2, 3]);
}

/// A reset is about what comes after it: an event that came before and was stale is not decided anew when a crash
/// makes it be read again.
fn what_was_stale_before_a_reset_stays_so_after_a_crash(engine: Engine) {
    let mut system = System::with_settings(engine, &to_file(SNAPSHOT), NEVER_ADVANCE);
    system.start(Role::All);
    assert_eq!(send_and_see(&system, &version(100)), ["applied"]);
    assert_eq!(send_and_see(&system, &version(90)), ["stale"]);
    reset(&system);
    system.kill(Role::All);
    system.start(Role::All);
    assert_eq!(send_and_see(&system, &version(6)), ["applied"]);
    check_state(&system, &version(6));
    assert_eq!(outcomes(&system, "x-90"), ["stale"]);
    assert_eq!(effects_once(&system), keys(&[version(100), version(6)]));
}

const POISON: &str = "poison";

fn of_poison(receiver: &Receiver) -> usize {
    receiver.pushes(PATH).iter().filter(|push| push.json()["object"] == POISON).count()
}

/// One partition of everything, so that whatever could stand in the way of something does.
const ONE_PARTITION: [(&str, &str); 2] = [("SERIATIM_KAFKA__PARTITIONS", "1"), ("SERIATIM_CQL__BUCKETS", "1")];

/// Of 1,000 objects one is refused, all of it: every other effect arrives, and the log is done with. Then its backlog
/// is sent, while new events of it arrive and the owner of it is killed three times: all of it arrives, in order.
fn a_poisoned_object_stops_no_other_and_comes_through_kills(engine: Engine) {
    let receiver = Receiver::start();
    receiver.answer(|push| Answer::Status(if push.json()["object"] == POISON { 400 } else { 200 }));
    let mut system = System::with_variables(engine, &one_sink(&receiver, DELTA, ""), "", &ONE_PARTITION);
    let role = start_parts(&mut system);
    let mut lanes: Vec<_> = (1..1000).map(|n| events(&format!("o{n}"), 1..=3)).collect();
    let good: Vec<Event> = lanes.concat();
    let mut poison = events(POISON, 1..=10);
    lanes.insert(500, poison.clone());
    send_lanes(&system, lanes);
    wait_taken(&receiver, &good);
    system.wait_processed();
    check_parked(&system, "app", &poison[0]);
    assert_eq!(of_poison(&receiver), 1, "its first, and that but once");

    // Slow, so that its backlog outlives each kill.
    let slowly = |push: &Push| Duration::from_millis(if push.json()["object"] == POISON { 300 } else { 0 });
    receiver.answer(move |push| Answer::After(slowly(push)));
    on_object(&system, "redrive", POISON);
    for round in 0..3 {
        let before = of_poison(&receiver);
        wait_until("on its way", || of_poison(&receiver) > before + 2);
        let later = events(POISON, 11 + 3 * round..=13 + 3 * round);
        send(&system, &later);
        poison.extend(later);
        system.kill(role);
        system.start(role);
    }
    wait_taken(&receiver, good.iter().chain(&poison));
    system.wait_processed();
    wait_until("nothing waits", || rows(&system, &["object", "parked", "--waiting"]).is_empty());
    receiver.check_order();
    receiver.check_marks();
}

/// What one sink refuses is nothing to another of the same source, neither while it is parked nor when it is redriven.
fn a_sink_that_refuses_parks_for_itself_alone(engine: Engine) {
    let (well, strict) = (Receiver::start(), Receiver::start());
    let sent = events("x", 1..=5);
    refuse(&strict, "x-2", 400);
    let sinks = sink("well", &well, "") + &sink("strict", &strict, "");
    let system = start(engine, &(source(&["well", "strict"], DELTA) + &sinks));
    send(&system, &sent);
    wait_taken(&well, &sent);
    system.wait_processed();
    check_parked(&system, "strict", &sent[1]);
    assert_eq!(exit_code(&system, &["object", "skip", "acme", "hmac", "x", "--sink", "well"]), Some(3));
    take_all(&strict);
    run(&system, &["object", "redrive", "acme", "hmac", "x", "--sink", "strict"]);
    wait_taken(&strict, &sent);
    strict.check_order();
    strict.check_marks();
    assert_eq!(revs(&well), [1, 2, 3, 4, 5]);
    assert!(well.pushes(PATH).iter().all(|push| !push.is_resent()));
}

/// An act is in the log before it is done: nobody need be there to do it.
fn an_act_waits_for_the_processor(engine: Engine) {
    let receiver = Receiver::start();
    let sent = events("x", 1..=5);
    refuse(&receiver, "x-2", 400);
    let mut system = System::new(engine, &one_sink(&receiver, DELTA, ""));
    let role = start_parts(&mut system);
    send(&system, &sent);
    wait_taken(&receiver, &sent[..1]);
    system.wait_processed();
    system.terminate(role);
    take_all(&receiver);
    on_object(&system, "redrive", "x");
    check_parked(&system, "app", &sent[1]);
    system.start(role);
    wait_taken(&receiver, &sent);
    wait_until("nothing waits", || rows(&system, &["object", "parked", "--waiting"]).is_empty());
    receiver.check_order();
    receiver.check_marks();
}

/// Sends a signal to a part.
fn signal(system: &System, role: Role, name: &str) {
    let sent = Command::new("kill").args([name, &system.pid(role).to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Operators who all redrive an object at once: it is sent once, one effect after the other.
fn acts_at_once_do_not_send_at_once(engine: Engine) {
    const OPERATORS: usize = 8;
    let receiver = Receiver::start();
    let sent = events("x", 1..=4);
    refuse(&receiver, "x-1", 400);
    let mut system = System::new(engine, &one_sink(&receiver, DELTA, ""));
    let role = start_parts(&mut system);
    send(&system, &sent);
    system.wait_processed();
    check_parked(&system, "app", &sent[0]);
    receiver.answer(|_| Answer::After(Duration::from_millis(200)));
    // Each of them finds it parked.
    signal(&system, role, "-STOP");
    let redrive = || system.command(&["object", "redrive", "acme", "hmac", "x"]).stderr(Stdio::null()).spawn();
    let operators: Vec<_> = (0..OPERATORS).map(|_| redrive().expect("it starts")).collect();
    for mut operator in operators {
        assert!(operator.wait().expect("it ends").success());
    }
    signal(&system, role, "-CONT");
    wait_taken(&receiver, &sent);
    system.wait_processed();
    wait_until("nothing waits", || rows(&system, &["object", "parked", "--waiting"]).is_empty());
    receiver.check_order();
    receiver.check_marks();
    assert_eq!(revs(&receiver), [1, 1, 2, 3, 4], "what was refused again, all else once");
}

/// Behind `waiting_max` effects have no row of their own. One of them that is refused is parked and skipped as any.
fn what_waits_in_the_log_alone_can_be_skipped(engine: Engine) {
    let receiver = Receiver::start();
    let sent = events("x", 1..=6);
    refuse(&receiver, "x-1", 400);
    let system = start(engine, &one_sink(&receiver, DELTA, "waiting_max = 2"));
    send(&system, &sent);
    system.wait_processed();
    check_parked(&system, "app", &sent[0]);
    refuse(&receiver, "x-4", 400);
    on_object(&system, "redrive", "x");
    wait_taken(&receiver, &sent[..3]);
    wait_until("parked again", || parked(&system).len() == 1);
    wait_pushes(&receiver, &sent[3], 1);
    on_object(&system, "skip", "x");
    wait_taken(&receiver, sent.iter().filter(|event| event.n != 4));
    wait_until("nothing is parked", || parked(&system).is_empty());
    assert_eq!(pushes_of(&receiver, &sent[3]).len(), 1, "it is never sent again");
    receiver.check_order();
    receiver.check_marks();
}

/// A redriven effect is older than all that waits for its sink: it must find its place though there is no room.
fn a_full_queue_loses_no_effect_that_is_redriven(engine: Engine) {
    let mut receiver = Receiver::start();
    let sent = events("x", 1..=6);
    refuse(&receiver, "x-1", 422);
    let system = start(engine, &one_sink(&receiver, SNAPSHOT, "waiting_max = 2"));
    send(&system, &sent[..1]);
    system.wait_processed();
    assert_eq!(texts(&letters(&system), "event_id"), ["x-1"]);
    receiver.down();
    send(&system, &sent[1..]);
    system.wait_processed();
    assert!(parked(&system).is_empty(), "it waits, and needs no operator");
    assert_eq!(texts(&rows(&system, &["object", "parked", "--waiting"]), "state"), ["waiting"]);
    run(&system, &["dead", "redrive", "--id", "x-1"]);
    wait_letters(&system, 0);
    take_all(&receiver);
    receiver.up();
    wait_taken(&receiver, &sent);
    receiver.check_order();
    receiver.check_marks();
}

/// Of a refused effect the letter is all there is: where its sink is not there any more it stays until it is.
fn a_letter_whose_sink_is_gone_stays(engine: Engine) {
    let receiver = Receiver::start();
    let sent = events("x", 1..=1);
    refuse(&receiver, "x-1", 422);
    let mut system = start(engine, &one_sink(&receiver, SNAPSHOT, ""));
    send(&system, &sent);
    system.wait_processed();
    assert_eq!(texts(&letters(&system), "cause"), ["refused"]);
    take_all(&receiver);
    mend(&mut system, "\"app\"", "\"renamed\"");
    system.cli(&["dead", "redrive", "--cause", "refused"]);
    system.wait_processed();
    assert_eq!(texts(&letters(&system), "event_id"), ["x-1"], "it was not sent, so it is not gone");
    mend(&mut system, "\"renamed\"", "\"app\"");
    run(&system, &["dead", "redrive", "--cause", "refused"]);
    wait_taken(&receiver, &sent);
    wait_letters(&system, 0);
}

/// Nothing was mended: whatever the cause is, the letters are what they were.
fn what_would_be_dead_again_is_left_alone(engine: Engine) {
    let system = start(engine, &to_file(&SNAPSHOT.replace("integer", "unix_s")));
    // None, one that cannot be read, and one in the year 2100.
    for body in [
        r#"{"id":"none","object":"x"}"#,
        r#"{"id":"text","object":"x","version":"soon"}"#,
        r#"{"id":"far","object":"x","version":4102444800}"#,
    ] {
        send_text(&system, body);
    }
    system.wait_processed();
    let before = letters(&system);
    let causes: BTreeSet<_> = texts(&before, "cause").into_iter().collect();
    assert_eq!((before.len(), causes), (3, ["future", "version"].map(str::to_owned).into()));
    let said = run(&system, &["dead", "redrive", "--all"]);
    system.wait_processed();
    assert_eq!(letters(&system), before, "{said}");
    assert!(said.contains("redriven 0 of 3 letters"), "{said}");
}

/// Acts in the log, by type, that the ledger shows as done, with who did it and why.
fn acts_in_ledger(system: &System) -> Vec<String> {
    let tail = system.cli(&["tail", "--from-start", "--no-follow", "--output", "json"]);
    let lines = String::from_utf8(tail.stdout).expect("text");
    let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    let controls: Vec<Value> = records.filter(|record| record["kind"] == "control").collect();
    let is_told = |control: &&Value| {
        let arrivals = rows(system, &["event", "trace", "acme", "hmac", text(control, "event_id")]);
        let detail = |arrival: &Value| arrival["detail"].as_str().unwrap_or_default().to_owned();
        let names_all = |detail: &str| detail.contains("by kim") && detail.contains("a reason");
        arrivals.iter().any(|arrival| arrival["outcome"] == "applied" && names_all(&detail(arrival)))
    };
    let mut told: Vec<_> = controls.iter().filter(is_told).map(|control| text(control, "type").to_owned()).collect();
    told.sort();
    told
}

/// What an operator did, and why, is told where everything else is that happened.
fn acts_stand_in_the_ledger(engine: Engine) {
    let (parking, dropping) = (Receiver::start(), Receiver::start());
    let sent = events("x", 1..=2);
    [&parking, &dropping].iter().for_each(|receiver| refuse(receiver, "x-1", 400));
    let sinks = sink("parking", &parking, "refused = \"park\"") + &sink("dropping", &dropping, "");
    let system = start(engine, &(source(&["parking", "dropping"], SNAPSHOT) + &sinks));
    send(&system, &sent);
    system.wait_processed();
    check_parked(&system, "parking", &sent[0]);
    wait_letters(&system, 1);
    let act = |arguments: &[&str]| run(&system, &[arguments, &["--by", "kim", "--reason", "a reason"]].concat());
    act(&["object", "redrive", "acme", "hmac", "x"]);
    wait_pushes(&parking, &sent[0], 2);
    wait_until("parked again", || parked(&system).len() == 1);
    act(&["object", "skip", "acme", "hmac", "x"]);
    wait_taken(&parking, &sent[1..]);
    act(&["dead", "redrive", "--id", "x-1"]);
    wait_pushes(&dropping, &sent[0], 2);
    system.wait_processed();
    wait_letters(&system, 1);
    act(&["dead", "discard", "--id", "x-1"]);
    wait_letters(&system, 0);
    act(&["object", "reset-version", "acme", "hmac", "x"]);
    system.wait_processed();
    let all = ["discard", "redrive", "redrive_effect", "reset_version", "skip"].map(|act| format!("seriatim.{act}"));
    assert_eq!(acts_in_ledger(&system), all);
}
