//! Versions and order keys. Providers spell the order of an object in many ways; the store compares
//! one byte string. A version never passes through a float, and text is never compared as a number
//! by accident.
//!
//! Order key: `kind u8 | magnitude | rank u16 BE | tie`.
//! - number (kind 0x10: integer, decimal), instant (0x20: ns since 1970), state (0x30: its place in the
//!   declared list): `sign-and-length u8 | digits | end u8`. For values >= 0 the first byte is 0x80 + count
//!   of integer digits, the digits are ASCII (integer digits, then fraction digits without trailing
//!   zeros), the end is 0x00. For values < 0 the first byte is 0x7f - count, each digit is its nine's
//!   complement, the end is 0xff. At most 40 digits.
//! - text (0x40: lexical): the bytes, 0x00 as 0x00 0xff, then 0x00 0x01.
//! - rank: 0x8000 + place in the declared list, relative to `*`; see [`rank_of`].
//! - tie: the event's row, so that any permutation of events ends in the same state; empty where ties
//!   go by log order.
//!
//! A next format takes other kind bytes; keys of two kinds never meet within one source.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use crate::pattern::Pattern;

/// Most digits of a number, integer and fraction together.
pub const DIGITS_MAX: usize = 40;
/// Longest text of a version, in bytes.
pub const VERSION_BYTES_MAX: usize = 256;

const NUMBER: u8 = 0x10;
const INSTANT: u8 = 0x20;
const STATE: u8 = 0x30;
const TEXT: u8 = 0x40;

/// Unix times from here on are milliseconds, below it seconds (1973 in ms, the year 5138 in s).
const SECONDS_END: i128 = 100_000_000_000;
const NS_PER_S: i128 = 1_000_000_000;
const NS_PER_MS: i128 = 1_000_000;

/// How a source's versions are written. All snapshot types of a source share one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VersionKind {
    /// A whole number of 64 bits, signed or unsigned: -2^63 to 2^64-1.
    Integer,
    /// A decimal number, compared as a number; at most 40 digits.
    Decimal,
    /// RFC 3339, any offset; also without zone (UTC), with ` UTC`, with `+0000`. Nanoseconds are kept.
    Rfc3339,
    /// Whole or fractional seconds since 1970.
    UnixS,
    /// Milliseconds since 1970.
    UnixMs,
    /// Any of the three above, told apart by how it is written; also `Wed Oct 10 20:19:24 +0000 2018`.
    Instant,
    /// One of the declared `states`, in that order.
    Ranked,
    /// Text, compared byte by byte. By choice only.
    Lexical,
}

impl VersionKind {
    /// Whether `text` written as `other` can be read and compared as this one.
    pub fn reads(self, other: Self) -> bool {
        self == other || self == Self::Instant && matches!(other, Self::Rfc3339 | Self::UnixS | Self::UnixMs)
    }
}

