//! Bodies made to be read in two ways, or to bring a reader down.
//! Duplicate keys: after adcontextprotocol/adcp#2483 and #2522, letsencrypt/boulder#1078.
//! Depth, size and numbers: after octokit's CVE-2023-50728 and the recursion limit of serde_json.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{BY_VERSION, deliver, get_object, hmac_source, signed, text};
use crate::support::{Engine, Role, System};

/// A hostile body may take this long to be answered, on a busy machine. Something quadratic takes far longer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const BODY_BYTES_MAX: usize = 983_040;

#[test]
fn a_key_that_comes_twice_where_ids_and_versions_are_read_is_a_dead_letter() {
    let declare = "declare = { event_id = 'body:/meta/id', object = 'body:/data/o', version = { from = 'body:/v', kind = 'integer' } }";
    let mut system = System::new(
        Engine::Embedded,
        &(hmac_source("acme", "flat", BY_VERSION) + &hmac_source("acme", "nested", declare)),
    );
    system.start(Role::All);
    let flat = [
        r#"{"id":"a","id":"b","o":"x","version":1,"v":1,"v":9}"#,
        r#"{"id":"a","id":"b","o":"x","v":1}"#,
        r#"{"id":"a","o":"x","v":1,"v":9}"#,
        r#"{"id":"a","o":"x","o":"y","v":1}"#,
        // Equal values are two keys all the same: another reader need not compare them.
        r#"{"id":"a","id":"a","o":"x","v":1}"#,
        // Equal once their escapes are read.
        r#"{"id":"a","\u0069d":"b","o":"x","v":1}"#,
        r#"{"\u0069\u0064":"a","id":"b","o":"x","v":1}"#,
        r#"{"\u0069d":"a","i\u0064":"b","o":"x","v":1}"#,
        r#"{"id":"a","o":"x","\u006f":"y","v":1}"#,
        r#"{"id":"a","o":"x","v":1,"\u0076":9}"#,
        r#"{"id":"a","\u006F":"x","\u006f":"y","v":1}"#,
        // One of the two is null, or not a scalar: some readers skip it.
        r#"{"id":"a","o":"x","o":null,"v":1}"#,
        r#"{"id":null,"id":"a","o":"x","v":1}"#,
        r#"{"id":"a","o":"x","v":1,"v":{}}"#,
        r#"{"id":"a","o":["x"],"o":"x","v":1}"#,
        // Far apart.
        &format!(r#"{{"id":"a","o":"x","v":1,"filler":"{}","id":"b"}}"#, "-".repeat(100_000)),
    ];
    let nested = [
        r#"{"meta":{"id":"a","id":"b"},"data":{"o":"x"},"v":1}"#,
        r#"{"meta":{"id":"a"},"data":{"o":"x","o":"y"},"v":1}"#,
        r#"{"meta":{"id":"a"},"data":{"o":"x"},"data":{"o":"y"},"v":1}"#,
        r#"{"meta":{"id":"a"},"meta":{"id":"b"},"data":{"o":"x"},"v":1}"#,
        // Each path is there once, over two objects of the same name.
        r#"{"meta":{"id":"a"},"data":{"o":"x"},"data":{},"v":1}"#,
        r#"{"meta":{},"meta":{"id":"a"},"data":{"o":"x"},"v":1}"#,
        r#"{"meta":{"id":"a"},"data":{"o":"x"},"d\u0061ta":{"o":"y"},"v":1}"#,
        r#"{"meta":{"id":"a"},"data":null,"data":{"o":"y"},"v":1}"#,
        r#"{"meta":{"id":"a"},"data":{"o":"x","\u006f":"y"},"v":1}"#,
        r#"{"meta":{"id":"a"},"data":{"o":"x"},"v":1,"\u0076":2}"#,
    ];
    let bodies: Vec<_> = flat.iter().map(|b| ("flat", *b)).chain(nested.iter().map(|b| ("nested", *b))).collect();
    for (source, body) in &bodies {
        assert_eq!(deliver(&signed(&system, "acme", source, *body)).status, 200, "{body}");
    }
    system.wait_processed();
    let dead = system.whole_letters();
    for (source, body) in &bodies {
        let found = dead.iter().any(|l| l["source"] == *source && l["value"] == *body);
        assert!(found, "no dead letter for {body}");
    }
    assert_eq!(dead.len(), bodies.len());
    assert!(system.effects().is_empty(), "{:?}", system.effects());
    for (source, object) in [("flat", "x"), ("flat", "y"), ("nested", "x"), ("nested", "y")] {
        assert!(get_object(&system, "acme", source, object).is_null(), "{source} {object}");
    }
}

#[test]
fn the_same_key_in_different_places_is_no_duplicate() {
    let mut system = System::new(Engine::Embedded, &hmac_source("acme", "hmac", BY_VERSION));
    system.start(Role::All);
    let body = r#"{"nested":{"id":"no","o":"no","v":0},"list":[{"id":"no"},{"id":"no"}],"id":"a","o":"x","v":1,"ID":"no","id ":"no"}"#;
    assert_eq!(deliver(&signed(&system, "acme", "hmac", body)).status, 200);
    system.wait_processed();
    let object = get_object(&system, "acme", "hmac", "x");
    assert_eq!((&object["event"], &object["version"]), (&"a".into(), &"1".into()));
}

/// An effect as a careful receiver reads it: numbers such as 1e400 are valid JSON, but no number of this language.
#[derive(Deserialize)]
struct Effect<'l> {
    object: String,
    #[serde(borrow)]
    data: &'l RawValue,
}

