use proptest::prelude::*;

use super::*;

fn key(text: &str, kind: VersionKind) -> OrderKey {
    Version::parse(text, kind, &[]).expect("a valid version").order_key(RANK_UNLISTED, "")
}

/// Stored by every object ever seen: these bytes must never change.
#[test]
fn order_keys_are_frozen() {
    use VersionKind::*;
    let table = [
        ("0", Integer, "1080008000"),
        ("1", Integer, "108131008000"),
        ("-1", Integer, "107e38ff8000"),
        ("18446744073709551615", Integer, "1094313834343637343430373337303935353136313500"),
        ("1.50", Decimal, "1081313500"),
        ("-0.5", Decimal, "107f34ff"),
        ("1970-01-01T00:00:01Z", Rfc3339, "208a3130303030303030303000"),
        ("1", UnixS, "208a3130303030303030303000"),
        ("a\0b", Lexical, "406100ff620001"),
    ];
    for (text, kind, hexed) in table {
        let bytes = hex::encode(key(text, kind).0);
        assert!(bytes.starts_with(hexed), "{text}: {bytes}");
        assert_eq!(&bytes[bytes.len() - 4..], "8000");
    }
    let full = Version::parse("7", Integer, &[]).expect("valid").order_key(0x8001, "evt_1");
    assert_eq!(hex::encode(full.0), "108137008001".to_owned() + &hex::encode("evt_1"));
    let states = ["open".to_owned(), "closed".to_owned()];
    let state = Version::parse("closed", Ranked, &states).expect("declared").order_key(RANK_UNLISTED, "");
    assert_eq!(hex::encode(state.0), "308131008000");
}