/// A version that was read: comparable within its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    key: Vec<u8>,
    instant_ns: Option<i128>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VersionError {
    #[error("version {text:?} is not {expected}")]
    Malformed { text: String, expected: &'static str },
    #[error("version {text:?} is beyond the range of a 64-bit integer: declare kind = \"decimal\"")]
    OutOfRange { text: String },
    #[error("version {text:?} has more than {DIGITS_MAX} digits")]
    TooManyDigits { text: String },
    #[error("version {text:?} looks like {looks_like}, but {declared} is declared")]
    OtherUnit { text: String, looks_like: &'static str, declared: &'static str },
    #[error("version {text:?} is not one of the declared states")]
    UnknownState { text: String },
    #[error("version of {bytes} bytes is longer than {VERSION_BYTES_MAX}")]
    TooLong { bytes: usize },
}

impl Version {
    /// Reads `text` as `kind` says. `states` counts for [`VersionKind::Ranked`] only.
    pub fn parse(text: &str, kind: VersionKind, states: &[String]) -> Result<Self, VersionError> {
        Self::parse_at(text, kind, states, ZoneOffset::UTC)
    }

    /// As [`Self::parse`]; a time without a zone is of `offset`.
    pub fn parse_at(
        text: &str,
        kind: VersionKind,
        states: &[String],
        offset: ZoneOffset,
    ) -> Result<Self, VersionError> {
        if text.len() > VERSION_BYTES_MAX {
            return Err(VersionError::TooLong { bytes: text.len() });
        }
        let owned = || text.to_owned();
        match kind {
            VersionKind::Integer => {
                let expected = || VersionError::Malformed { text: owned(), expected: "an integer" };
                let number = Decimal::parse(text).filter(|n| !n.has_point).ok_or_else(expected)?;
                let value: i128 = text.parse().map_err(|_| VersionError::OutOfRange { text: owned() })?;
                if !(i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value) {
                    return Err(VersionError::OutOfRange { text: owned() });
                }
                Ok(Self { key: number.encode(NUMBER), instant_ns: None })
            }
            VersionKind::Decimal => {
                let expected = || VersionError::Malformed { text: owned(), expected: "a decimal number" };
                let number = Decimal::parse(text).ok_or_else(expected)?;
                if number.integer.len() + number.fraction.len() > DIGITS_MAX {
                    return Err(VersionError::TooManyDigits { text: owned() });
                }
                Ok(Self { key: number.encode(NUMBER), instant_ns: None })
            }
            VersionKind::Rfc3339 => {
                let at = parse_instant_at(text, offset)
                    .ok_or_else(|| VersionError::Malformed { text: owned(), expected: "an RFC 3339 instant" })?;
                Ok(Self::instant(at.as_nanosecond()))
            }
            VersionKind::Instant => {
                let ns = parse_any_instant(text, offset).ok_or_else(|| VersionError::Malformed {
                    text: owned(),
                    expected: "an RFC 3339 instant, nor unix seconds or milliseconds",
                })?;
                Ok(Self::instant(ns))
            }
            VersionKind::UnixS => {
                let ns = parse_unix(text, NS_PER_S)
                    .ok_or_else(|| VersionError::Malformed { text: owned(), expected: "unix seconds" })?;
                if ns >= SECONDS_END * NS_PER_S {
                    let (looks_like, declared) = ("milliseconds", "unix_s");
                    return Err(VersionError::OtherUnit { text: owned(), looks_like, declared });
                }
                Ok(Self::instant(ns))
            }
            VersionKind::UnixMs => {
                let ns = parse_unix(text, NS_PER_MS)
                    .ok_or_else(|| VersionError::Malformed { text: owned(), expected: "unix milliseconds" })?;
                if ns < SECONDS_END * NS_PER_MS {
                    let (looks_like, declared) = ("seconds", "unix_ms");
                    return Err(VersionError::OtherUnit { text: owned(), looks_like, declared });
                }
                Ok(Self::instant(ns))
            }
            VersionKind::Ranked => {
                let place = states.iter().position(|state| state == text);
                let place = place.ok_or_else(|| VersionError::UnknownState { text: owned() })?;
                Ok(Self { key: Decimal::of(place as i128).encode(STATE), instant_ns: None })
            }
            VersionKind::Lexical => Ok(Self { key: encode_text(text.as_bytes()), instant_ns: None }),
        }
    }

    fn instant(ns: i128) -> Self {
        Self { key: Decimal::of(ns).encode(INSTANT), instant_ns: Some(ns) }
    }

    /// Nanoseconds since 1970, where the kind is an instant.
    pub fn instant_ns(&self) -> Option<i128> {
        self.instant_ns
    }

    /// The order key with this version: see the module's documentation for its bytes.
    pub fn order_key(&self, rank: u16, tie: &str) -> OrderKey {
        let mut key = self.key.clone();
        key.extend_from_slice(&rank.to_be_bytes());
        key.extend_from_slice(tie.as_bytes());
        OrderKey(key)
    }
}

/// Compares as the provider's order of an object: greater is newer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderKey(pub Vec<u8>);

/// The rank of a type not in the list, and of `*`.
pub const RANK_UNLISTED: u16 = 0x8000;

/// The rank of `event_type` in a declared list, lowest first. `"*"` stands for every type that is not
/// listed: what stands before it ranks below, what stands behind it above; without `"*"` all listed
/// types rank above. The first pattern that matches counts.
pub fn rank_of(event_type: &str, ranks: &[Pattern]) -> u16 {
    let listed = |p: &&Pattern| p.0 != Pattern::ANY;
    let Some(place) = ranks.iter().position(|p| listed(&p) && p.matches(event_type)) else {
        return RANK_UNLISTED;
    };
    let any = ranks.iter().position(|p| p.0 == Pattern::ANY);
    let offset = place as i32 - any.map_or(-1, |at| at as i32);
    (i32::from(RANK_UNLISTED) + offset) as u16
}

/// Reads an instant as providers write it: RFC 3339 with any offset, a space for `T`, a trailing ` UTC`,
/// or no zone at all (then UTC).
pub fn parse_instant(text: &str) -> Option<Timestamp> {
    parse_instant_at(text, ZoneOffset::UTC)
}

fn parse_instant_at(text: &str, offset: ZoneOffset) -> Option<Timestamp> {
    let (text, offset) = match text.strip_suffix(" UTC") {
        Some(utc) => (utc, ZoneOffset::UTC),
        None => (text, offset),
    };
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at);
    }
    let civil: DateTime = text.parse().ok()?;
    let zone = TimeZone::fixed(Offset::from_seconds(offset.seconds).ok()?);
    text.contains(':').then(|| zone.to_timestamp(civil).ok())?
}

