//! The admin API: what it tells, whom it tells it, and that its acts are done. What the commands tell through it is what
//! they tell without it; and whatever is asked, it answers as its own document says.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use futures::StreamExt as _;
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::{Value, json};

use crate::receiver::{Answer, Receiver};
use crate::support::{Engine, Role, SECRET, System, block_on, free_port, send_hmac, sign, source_of, wait_until};

on_each_engine!(
    every_route_tells_what_is_stored,
    acts_are_done_once_and_name_who_did_them,
    many_objects_come_in_pages,
    commands_tell_the_same_through_a_server,
);

const READ: &str = "read-token-0123456789";
const OPERATE: &str = "operate-token-0123456789";
const PATH: &str = "/app";
const DOCS: &str = include_str!("../../docs/api.md");

fn tokens() -> String {
    let token = |name: &str, role: &str, text: &str| {
        format!("[[admin.tokens]]\nname = \"{name}\"\nrole = \"{role}\"\ntoken = {{ value = \"{text}\" }}\n")
    };
    token("looker", "read", READ) + &token("oncall", "operate", OPERATE)
}

/// One answer of the API.
#[derive(Debug)]
struct Told {
    status: u16,
    content_type: String,
    headers: reqwest::header::HeaderMap,
    body: Vec<u8>,
}

impl Told {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    fn rows(&self) -> Vec<Value> {
        self.json()["rows"].as_array().unwrap_or_else(|| panic!("no rows: {self:?}")).clone()
    }