#[test]
fn integers_cover_64_bits_and_no_more() {
    let rising = [
        "-9223372036854775808",
        "-1",
        "0",
        "1",
        "2147483647",
        "2147483648",
        "9007199254740992",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
    ];
    let keys: Vec<_> = rising.iter().map(|v| key(v, VersionKind::Integer)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
    for beyond in ["18446744073709551616", "1000000000000000000000000000000", "-9223372036854775809"] {
        let error = Version::parse(beyond, VersionKind::Integer, &[]).expect_err("out of range");
        assert_eq!(error, VersionError::OutOfRange { text: beyond.into() });
        assert!(Version::parse(beyond, VersionKind::Decimal, &[]).is_ok());
    }
    for bad in ["", "1.0", "1e2", "+1", " 1", "0x1", "NaN", "1_0", "١"] {
        assert!(Version::parse(bad, VersionKind::Integer, &[]).is_err(), "{bad:?}");
    }
}

#[test]
fn equal_numbers_have_equal_keys() {
    for (a, b) in [("1", "001"), ("1.5", "1.500"), ("0", "-0"), ("0.0", "0"), ("-1.50", "-01.5")] {
        assert_eq!(key(a, VersionKind::Decimal), key(b, VersionKind::Decimal), "{a} {b}");
    }
    let digits = "1".repeat(41);
    assert!(matches!(Version::parse(&digits, VersionKind::Decimal, &[]), Err(VersionError::TooManyDigits { .. })));
}

#[test]
fn instants_are_compared_not_their_spelling() {
    let same = [
        "2026-01-01T15:00:20Z",
        "2026-01-01T10:00:20-05:00",
        "2026-01-01 15:00:20 UTC",
        "2026-01-01T15:00:20",
        "2026-01-01T15:00:20+0000",
        "2026-01-01T15:00:20.000000000+00:00",
    ];
    for text in same {
        assert_eq!(key(text, VersionKind::Rfc3339), key(same[0], VersionKind::Rfc3339), "{text}");
    }
    let finer = ["2026-01-01T15:00:20.000000001Z", "2026-01-01T15:00:20.0000001Z", "2026-01-01T15:00:20.001Z"];
    let keys: Vec<_> = finer.iter().map(|v| key(v, VersionKind::Rfc3339)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
    assert!(key("1969-12-31T23:59:59Z", VersionKind::Rfc3339) < key("1970-01-01T00:00:00Z", VersionKind::Rfc3339));
    for bad in ["2026-01-01", "yesterday", "1767225600", "2026-13-01T00:00:00Z", ""] {
        assert!(Version::parse(bad, VersionKind::Rfc3339, &[]).is_err(), "{bad}");
    }
}

#[test]
fn a_wrong_unit_is_noticed() {
    assert!(matches!(
        Version::parse("1767225600123", VersionKind::UnixS, &[]),
        Err(VersionError::OtherUnit { looks_like: "milliseconds", .. })
    ));
    assert!(matches!(
        Version::parse("1767225600", VersionKind::UnixMs, &[]),
        Err(VersionError::OtherUnit { looks_like: "seconds", .. })
    ));
    assert_eq!(key("1767225600.5", VersionKind::UnixS), key("1767225600500", VersionKind::UnixMs));
}

#[test]
fn ranks_stand_around_the_star() {
    let ranks: Vec<_> = ["*.created", "*", "*.canceled", "*.deleted"].map(|p| Pattern(p.into())).into();
    assert_eq!(rank_of("a.created", &ranks), 0x7fff);
    assert_eq!(rank_of("a.updated", &ranks), 0x8000);
    assert_eq!(rank_of("a.deleted", &ranks), 0x8002);
    assert_eq!(rank_of("a.deleted", &[Pattern("*.deleted".into())]), 0x8001);
    assert_eq!(rank_of("x", &[]), RANK_UNLISTED);
}

proptest! {
    #[test]
    fn integers_keep_their_order(a in any::<i64>(), b in any::<i64>()) {
        let (ka, kb) = (key(&a.to_string(), VersionKind::Integer), key(&b.to_string(), VersionKind::Integer));
        prop_assert_eq!(ka.cmp(&kb), a.cmp(&b));
    }

    #[test]
    fn decimals_keep_their_order(a in -999_999i64..999_999, b in -999_999i64..999_999) {
        let text = |v: i64| format!("{}{}.{:03}", if v < 0 { "-" } else { "" }, v.abs() / 1000, v.abs() % 1000);
        let (ka, kb) = (key(&text(a), VersionKind::Decimal), key(&text(b), VersionKind::Decimal));
        prop_assert_eq!(ka.cmp(&kb), a.cmp(&b));
    }

    #[test]
    fn texts_keep_their_order(a in ".{0,20}", b in ".{0,20}", rank in 0u16.., tie in ".{0,5}") {
        let k = |t: &str| Version::parse(t, VersionKind::Lexical, &[]).expect("any text").order_key(rank, &tie);
        prop_assert_eq!(k(&a).cmp(&k(&b)), a.as_bytes().cmp(b.as_bytes()));
    }

    #[test]
    fn a_greater_version_wins_over_any_rank_and_tie(a: u64, b: u64, ra: u16, rb: u16, ta in ".{0,8}", tb in ".{0,8}") {
        let k = |v: u64, r, t: &str| Version::parse(&v.to_string(), VersionKind::Integer, &[]).expect("valid").order_key(r, t);
        prop_assert_eq!(k(a, ra, &ta).cmp(&k(b, rb, &tb)), (a, ra, ta.as_bytes()).cmp(&(b, rb, tb.as_bytes())));
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,300}") {
        for kind in [VersionKind::Integer, VersionKind::Decimal, VersionKind::Rfc3339, VersionKind::UnixS, VersionKind::UnixMs] {
            let _ = Version::parse(&text, kind, &[]);
        }
    }
}

#[test]
fn instants_are_told_apart() {
    let at = |text: &str| Version::parse(text, VersionKind::Instant, &[]).expect("an instant").instant_ns();
    for same in
        ["1539202764", "1539202764000", "1539202764.000", "2018-10-10T20:19:24Z", "Wed Oct 10 20:19:24 +0000 2018"]
    {
        assert_eq!(at(same), Some(1_539_202_764_000_000_000), "{same}");
    }
    for bad in ["", "x", "Wed Oct 10", "12e9", "2018-10-10"] {
        assert!(Version::parse(bad, VersionKind::Instant, &[]).is_err(), "{bad}");
    }
}

#[test]
fn local_times_have_a_declared_offset() {
    let parse = |text: &str, offset: &str| {
        let offset = offset.parse().expect("an offset");
        Version::parse_at(text, VersionKind::Rfc3339, &[], offset).expect("an instant").instant_ns()
    };
    assert_eq!(parse("2026-01-01 00:00:00", "-03:00"), parse("2026-01-01T03:00:00Z", "+00:00"));
    assert_eq!(parse("2026-01-01T00:00:00Z", "-03:00"), parse("2026-01-01 00:00:00 UTC", "-03:00"));
    for bad in ["3", "-3:00", "+24:00", "-03:60", "03:00"] {
        assert!(bad.parse::<ZoneOffset>().is_err(), "{bad}");
    }
    assert_eq!("-03:30".parse::<ZoneOffset>().map(|o| o.to_string()), Ok("-03:30".to_owned()));
}