/// Nanoseconds since 1970 of unix seconds or milliseconds (told apart by [`SECONDS_END`]), of RFC 3339, or of the
/// `ctime` form that X uses.
pub fn parse_any_instant(text: &str, offset: ZoneOffset) -> Option<i128> {
    match parse_unix(text, NS_PER_S) {
        Some(ns) if ns < SECONDS_END * NS_PER_S => Some(ns),
        _ => parse_unix(text, NS_PER_MS)
            .or_else(|| parse_instant_at(text, offset).map(Timestamp::as_nanosecond))
            .or_else(|| Timestamp::strptime("%a %b %d %H:%M:%S %z %Y", text).ok().map(Timestamp::as_nanosecond)),
    }
}

/// Offset of a local time from UTC: `+02:00`, `-03:00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneOffset {
    /// East of UTC.
    seconds: i32,
}

impl ZoneOffset {
    pub const UTC: Self = Self { seconds: 0 };
}

impl FromStr for ZoneOffset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (sign, rest) = text.strip_prefix('-').map(|r| (-1, r)).or(text.strip_prefix('+').map(|r| (1, r)))?;
            let (hours, minutes) = rest.split_once(':').filter(|(h, m)| h.len() == 2 && m.len() == 2)?;
            let (hours, minutes) = (hours.parse::<u8>().ok()?, minutes.parse::<u8>().ok()?);
            let in_day = hours < 24 && minutes < 60;
            in_day.then(|| Self { seconds: sign * (i32::from(hours) * 3600 + i32::from(minutes) * 60) })
        };
        parse().ok_or_else(|| format!("{text:?} is no offset from UTC such as -03:00"))
    }
}

impl fmt::Display for ZoneOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, minutes) = (if self.seconds < 0 { '-' } else { '+' }, self.seconds.abs() / 60);
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

impl<'de> Deserialize<'de> for ZoneOffset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl Serialize for ZoneOffset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for ZoneOffset {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ZoneOffset".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[+-][0-9]{2}:[0-9]{2}$" })
    }
}

/// `digits[.digits]` of a unit of `unit_ns` nanoseconds, exactly; what is finer than 1 ns is refused.
fn parse_unix(text: &str, unit_ns: i128) -> Option<i128> {
    let number = Decimal::parse(text)?;
    if number.integer.len() > 18 || number.fraction.len() > unit_ns.ilog10() as usize {
        return None;
    }
    let whole: i128 = if number.integer.is_empty() { 0 } else { number.integer.parse().ok()? };
    let mut ns = whole * unit_ns;
    if !number.fraction.is_empty() {
        let fraction: i128 = number.fraction.parse().ok()?;
        ns += fraction * unit_ns / 10_i128.pow(number.fraction.len() as u32);
    }
    Some(if number.negative { -ns } else { ns })
}

/// A decimal number as digits: no leading zeros in `integer`, no trailing ones in `fraction`.
struct Decimal {
    negative: bool,
    integer: String,
    fraction: String,
    has_point: bool,
}

impl Decimal {
    fn of(value: i128) -> Self {
        let digits = value.unsigned_abs().to_string();
        let integer = digits.trim_start_matches('0').to_owned();
        Self { negative: value < 0, integer, fraction: String::new(), has_point: false }
    }

    /// `-?[0-9]+(\.[0-9]+)?`; no exponent, no plus sign, no spaces.
    fn parse(text: &str) -> Option<Self> {
        let (signed, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        let (integer, fraction) = match digits.split_once('.') {
            Some((integer, fraction)) => (integer, Some(fraction)),
            None => (digits, None),
        };
        let all_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !all_digits(integer) || !fraction.is_none_or(all_digits) {
            return None;
        }
        let integer = integer.trim_start_matches('0').to_owned();
        let has_point = fraction.is_some();
        let fraction = fraction.unwrap_or("").trim_end_matches('0').to_owned();
        let negative = signed && !(integer.is_empty() && fraction.is_empty());
        Some(Self { negative, integer, fraction, has_point })
    }

    fn encode(&self, kind: u8) -> Vec<u8> {
        let count = u8::try_from(self.integer.len()).expect("versions are at most 256 bytes and checked by kind");
        let digits = self.integer.bytes().chain(self.fraction.bytes());
        let mut out = vec![kind];
        if self.negative {
            out.push(0x7f - count);
            out.extend(digits.map(|d| b'0' + (b'9' - d)));
            out.push(0xff);
        } else {
            out.push(0x80 + count);
            out.extend(digits);
            out.push(0x00);
        }
        out
    }
}

fn encode_text(text: &[u8]) -> Vec<u8> {
    let mut out = vec![TEXT];
    for &b in text {
        out.push(b);
        if b == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0x00, 0x01]);
    out
}

#[cfg(test)]
mod tests;
