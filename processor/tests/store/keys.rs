//! Keys come from outside: whatever bytes they hold, two of them are two objects, and two events.

use std::sync::Arc;

use seriatim_processor::inspect::Inspect;
use seriatim_processor::store::{Committed, Store};
use seriatim_schemas::key::ObjectKey;
use seriatim_schemas::outcome::Outcome;

use crate::sample::{arrival, batch, commit, events, has_arrived, key, object, read, record_arrivals, unique};

const LONG_BYTES: usize = 2048;

/// Texts that a careless encoding, comparison or trim would take for one another.
fn odd_texts() -> Vec<String> {
    let plain = [
        "a",
        "A",
        "a ",
        " a",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a%252Fb",
        "a/",
        "/a",
        "a\0",
        "a\0b",
        "\0",
        "a\u{1f}b",
        "\u{1f}",
        "a'b",
        "a\"b",
        "a;--",
        "%",
        "_",
        "*",
        "~unroutable",
        "~evidence",
        "null",
        "0",
        "-1",
        "é",
        "e\u{301}",
        "ß",
        "日本語",
        "🦀",
        "\u{feff}a",
        "\u{ffff}",
    ];
    let long = "x".repeat(LONG_BYTES);
    let long = [long.clone(), format!("{long}y"), format!("{}y", &long[1..])];
    plain.iter().map(|t| (*t).to_owned()).chain(long).collect()
}

pub async fn keys_with_odd_characters_stay_apart<S: Store + Inspect>(store: Arc<S>) {
    let tenant = unique("t");
    let mut keys: Vec<_> = odd_texts().into_iter().chain([String::new()]).map(|object| key(&tenant, &object)).collect();
    // The parts must not run into one another either.
    let parts = [
        ("", "s", "a/b"),
        ("", "s/a", "b"),
        ("/s", "a", "b"),
        ("%2Fs", "a", "b"),
        ("", "s\0a", "b"),
        ("\0s", "a", "b"),
    ];
    for (more, source, object) in parts {
        keys.push(ObjectKey::new(format!("{tenant}{more}"), source, object));
    }
    let mut written = Vec::new();
    for key in &keys {
        let first = batch(key, None, &["e1"]);
        assert_eq!(commit(&*store, std::slice::from_ref(&first)).await, Committed::Applied, "{key} was never seen");
        let came = arrival(key, "evt", Outcome::Applied);
        record_arrivals(&*store, std::slice::from_ref(&came)).await;
        written.push((first, came));
    }
    for (key, (first, came)) in keys.iter().zip(&written) {
        let object = object(&*store, key).await.unwrap_or_else(|| panic!("{key} is there"));
        assert_eq!((&object.key, &object.head), (key, &first.head), "{key}");
        assert_eq!(events(&*store, key).await, first.rows, "{key}");
        assert_eq!(read(&*store, key, &["e1"]).await.rows.get("e1"), first.rows.first(), "{key}");
        assert_eq!(has_arrived(&*store, &[came]).await, [came.row.record], "{key}");
        let arrivals = store.arrivals(key).await.expect("arrivals answers");
        assert_eq!(arrivals.iter().map(|a| a.row.record).collect::<Vec<_>>(), [came.row.record], "{key}");
    }
}

pub async fn event_rows_with_odd_characters_stay_apart<S: Store + Inspect>(store: Arc<S>) {
    let key = key(&unique("t"), "a");
    let mut head = None;
    let texts = odd_texts();
    let mut written = Vec::new();
    for text in &texts {
        let next = batch(&key, head.as_ref(), &[text]);
        assert_eq!(commit(&*store, std::slice::from_ref(&next)).await, Committed::Applied, "{text:?} was never seen");
        head = Some(next.head);
        let mut came = arrival(&key, text, Outcome::Applied);
        came.row.event_row = text.clone();
        record_arrivals(&*store, std::slice::from_ref(&came)).await;
        written.push((next.rows.into_iter().next().expect("one row"), came));
    }
    let names: Vec<_> = texts.iter().map(String::as_str).collect();
    let view = read(&*store, &key, &names).await;
    assert_eq!(view.rows.len(), names.len());
    for (row, came) in &written {
        assert_eq!(view.rows.get(&row.row), Some(row));
        assert_eq!(
            commit(&*store, &[batch(&key, head.as_ref(), &[&row.row])]).await,
            Committed::Refused,
            "{:?} exists",
            row.row
        );
        let mut other = came.clone();
        other.row.event_row = format!("{}/", came.row.event_row);
        assert_eq!(has_arrived(&*store, &[came, &other]).await, [came.row.record]);
        let traced = store.trace(&key.tenant, &key.source, &came.row.event_id).await.expect("trace answers");
        assert_eq!(traced.iter().map(|a| &a.row).collect::<Vec<_>>(), [&came.row]);
    }
}