    /// An error, in the one form that errors have.
    fn problem(&self, status: u16) -> String {
        assert_eq!((self.status, self.content_type.as_str()), (status, "application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        assert!(problem["title"].is_string(), "{problem}");
        problem["detail"].as_str().expect("a detail").to_owned()
    }
}

fn ask(system: &System, method: &str, path: &str, token: Option<&str>, body: Option<(&str, &[u8])>) -> Told {
    let url = format!("http://127.0.0.1:{}/v1{path}", system.admin);
    block_on(async {
        let mut request = reqwest::Client::new().request(Method::from_bytes(method.as_bytes()).expect("a method"), url);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((content_type, body)) = body {
            request = request.header(CONTENT_TYPE, content_type).body(body.to_vec());
        }
        let answer = request.send().await.expect("an answer");
        let content_type = answer.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        Told {
            status: answer.status().as_u16(),
            content_type: content_type.to_owned(),
            headers: answer.headers().clone(),
            body: answer.bytes().await.expect("a body").to_vec(),
        }
    })
}

fn get(system: &System, path: &str) -> Told {
    ask(system, "GET", path, Some(READ), None)
}

/// What is there.
fn found(system: &System, path: &str) -> Told {
    let told = get(system, path);
    assert_eq!((told.status, told.content_type.as_str()), (200, "application/json"), "{path}: {told:?}");
    told
}

fn post(system: &System, path: &str, body: &Value) -> Told {
    let body = body.to_string();
    ask(system, "POST", path, Some(OPERATE), Some(("application/json", body.as_bytes())))
}

fn done(system: &System, path: &str, body: &Value) -> Value {
    let told = post(system, path, body);
    assert_eq!(told.status, 200, "{path}: {told:?}");
    told.json()
}

const SNAPSHOT: &str = "declare = { object = 'body:/object', version = { from = 'body:/version', kind = 'integer' } }";

/// Sends version `n` of an object.
fn send(system: &System, object: &str, n: u64) {
    let body = json!({ "id": format!("{object}-{n}"), "object": object, "version": n });
    assert_eq!(send_hmac(system, "acme", "hmac", body.to_string().as_bytes()), 200);
}

/// A source whose effects go to the file, and to a receiver, which refuses and parks what is of object `parked`. What
/// owns the objects has the API, and on the distributed engine no log open to append to.
fn start(engine: Engine, receiver: &Receiver) -> System {
    receiver.answer(|push| Answer::Status(if push.json()["object"] == "parked" { 400 } else { 200 }));
    let sink = format!(
        "[[sink]]\nname = \"app\"\n[sink.policy]\nrefused = \"park\"\nretry_min_ms = 50\nretry_max_ms = 500\n\
         [sink.push]\nurl = \"{}\"\ntimeout_ms = 1000\nallow_networks = [\"127.0.0.0/8\"]\n",
        receiver.url(PATH)
    );
    let mut system = System::with_settings(engine, &(source_of("acme", "hmac", SECRET, SNAPSHOT) + &sink), &tokens());
    if engine == Engine::Embedded {
        system.start(Role::All);
    } else {
        system.start(Role::Processor);
        system.start(Role::Ingest);
    }
    system
}

/// Of object x/1 three events, one of them stale and one that came twice; a parked object, and a dead letter.
fn fill(system: &System) {
    for n in [1, 3, 2, 3] {
        send(system, "x/1", n);
    }
    send(system, "o-1", 1);
    send(system, "parked", 1);
    send(system, "parked", 2);
    let dead = br#"{"id":"dead-1","object":"x/1","version":"no number"}"#;
    assert_eq!(send_hmac(system, "acme", "hmac", dead), 200);
    assert_eq!(send_hmac(system, "acme", "hmac", b"{\"id\":\"\xff\",\"object\":\"bytes\",\"version\":\"\xff\"}"), 200);
    system.wait_processed();
    wait_until("parked", || system.json(&["object", "parked"]).as_array().is_some_and(|all| all.len() == 1));
}

fn every_route_tells_what_is_stored(engine: Engine) {
    let receiver = Receiver::start();
    let system = start(engine, &receiver);
    fill(&system);
    let source = "/tenants/acme/sources/hmac";
    let object = format!("{source}/objects/x%2F1");

    let objects = found(&system, &format!("{source}/objects")).rows();
    let names: BTreeSet<_> = objects.iter().map(|o| o["object"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(names, ["o-1", "parked", "x/1"].map(str::to_owned).into());
    assert!(objects.iter().all(|o| o["state"].is_null()), "a list has no states: {objects:?}");

    let told = found(&system, &object).json();
    assert_eq!((&told["rev"], &told["event"], &told["version"]), (&2.into(), &"x/1-3".into(), &"3".into()));
    assert_eq!(told["state"], json!({ "id": "x/1-3", "object": "x/1", "version": 3 }));
    assert_eq!(told["waiting"], json!([]));
    let told = found(&system, &format!("{source}/objects/parked")).json();
    assert_eq!(told["waiting"][0]["sink"], "app");
    assert!(told["waiting"][0]["parked"].as_str().is_some_and(|why| why.contains("400")), "{told}");
    assert!(get(&system, &format!("{source}/objects/none")).problem(404).contains("acme/hmac/none"));

    let events = found(&system, &format!("{object}/events")).rows();
    let told: Vec<_> = events.iter().map(|e| json!([e["event"], e["rev"], e["outcome"]])).collect();
    let decided = [json!(["x/1-1", 1, "applied"]), json!(["x/1-3", 2, "applied"]), json!(["x/1-2", null, "stale"])];
    assert_eq!(told, decided, "a stale event of which nothing is sent has no rev");
    let arrivals = found(&system, &format!("{object}/arrivals")).rows();
    let outcomes: Vec<_> = arrivals.iter().map(|a| a["outcome"].as_str().expect("text")).collect();
    assert_eq!(outcomes, ["applied", "applied", "stale", "duplicate", "dead"]);
    let of_one = found(&system, &format!("{object}/arrivals?limit=2")).json();
    assert_eq!(of_one["rows"].as_array().map(Vec::len), Some(2));
    assert!(of_one["after"].is_string());

    let trace = found(&system, &format!("{source}/events/x%2F1-3")).json();
    let revs: Vec<_> = trace["arrivals"].as_array().expect("arrivals").iter().map(|a| a["rev"].clone()).collect();
    assert_eq!(revs, [json!(2), Value::Null]);
    assert_eq!(trace["decided"][0]["rev"], 2);
    let raw = get(&system, &format!("{source}/events/x%2F1-3/raw"));
    assert_eq!((raw.status, raw.content_type.as_str()), (200, "application/octet-stream"));
    assert_eq!(raw.json()["version"], 3);
    get(&system, &format!("{source}/events/none")).problem(404);
    get(&system, &format!("{source}/events/none/raw")).problem(404);

    let letters = found(&system, "/dead-letters?tenant=acme&source=hmac&object=x%2F1&cause=version&id=dead-1").rows();
    assert_eq!(letters.len(), 1);
    assert!(letters[0]["value"].is_null(), "a list has no bodies: {letters:?}");
    assert!(found(&system, "/dead-letters?cause=future").rows().is_empty());
    assert_eq!(found(&system, "/dead-letters").rows().len(), 2);
    let groups = found(&system, "/dead-letters/groups?cause=version").rows();
    assert_eq!((groups.len(), &groups[0]["tenant"]), (1, &"acme".into()), "{groups:?}");
    let letter = found(&system, "/dead-letters/acme/hmac/dead-1").json();
    assert_eq!(letter["value"], r#"{"id":"dead-1","object":"x/1","version":"no number"}"#);
    let by_record = format!("/dead-letters/acme/hmac/{}", letter["record"].as_str().expect("a record"));
    assert_eq!(found(&system, &by_record).json(), letter);
    let all = found(&system, "/dead-letters").rows();
    let other = all.iter().find(|l| l["event_id"] != "dead-1").expect("another").clone();
    let whole =
        found(&system, &format!("/dead-letters/acme/hmac/{}", other["record"].as_str().expect("a record"))).json();
    let coded = whole["value_base64"].as_str().expect("what is no text is coded");
    assert!(base64::engine::general_purpose::STANDARD.decode(coded).expect("base64").contains(&0xff));
    get(&system, "/dead-letters/acme/hmac/none").problem(404);

    let waiting = found(&system, "/waiting?tenant=acme&source=hmac&parked=true").rows();
    assert_eq!((waiting.len(), &waiting[0]["first_event"]), (1, &"parked-1".into()), "{waiting:?}");
    assert!(found(&system, "/waiting?parked=false").rows().is_empty());
    let sinks = found(&system, "/sinks").rows();
    let kinds: BTreeSet<_> = sinks.iter().map(|s| (s["name"].to_string(), s["kind"].to_string())).collect();
    let expected =
        [("app", "push"), ("effects", "json_lines")].map(|(n, k)| (json!(n).to_string(), json!(k).to_string()));
    assert_eq!(kinds, expected.into());
    assert!(sinks.iter().all(|s| s["away"] == false && s["pending_bytes"] == 0), "{sinks:?}");
    let lag = found(&system, "/lag").rows();
    assert!(!lag.is_empty() && lag.iter().all(|l| l["lag"] == 0), "{lag:?}");
}

fn acts_are_done_once_and_name_who_did_them(engine: Engine) {
    let receiver = Receiver::start();
    let mut system = start(engine, &receiver);
    fill(&system);
    let parked = "/tenants/acme/sources/hmac/objects/parked";
    let of_parked = || receiver.pushes(PATH).iter().filter(|push| push.json()["object"] == "parked").count();
    let before = of_parked();

    // A dry run says what would be done, and does nothing.
    let logged = system.log_count();
    let would = done(&system, &format!("{parked}/redrive"), &json!({ "dry_run": true }));
    assert_eq!((&would["sink"], &would["rev"], &would["dry_run"]), (&"app".into(), &1.into(), &true.into()));
    let would = done(&system, "/dead-letters/discard", &json!({ "filter": { "id": "dead-1" }, "dry_run": true }));
    assert_eq!((&would["matching"], &would["done"]), (&1.into(), &1.into()));
    assert_eq!(system.log_count(), logged);

    // Skipped, the first is never sent; the second is parked in its place, and then redriven.
    done(&system, &format!("{parked}/skip"), &json!({ "sink": "app", "reason": "a reason" }));
    wait_until("the second is refused", || of_parked() == before + 1);
    let is_second = || found(&system, "/waiting?parked=true").rows().first().is_some_and(|w| w["first_rev"] == 2);
    wait_until("parked again", is_second);
    receiver.answer(|_| Answer::Status(200));
    done(&system, &format!("{parked}/redrive"), &json!({ "reason": "a reason" }));
    wait_until("nothing is parked", || found(&system, "/waiting").rows().is_empty());
    system.wait_processed();
    assert_eq!(of_parked(), before + 2, "redriven once");
    receiver.check_order();
    receiver.check_marks();
    post(&system, &format!("{parked}/redrive"), &json!({})).problem(404);
    post(&system, &format!("{parked}/skip"), &json!({ "sink": "effects" })).problem(404);

    // What would be dead again is left alone, and told; the rest is discarded.
    let left = done(&system, "/dead-letters/redrive", &json!({ "all": true }));
    assert_eq!((&left["matching"], &left["done"], &left["after"]), (&2.into(), &0.into(), &Value::Null), "{left}");
    let counted: u64 =
        left["left_alone"].as_array().expect("reasons").iter().filter_map(|l| l["letters"].as_u64()).sum();
    assert_eq!(counted, 2, "{left}");
    let discard = json!({ "filter": { "id": "dead-1" }, "reason": "a reason" });
    assert_eq!(done(&system, "/dead-letters/discard", &discard)["done"], 1);
    wait_until("discarded", || found(&system, "/dead-letters").rows().len() == 1);
    post(&system, "/dead-letters/discard", &json!({})).problem(422);

    // Its order begins anew: what was older is applied.
    let object = "/tenants/acme/sources/hmac/objects/x%2F1";
    done(&system, &format!("{object}/reset-version"), &json!({ "reason": "a reason" }));
    system.wait_processed();
    post(&system, "/tenants/acme/sources/hmac/objects/none/reset-version", &json!({})).problem(404);
    post(&system, &format!("{object}/reset-version"), &json!({ "sink": "app" })).problem(422);
    let body = br#"{"id":"later","object":"x/1","version":2}"#;
    assert_eq!(send_hmac(&system, "acme", "hmac", body), 200);
    system.wait_processed();
    assert_eq!(found(&system, object).json()["version"], "2");

    // The ledger names the token, whatever is claimed.
    let tail = system.cli(&["tail", "--from-start", "--no-follow", "--output", "json"]);
    let records: Vec<Value> =
        String::from_utf8_lossy(&tail.stdout).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let mut acts = Vec::new();
    for act in records.iter().filter(|record| record["kind"] == "control") {
        let id = act["event_id"].as_str().expect("an id").replace('/', "%2F");
        let arrivals = found(&system, &format!("/tenants/acme/sources/hmac/events/{id}")).json();
        let detail = arrivals["arrivals"][0]["detail"].as_str().unwrap_or_default().to_owned();
        assert!(detail.contains("by oncall: a reason"), "{detail}");
        acts.push(act["type"].as_str().expect("a type").to_owned());
    }
    acts.sort();
    assert_eq!(acts, ["discard", "redrive", "reset_version", "skip"].map(|act| format!("seriatim.{act}")));
    system.terminate(if engine == Engine::Embedded { Role::All } else { Role::Processor });
}

fn many_objects_come_in_pages(engine: Engine) {
    const OBJECTS: usize = 1100;
    let mut system = System::with_settings(engine, &source_of("acme", "hmac", SECRET, SNAPSHOT), &tokens());
    system.start(Role::All);
    let (client, url) = (reqwest::Client::new(), system.url("acme", "hmac"));
    let send = |n: usize| {
        let body = format!(r#"{{"id":"e{n}","object":"o-{n}","version":1}}"#);
        let request = client.post(&url).header("x-signature", sign(SECRET, body.as_bytes())).body(body);
        async move { assert_eq!(request.send().await.expect("an answer").status(), 200) }
    };
    block_on(futures::stream::iter(0..OBJECTS).map(send).buffer_unordered(16).for_each(|()| async {}));
    system.wait_processed();
    let mut names = Vec::new();
    let (mut after, mut pages) = (String::new(), 0);
    loop {
        let page = found(&system, &format!("/tenants/acme/sources/hmac/objects?limit=100{after}")).json();
        let rows = page["rows"].as_array().expect("rows");
        assert!(rows.len() <= 100);
        names.extend(rows.iter().map(|o| o["object"].as_str().expect("a name").to_owned()));
        pages += 1;
        match page["after"].as_str() {
            Some(place) => after = format!("&after={place}"),
            None => break,
        }
    }
    let once: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!((names.len(), once.len()), (OBJECTS, OBJECTS), "each once");
    assert!((11..=13).contains(&pages), "{pages} pages");
    for limit in [1, 1000, 1001, OBJECTS + 1] {
        let listed = system.json(&["object", "list", "acme", "hmac", "--limit", &limit.to_string()]);
        assert_eq!(listed.as_array().map(Vec::len), Some(limit.min(OBJECTS)));
    }
}

/// Exit code, data and talk of a command.
fn run(system: &System, arguments: &[&str], through_server: bool) -> (Option<i32>, String, String) {
    let mut command = system.command(arguments);
    command.env_remove("SERIATIM_SERVER").env("USER", "oncall");
    if through_server {
        command.arg("--server").arg(format!("http://127.0.0.1:{}", system.admin)).env("SERIATIM_TOKEN", OPERATE);
    }
    let output = command.output().expect("runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn commands_tell_the_same_through_a_server(engine: Engine) {
    let receiver = Receiver::start();
    let system = start(engine, &receiver);
    fill(&system);
    let commands = [
        "object get acme hmac x/1",
        "object get acme hmac parked",
        "object get acme hmac none",
        "object list acme hmac",
        "object list acme hmac --limit 2",
        "object history acme hmac x/1",
        "object history acme hmac none",
        "object parked",
        "object parked --waiting --tenant acme --source hmac",
        "object parked --tenant nobody",
        "object redrive acme hmac parked --dry-run",
        "object skip acme hmac parked --sink app --dry-run",
        "object skip acme hmac parked --sink none",
        "object redrive acme hmac x/1",
        "object reset-version acme hmac x/1 --dry-run",
        "object reset-version acme hmac none",
        "event get acme hmac x/1-3",
        "event get acme hmac dead-1",
        "event raw acme hmac x/1-3",
        "event trace acme hmac x/1-3",
        "event trace acme hmac none",
        "dead list",
        "dead list --tenant acme --cause version --id dead-1",
        "dead list --group",
        "dead show acme hmac dead-1",
        "dead show acme hmac dead-1 --raw",
        "dead show acme hmac none",
        "dead redrive --all --dry-run",
        "dead redrive --source hmac",
        "dead discard --id dead-1 --dry-run",
        "dead discard",
        "dead discard --all --rate 0",
        "lag",
    ];
    for command in commands {
        for format in ["json", "table"] {
            let arguments: Vec<_> = command.split(' ').chain(["--output", format]).collect();
            let direct = run(&system, &arguments, false);
            assert_eq!(run(&system, &arguments, true), direct, "{command}");
            assert!(matches!(direct.0, Some(0 | 2 | 3)), "{command}: {direct:?}");
        }
    }
    // And an act is one.
    assert_eq!(run(&system, &["dead", "discard", "--id", "dead-1"], true).2, "discarded 1 of 1 letters\n");
    wait_until("discarded", || system.json(&["dead", "list"]).as_array().is_some_and(|all| all.len() == 1));
}

#[test]
fn who_may_not_is_told_so_and_nothing_else() {
    let receiver = Receiver::start();
    let system = start(Engine::Embedded, &receiver);
    fill(&system);
    let object = "/tenants/acme/sources/hmac/objects/x%2F1";
    let json_body = Some(("application/json", &b"{}"[..]));

    let document = ask(&system, "GET", "/openapi.json", None, None);
    assert_eq!((document.status, document.content_type.as_str()), (200, "application/json"));
    let document = document.json();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("methods").keys() {
            let row = format!("| `{} /v1{path}` |", method.to_uppercase());
            assert!(DOCS.contains(&row), "{row} is not in docs/api.md");
        }
        let path = path.replace(['{', '}'], "");
        for method in item.as_object().expect("methods").keys().map(|method| method.to_uppercase()) {
            for token in [None, Some("none"), Some(&READ[1..]), Some("")] {
                let told = ask(&system, &method, &path, token, json_body);
                told.problem(401);
                assert_eq!(told.headers["www-authenticate"], "Bearer");
            }
            if method == "POST" {
                ask(&system, &method, &path, Some(READ), json_body).problem(403);
                let of = |content_type| Some((content_type, &b"{}"[..]));
                for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
                    ask(&system, &method, &path, Some(OPERATE), of(content_type)).problem(415);
                }
                ask(&system, &method, &path, Some(OPERATE), None).problem(415);
                let large = vec![b' '; 64 * 1024 + 1];
                ask(&system, &method, &path, Some(OPERATE), Some(("application/json", &large))).problem(413);
                ask(&system, &method, &path, Some(OPERATE), Some(("application/json", b"{"))).problem(400);
                ask(&system, &method, &path, Some(OPERATE), Some(("application/json", b"[1]"))).problem(422);
                ask(&system, &method, &path, Some(OPERATE), Some(("application/json", b"{\"x\":1}"))).problem(422);
            }
            assert!(ask(&system, "PATCH", &path, Some(OPERATE), None).problem(405).contains("method"));
        }
    }
    assert_eq!(ask(&system, "PUT", "/lag", Some(READ), None).headers["allow"], "GET,HEAD");

    let objects = "/tenants/acme/sources/hmac/objects";
    for wrong in ["limit=0", "limit=1001", "after=x", "after=e30x", "after=", "after=bnVsbA"] {
        get(&system, &format!("{objects}?{wrong}")).problem(422);
        get(&system, &format!("/dead-letters?{wrong}")).problem(422);
        get(&system, &format!("{object}/events?{wrong}")).problem(422);
        get(&system, &format!("{object}/arrivals?{wrong}")).problem(422);
        get(&system, &format!("/tenants/acme/sources/hmac/events/x?{wrong}")).problem(422);
        get(&system, &format!("/waiting?{wrong}")).problem(422);
    }
    for wrong in ["limit=99999999999999999999", "limit=-1", "limit=x", "other=1", "limit=1&limit=2"] {
        get(&system, &format!("{objects}?{wrong}")).problem(400);
    }
    get(&system, "/waiting?parked=maybe").problem(400);
    get(&system, "/tenants/%FF/sources/hmac/objects").problem(400);
    get(&system, "/tenants/acme/sources/hmac/objects/%00").problem(404);
    assert!(found(&system, "/tenants/%00/sources/%00/objects").rows().is_empty());
    get(&system, "/no/such/path").problem(404);
    get(&system, "/tenants/acme/sources/hmac/objects/").problem(404);
    for wrong in [
        json!({ "all": true, "rate": 0 }),
        json!({ "all": true, "reason": "x".repeat(2001) }),
        json!({ "all": true, "after": "x" }),
    ] {
        post(&system, "/dead-letters/discard", &wrong).problem(422);
    }
    // A bad request is nobody else's trouble.
    let url = format!("http://127.0.0.1:{}/livez", system.admin);
    assert_eq!(block_on(async { reqwest::get(url).await.expect("an answer").status() }), 200);
}

#[test]
fn without_tokens_nobody_is_let_in() {
    let source = source_of("acme", "hmac", SECRET, SNAPSHOT);
    let mut system = System::new(Engine::Embedded, &source);
    system.start(Role::All);
    for token in [None, Some(""), Some(READ)] {
        assert!(ask(&system, "GET", "/lag", token, None).problem(401).contains("configure admin.tokens"));
    }
    assert_eq!(ask(&system, "GET", "/openapi.json", None, None).status, 200);
    // What protects nothing is refused at the start, and by check.
    for (token, said) in [
        ("{ value = \"short\" }", "admin.tokens.0 (oncall)"),
        ("{ env = \"SERIATIM_TEST_NO_SUCH\" }", "SERIATIM_TEST_NO_SUCH"),
        ("{ file = \"/no/such/file\" }", "/no/such/file"),
    ] {
        let settings = format!("[[admin.tokens]]\nname = \"oncall\"\nrole = \"read\"\ntoken = {token}\n");
        let system = System::with_settings(Engine::Embedded, &source, &settings);
        for command in ["check", "run"] {
            let output = system.cli(&[command]);
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && err.contains(said), "{command}: {err}");
            assert!(!err.contains("short\""), "{err}");
        }
    }
    let twice = tokens().replace("looker", "oncall");
    let output = System::with_settings(Engine::Embedded, &source, &twice).cli(&["check", "--without-secrets"]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && err.contains("admin.tokens.1.name: is used more than once"), "{err}");
}

/// An edge alone, on files that no processor has made yet.
#[test]
fn while_the_store_is_away_it_says_so() {
    let mut system = System::with_settings(Engine::Embedded, &source_of("acme", "hmac", SECRET, SNAPSHOT), &tokens());
    system.admin = free_port();
    let mut edge = system.command(&["run", "--role", "ingest"]).spawn().expect("it starts");
    let url = format!("http://127.0.0.1:{}/livez", system.admin);
    wait_until("listening", || block_on(async { reqwest::get(&url).await.is_ok() }));
    let told = get(&system, "/tenants/acme/sources/hmac/objects/x");
    let detail = told.problem(503);
    assert!(told.headers.contains_key("retry-after") && detail.contains("state.db"), "{detail}");
    // A command through it says the same, as a failure that is nobody's mistake.
    let (code, out, err) = run(&system, &["lag"], true);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("state.db"), "{err}");
    edge.kill().expect("it runs");
    edge.wait().expect("waited");
    // Once it is there, it is told.
    system.start(Role::All);
    assert_eq!(get(&system, "/lag").status, 200);
}

#[test]
fn a_server_that_cannot_be_asked_is_told_with_its_remedy() {
    let mut system = System::new(Engine::Embedded, &source_of("acme", "hmac", SECRET, SNAPSHOT));
    system.start(Role::All);
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let edge = format!("http://127.0.0.1:{}", system.edge);
    for (server, token, code, said) in [
        (nobody.as_str(), Some(READ), 1, "does not answer"),
        (nobody.as_str(), None, 2, "SERIATIM_TOKEN is not set"),
        ("http://seriatim.example", Some(READ), 2, "readable on the way"),
        ("seriatim", Some(READ), 2, "--server seriatim"),
        // Something else answers there.
        (edge.as_str(), Some(READ), 1, "is it the admin address"),
    ] {
        let mut command = system.command(&["lag", "--server", server]);
        command.env_remove("SERIATIM_TOKEN").envs(token.iter().map(|token| ("SERIATIM_TOKEN", token)));
        let output = command.output().expect("runs");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && err.contains(said), "{server}: {:?}: {err}", output.status);
        assert!(!err.contains(READ), "{err}");
    }
}

/// Requests of all kinds that Schemathesis makes from the document, good ones and bad, of what is there and what is not:
/// none is answered in another way than the document says, and none by an error of ours.
#[test]
fn it_answers_as_its_document_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api");
    let installed = Command::new(folder.join("install")).output().expect("tests/api/install runs");
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let schemathesis = String::from_utf8(installed.stdout).expect("a path");
    let receiver = Receiver::start();
    let system = start(Engine::Embedded, &receiver);
    fill(&system);
    let mut command = Command::new(schemathesis.trim_end());
    command.arg("--config-file").arg(folder.join("schemathesis.toml"));
    command.arg("run").arg(format!("http://127.0.0.1:{}/v1/openapi.json", system.admin));
    command.args(["--header", &format!("Authorization: Bearer {OPERATE}"), "--seed", "1", "--max-examples", "50"]);
    command.args([
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    ]);
    // It keeps what it found in its folder.
    let output = command.current_dir(system.folder.path()).env("NO_COLOR", "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    let generated = said.lines().find_map(|line| line.trim().split_once(" generated, "));
    let count = generated.and_then(|(count, _)| count.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count > 500) && said.contains("Tested: 18"), "{said}");
    // And it still does what it is there for.
    send(&system, "after", 1);
    system.wait_processed();
    assert_eq!(found(&system, "/tenants/acme/sources/hmac/objects/after").json()["rev"], 1);
}
