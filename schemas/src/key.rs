//! Object keys. The text form is the record key in the log, so two different triples must never
//! share one, whatever characters a tenant, a source or an object holds.
//!
//! Form: `tenant/source/object`, each part percent-encoded. Unreserved characters of RFC 3986
//! (`A-Z a-z 0-9 - . _ ~`) stand as they are, every other byte is `%XX` in upper case. A key of
//! four parts is never an object's: `tenant/source/~unroutable/ID` and `tenant/source/~evidence/ID`.

use std::fmt;

use thiserror::Error;

/// Names one business object of one source of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub tenant: String,
    pub source: String,
    pub object: String,
}

/// What the key of a record names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RecordKey {
    Object(ObjectKey),
    /// Verified, but no event id or object could be derived: keyed by record id, so that no lane gets hot.
    Unroutable {
        tenant: String,
        source: String,
        record: String,
    },
    /// The body and headers of a request that carried many events.
    Evidence {
        tenant: String,
        source: String,
        request: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("record key {key:?} is not tenant/source/object with each part percent-encoded")]
pub struct KeyError {
    pub key: String,
}

const UNROUTABLE: &str = "~unroutable";
const EVIDENCE: &str = "~evidence";

impl ObjectKey {
    pub fn new(tenant: impl Into<String>, source: impl Into<String>, object: impl Into<String>) -> Self {
        Self { tenant: tenant.into(), source: source.into(), object: object.into() }
    }

    /// The bucket of this object among `buckets`: [`bucket_of`] of the encoded key.
    pub fn bucket(&self, buckets: u32) -> u32 {
        bucket_of(self.to_string().as_bytes(), buckets)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_parts(f, &[&self.tenant, &self.source, &self.object])
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(key) => key.fmt(f),
            Self::Unroutable { tenant, source, record } => write_parts(f, &[tenant, source, UNROUTABLE, record]),
            Self::Evidence { tenant, source, request } => write_parts(f, &[tenant, source, EVIDENCE, request]),
        }
    }
}

impl RecordKey {
    pub fn tenant(&self) -> &str {
        match self {
            Self::Object(key) => &key.tenant,
            Self::Unroutable { tenant, .. } | Self::Evidence { tenant, .. } => tenant,
        }
    }

    pub fn source(&self) -> &str {
        match self {
            Self::Object(key) => &key.source,
            Self::Unroutable { source, .. } | Self::Evidence { source, .. } => source,
        }
    }

    /// Reads the text form. Only the canonical spelling is taken, so equal keys have equal bytes.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let fail = || KeyError { key: text.to_owned() };
        let parts = text.split('/').map(decode_part).collect::<Option<Vec<_>>>().ok_or_else(fail)?;
        let key = match parts.as_slice() {
            [tenant, source, object] => Self::Object(ObjectKey::new(tenant, source, object)),
            [tenant, source, third, id] if third == UNROUTABLE => {
                Self::Unroutable { tenant: tenant.clone(), source: source.clone(), record: id.clone() }
            }
            [tenant, source, third, id] if third == EVIDENCE => {
                Self::Evidence { tenant: tenant.clone(), source: source.clone(), request: id.clone() }
            }
            _ => return Err(fail()),
        };
        if key.to_string() == text { Ok(key) } else { Err(fail()) }
    }
}

fn write_parts(f: &mut fmt::Formatter<'_>, parts: &[&str]) -> fmt::Result {
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            f.write_str("/")?;
        }
        write_encoded(f, part)?;
    }
    Ok(())
}

fn write_encoded(f: &mut fmt::Formatter<'_>, mut part: &str) -> fmt::Result {
    while let Some(at) = part.bytes().position(|b| !is_unreserved(b)) {
        f.write_str(&part[..at])?;
        let reserved = part[at..].chars().next().expect("a byte was found at this position");
        for byte in reserved.encode_utf8(&mut [0; 4]).bytes() {
            write!(f, "%{byte:02X}")?;
        }
        part = &part[at + reserved.len_utf8()..];
    }
    f.write_str(part)
}

fn is_unreserved(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')
}

/// Percent-encodes one part, as in a key: also used for `ce_source` and in URLs.
pub fn encode_part(part: &str) -> String {
    struct Part<'a>(&'a str);
    impl fmt::Display for Part<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_encoded(f, self.0)
        }
    }
    Part(part).to_string()
}

fn decode_part(part: &str) -> Option<String> {
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

/// `toPositive(murmur2(key)) mod buckets`. With `buckets` a multiple of a topic's partition count, all
/// objects of a bucket lie within one partition (Kafka's default partitioner is the same hash).
pub fn bucket_of(key: &[u8], buckets: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff) % buckets
}

/// Murmur2 as Kafka's Java clients compute it (`org.apache.kafka.common.utils.Utils.murmur2`).
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().expect("chunks of four"));
        k = k.wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, b) in rest.iter().enumerate() {
            h ^= u32::from(*b) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_form_is_frozen() {
        let table = [
            (ObjectKey::new("acme", "billing", "sub_A"), "acme/billing/sub_A"),
            (ObjectKey::new("a:b", "c", "d"), "a%3Ab/c/d"),
            (ObjectKey::new("a", "b", "x/y%2F\0\u{1f}"), "a/b/x%2Fy%252F%00%1F"),
            (ObjectKey::new("a", "b", "é ~"), "a/b/%C3%A9%20~"),
            (ObjectKey::new("a", "b", ""), "a/b/"),
        ];
        for (key, text) in table {
            assert_eq!(key.to_string(), text);
            assert_eq!(RecordKey::parse(text), Ok(RecordKey::Object(key)));
        }
        let unroutable = RecordKey::Unroutable { tenant: "a".into(), source: "b".into(), record: "r.0".into() };
        assert_eq!(unroutable.to_string(), "a/b/~unroutable/r.0");
        let evidence = RecordKey::Evidence { tenant: "a".into(), source: "b".into(), request: "r".into() };
        assert_eq!(evidence.to_string(), "a/b/~evidence/r");
    }

    /// Values of Kafka's own test, `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_is_kafkas() {
        let table: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
        ];
        for (data, hash) in table {
            assert_eq!(murmur2(data) as i32, hash, "{}", String::from_utf8_lossy(data));
        }
    }

    #[test]
    fn only_the_canonical_spelling_is_read() {
        for bad in ["a/b", "a/b/c/d", "a/b/%2f", "a/b/%41", "a/b/%", "a/b/%zz", "a/b/ ", "a/b/%FF", "a/b/~other/x"] {
            assert!(RecordKey::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_triple_round_trips(tenant in ".*", source in ".*", object in ".*") {
            let key = ObjectKey::new(tenant, source, object);
            prop_assert_eq!(RecordKey::parse(&key.to_string()), Ok(RecordKey::Object(key)));
        }

        #[test]
        fn a_bucket_lies_within_one_partition(key in proptest::collection::vec(any::<u8>(), 1..64), partitions in 1u32..64, times in 1u32..32) {
            let bucket = bucket_of(&key, partitions * times);
            prop_assert_eq!(bucket % partitions, bucket_of(&key, partitions));
        }
    }
}