/// What a hostile body must become.
enum Fate {
    Dead(&'static str),
    /// It is odd, but valid, and odd only where nothing is read: the object has that version.
    Applied,
}

#[test]
fn hostile_json_neither_crashes_nor_delays() {
    let settings = format!("[ingest]\nbody_bytes_max = {BODY_BYTES_MAX}\n");
    let mut system = System::with_settings(Engine::Embedded, &hmac_source("acme", "hmac", BY_VERSION), &settings);
    system.start(Role::All);
    let bodies = hostile_bodies();
    for (nth, (what, body, _)) in bodies.iter().enumerate() {
        assert!(body.len() <= BODY_BYTES_MAX, "{what} is larger than the test may send");
        let started = Instant::now();
        assert_eq!(deliver(&signed(&system, "acme", "hmac", body.clone())).status, 200, "{what}");
        assert!(started.elapsed() < ANSWERED_WITHIN, "{what}: answered after {:?}", started.elapsed());
        // A good event behind each hostile one: nothing but the hostile one is held back.
        let good = format!(r#"{{"id":"good{nth}","o":"good","v":{nth}}}"#);
        assert_eq!(deliver(&signed(&system, "acme", "hmac", good)).status, 200, "after {what}");
    }
    let started = Instant::now();
    system.wait_processed();
    println!("{} hostile bodies processed within {:?} after the last answer", bodies.len(), started.elapsed());
    let dead = system.whole_letters();
    let lines = std::fs::read_to_string(system.path("effects.jsonl")).expect("effects");
    let effects: Vec<Effect<'_>> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut deaths = 0;
    for (what, body, fate) in &bodies {
        let letter = dead.iter().find(|l| l["value"].as_str().is_some_and(|v| v.as_bytes() == &body[..]));
        match fate {
            Fate::Dead(cause) => {
                let letter = letter.unwrap_or_else(|| panic!("{what} is no dead letter"));
                assert_eq!(text(letter, "cause"), *cause, "{what}: {}", text(letter, "detail"));
                assert!(text(letter, "detail").len() < 10_000, "{what}: the detail repeats the body");
                deaths += 1;
            }
            Fate::Applied => {
                assert!(letter.is_none(), "{what}: {}", letter.map_or("", |l| text(l, "detail")));
                let effect = effects.iter().find(|e| e.object == *what);
                let effect = effect.unwrap_or_else(|| panic!("{what} is neither applied nor a dead letter"));
                assert!(effect.data.get().as_bytes() == &body[..], "{what}: the sink got other bytes");
                let stored = system.cli(&["object", "get", "acme", "hmac", what, "--output", "json"]);
                let text = String::from_utf8_lossy(&stored.stdout);
                assert!(
                    stored.status.success() && text.contains(&*String::from_utf8_lossy(body)),
                    "{what}: the state is not these bytes"
                );
            }
        }
    }
    assert_eq!(dead.len(), deaths);
    let good = get_object(&system, "acme", "hmac", "good");
    assert_eq!(text(&good, "version"), (bodies.len() - 1).to_string());
    // The process is the one that was started: it did not end and come again.
    assert_eq!(system.metric("seriatim_ingest_accepted_total"), bodies.len() as f64 * 2.0);
}

fn hostile_bodies() -> Vec<(&'static str, Vec<u8>, Fate)> {
    let deep = 100_000;
    let digits = "9".repeat(900_000);
    // Each fits into the largest body with a little room for the rest.
    let long = "k".repeat(900_000);
    let many_keys: String = (0..100_000).map(|n| format!("\"{n:x}\":0,")).collect();
    let one_key: String = "\"k\":0,".repeat(160_000);
    let with = |what: &str, more: &str| format!(r#"{{{more}"id":"{what}","o":"{what}","v":1}}"#);
    let nest = |open: &str, close: &str| open.repeat(deep) + &close.repeat(deep);
    use Fate::{Applied, Dead};
    let table: Vec<(&str, String, Fate)> = vec![
        ("nested arrays", nest("[", "]"), Dead("unroutable")),
        ("arrays that never end", "[".repeat(BODY_BYTES_MAX), Dead("unroutable")),
        ("objects that never end", r#"{"a":"#.repeat(100_000), Dead("unroutable")),
        ("closing brackets only", "]".repeat(100_000), Dead("unroutable")),
        ("nested arrays beside", with("x", &format!("\"d\":{},", nest("[", "]"))), Dead("unroutable")),
        (
            "nested objects beside",
            with("x", &format!("\"d\":{}0{},", r#"{"a":"#.repeat(deep), "}".repeat(deep))),
            Dead("unroutable"),
        ),
        ("nested arrays as object", format!(r#"{{"id":"1","o":{},"v":1}}"#, nest("[", "]")), Dead("unroutable")),
        ("nested arrays as version", format!(r#"{{"id":"1","o":"x","v":{}}}"#, nest("[", "]")), Dead("unroutable")),
        ("brackets in a text", with("brackets in a text", &format!("\"d\":\"{}\",", "[{".repeat(deep))), Applied),
        (
            "brackets and quotes",
            with("brackets and quotes", &format!("\"d\":\"{}\",", r#"\"[\\"#.repeat(deep))),
            Applied,
        ),
        ("fifty levels", with("fifty levels", &format!("\"d\":{}{},", "[".repeat(50), "]".repeat(50))), Applied),
        ("a long key", with("a long key", &format!("\"{long}\":0,")), Applied),
        (
            "a long key of escapes",
            with("a long key of escapes", &format!("\"{}\":0,", r"\u0069".repeat(150_000))),
            Applied,
        ),
        ("many keys", with("many keys", &many_keys), Applied),
        ("one key many times", with("one key many times", &one_key), Applied),
        ("1e400 beside", with("1e400 beside", "\"n\":1e400,"), Applied),
        ("digits beside", with("digits beside", &format!("\"n\":{digits},")), Applied),
        ("exponent of digits beside", with("exponent of digits beside", &format!("\"n\":1e{digits},")), Applied),
        ("long id", format!(r#"{{"id":"{long}","o":"x","v":1}}"#), Dead("unroutable")),
        ("long object", format!(r#"{{"id":"1","o":"{long}","v":1}}"#), Dead("unroutable")),
        ("digits as object", format!(r#"{{"id":"1","o":{digits},"v":1}}"#), Dead("unroutable")),
        ("digits as id", format!(r#"{{"id":{digits},"o":"x","v":1}}"#), Dead("unroutable")),
        ("digits as version", format!(r#"{{"id":"1","o":"x","v":{digits}}}"#), Dead("version")),
        ("digits as text as version", format!(r#"{{"id":"1","o":"x","v":"{digits}"}}"#), Dead("version")),
        ("zeros as version", format!(r#"{{"id":"1","o":"x","v":"{}1"}}"#, "0".repeat(900_000)), Dead("version")),
        ("1e400 as version", r#"{"id":"1","o":"x","v":1e400}"#.to_owned(), Dead("version")),
        ("-1e400 as version", r#"{"id":"1","o":"x","v":-1e400}"#.to_owned(), Dead("version")),
        ("1e999999999999 as version", r#"{"id":"1","o":"x","v":1e999999999999}"#.to_owned(), Dead("version")),
        ("1.5 as version", r#"{"id":"1","o":"x","v":1.5}"#.to_owned(), Dead("version")),
        ("NaN as version", r#"{"id":"1","o":"x","v":"NaN"}"#.to_owned(), Dead("version")),
        ("true as version", r#"{"id":"1","o":"x","v":true}"#.to_owned(), Dead("version")),
        ("no version", r#"{"id":"1","o":"x"}"#.to_owned(), Dead("version")),
        ("no object", r#"{"id":"1","v":1}"#.to_owned(), Dead("unroutable")),
        ("an object as object", r#"{"id":"1","o":{"id":"x"},"v":1}"#.to_owned(), Dead("unroutable")),
        ("half a surrogate as object", r#"{"id":"1","o":"\ud800","v":1}"#.to_owned(), Dead("unroutable")),
        ("half a document", r#"{"id":"1","o":"x","v":1"#.to_owned(), Dead("unroutable")),
        ("two documents", r#"{"id":"1","o":"x","v":1}{"id":"2","o":"x","v":2}"#.to_owned(), Dead("unroutable")),
        ("a list", r#"[{"id":"1","o":"x","v":1}]"#.to_owned(), Dead("unroutable")),
        ("a text", r#""x""#.to_owned(), Dead("unroutable")),
        ("null", "null".to_owned(), Dead("unroutable")),
        ("nothing", String::new(), Dead("unroutable")),
        ("white space", " \n".repeat(400_000), Dead("unroutable")),
        ("no JSON", "<xml/>".to_owned(), Dead("unroutable")),
        ("a byte order mark", "\u{feff}{\"id\":\"1\",\"o\":\"x\",\"v\":1}".to_owned(), Dead("unroutable")),
    ];
    // Ids of their own: a dead letter of the same event would replace the one before.
    let unique = |what: &str, body: String| body.replacen(r#""id":"1""#, &format!(r#""id":"{what}""#), 1);
    table.into_iter().map(|(what, body, fate)| (what, unique(what, body).into_bytes(), fate)).collect()
}
