//! Reads the values at some JSON pointers out of a document in one pass, without building it.
//!
//! Leaves stay raw text, so a 20-digit number survives. A key that comes twice on a declared path is an
//! error: two readers would see two objects. Depth is bounded; what no pointer leads to is skipped.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use seriatim_schemas::pointer::{Segment, fixed_start, write_pointer};
use seriatim_schemas::selector::{Place, SPLIT_MAX, Selector};
use thiserror::Error;

/// Deepest nesting of arrays and objects in a document.
pub const DEPTH_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExtractError {
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    #[error("the body is empty")]
    Empty,
    #[error("the body nests deeper than {DEPTH_MAX} levels")]
    TooDeep,
    #[error("key {0} comes more than once")]
    DuplicateKey(String),
    #[error("the value at {pointer} is {found}, not text or a number")]
    NotScalar { pointer: String, found: &'static str },
    #[error("the text at {0} is not valid Unicode")]
    NotUnicode(String),
}

/// The pointers of a source, as a tree.
#[derive(Debug, Default)]
pub struct Shape {
    root: Node,
    pointers: Vec<Vec<String>>,
}

#[derive(Debug, Default)]
struct Node {
    /// The pointer that ends here.
    leaf: Option<usize>,
    children: Vec<(String, Node)>,
}

/// The raw text at each pointer of a [`Shape`].
#[derive(Debug)]
pub struct Extracted<'d> {
    values: Vec<Option<&'d RawValue>>,
}

impl Shape {
    pub fn new(pointers: impl IntoIterator<Item = Vec<String>>) -> Self {
        let mut shape = Self::default();
        for pointer in pointers {
            if !shape.pointers.contains(&pointer) {
                shape.insert(pointer);
            }
        }
        shape
    }

    /// What `selectors` read of a document.
    pub fn of<'s>(selectors: impl IntoIterator<Item = &'s Selector>) -> Self {
        Self::new(selectors.into_iter().flat_map(|s| s.place.pointers()))
    }

    fn insert(&mut self, pointer: Vec<String>) {
        let mut node = &mut self.root;
        for segment in &pointer {
            let at = node.children.iter().position(|(name, _)| name == segment).unwrap_or_else(|| {
                node.children.push((segment.clone(), Node::default()));
                node.children.len() - 1
            });
            node = &mut node.children[at].1;
        }
        node.leaf = Some(self.pointers.len());
        self.pointers.push(pointer);
    }

    /// Whether any value is read from the document at all.
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    pub fn extract<'d>(&self, document: &'d [u8]) -> Result<Extracted<'d>, ExtractError> {
        if document.iter().all(u8::is_ascii_whitespace) {
            return Err(ExtractError::Empty);
        }
        if nests_deeper_than(document, DEPTH_MAX) {
            return Err(ExtractError::TooDeep);
        }
        let mut found = Found { values: vec![None; self.pointers.len()], duplicate: None };
        let mut json = serde_json::Deserializer::from_slice(document);
        let result = Walk { node: &self.root, found: &mut found }.deserialize(&mut json).and_then(|()| json.end());
        match (result, found.duplicate) {
            (_, Some(key)) => Err(ExtractError::DuplicateKey(key)),
            (Err(error), None) => Err(ExtractError::NotJson(error.to_string())),
            (Ok(()), None) => Ok(Extracted { values: found.values }),
        }
    }

    /// The raw JSON at `pointer`, a slice of the document.
    pub fn raw<'d>(&self, extracted: &Extracted<'d>, pointer: &[String]) -> Option<&'d str> {
        let index = self.pointers.iter().position(|p| p == pointer)?;
        extracted.values[index].map(RawValue::get)
    }

    /// The text of the value at `pointer`; none where it is missing or null. Numbers, true and false are as they
    /// were written.
    pub fn text(&self, extracted: &Extracted<'_>, pointer: &[String]) -> Result<Option<String>, ExtractError> {
        let Some(raw) = self.raw(extracted, pointer) else { return Ok(None) };
        let name = || write_pointer(pointer);
        let not_scalar = |found| Err(ExtractError::NotScalar { pointer: name(), found });
        match raw.as_bytes()[0] {
            b'"' => serde_json::from_str(raw).map(Some).map_err(|_| ExtractError::NotUnicode(name())),
            b'n' => Ok(None),
            b'{' => not_scalar("an object"),
            b'[' => not_scalar("an array"),
            _ => Ok(Some(raw.to_owned())),
        }
    }

    /// What a selector's place reads of the document.
    pub fn values(&self, extracted: &Extracted<'_>, place: &Place) -> Result<Vec<String>, ExtractError> {
        match place {
            Place::Body(pointer) => Ok(self.text(extracted, pointer)?.into_iter().collect()),
            Place::BodyBy(segments) => Ok(self.text_by(extracted, segments)?.into_iter().collect()),
            Place::Keys(pointer) => self.raw(extracted, pointer).map_or(Ok(Vec::new()), keys),
            _ => Ok(Vec::new()),
        }
    }

    /// The text at a pointer whose names stand elsewhere in the document.
    fn text_by(&self, extracted: &Extracted<'_>, segments: &[Segment]) -> Result<Option<String>, ExtractError> {
        let fixed = fixed_start(segments);
        let mut rest = Vec::new();
        for segment in &segments[fixed.len()..] {
            let name = match segment {
                Segment::Name(name) => Some(name.clone()),
                Segment::NameAt(pointer) => self.text(extracted, pointer)?,
            };
            let Some(name) = name else { return Ok(None) };
            rest.push(name);
        }
        let Some(raw) = self.raw(extracted, &fixed) else { return Ok(None) };
        let below = Shape::new([rest.clone()]);
        let found = below.extract(raw.as_bytes())?;
        below.text(&found, &rest)
    }
}

/// The names of an object's members, in their order; of anything else none.
fn keys(raw: &str) -> Result<Vec<String>, ExtractError> {
    if !raw.starts_with('{') {
        return Ok(Vec::new());
    }
    let members: Members = serde_json::from_str(raw).map_err(|error| ExtractError::NotJson(error.to_string()))?;
    Ok(members.0)
}

/// Names of members, at most [`SPLIT_MAX`].
struct Members(Vec<String>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut names = Vec::new();
                while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
                    if names.len() < SPLIT_MAX {
                        names.push(name);
                    }
                }
                Ok(Members(names))
            }
        }

        deserializer.deserialize_map(Names)
    }
}

/// Counts brackets outside strings. The common case, few brackets at all, is one fast pass.
fn nests_deeper_than(document: &[u8], max: usize) -> bool {
    // '[' and '{' differ in one bit. Few enough at a time for a count of one byte: the compiler makes vectors of it.
    let opens = |chunk: &[u8]| usize::from(chunk.iter().map(|b| u8::from(b | 0x20 == b'{')).sum::<u8>());
    if document.chunks(255).map(opens).sum::<usize>() <= max {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for b in document {
        match (in_string, b) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > max {
            return true;
        }
    }
    false
}

struct Found<'d> {
    values: Vec<Option<&'d RawValue>>,
    duplicate: Option<String>,
}

/// Reads one value: itself where a pointer ends here, and what lies below it.
struct Walk<'s, 'd> {
    node: &'s Node,
    found: &'s mut Found<'d>,
}

impl<'d> DeserializeSeed<'d> for Walk<'_, 'd> {
    type Value = ();

    fn deserialize<D: Deserializer<'d>>(self, deserializer: D) -> Result<(), D::Error> {
        let Some(leaf) = self.node.leaf else { return deserializer.deserialize_any(self) };
        let raw = <&RawValue>::deserialize(deserializer)?;
        self.found.values[leaf] = Some(raw);
        if self.node.children.is_empty() {
            return Ok(());
        }
        serde_json::Deserializer::from_str(raw.get()).deserialize_any(self).map_err(de::Error::custom)
    }
}

impl<'d> Visitor<'d> for Walk<'_, 'd> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'d>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = vec![false; self.node.children.len()];
        while let Some(child) = map.next_key_seed(Child(self.node))? {
            let Some(at) = child else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if std::mem::replace(&mut seen[at], true) {
                self.found.duplicate = Some(self.node.children[at].0.clone());
                return Err(de::Error::custom("duplicate key"));
            }
            map.next_value_seed(Walk { node: &self.node.children[at].1, found: &mut *self.found })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'d>>(self, mut seq: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let name = index.to_string();
            let child = self.node.children.iter().find(|(n, _)| *n == name);
            let more = match child {
                Some((_, node)) => seq.next_element_seed(Walk { node, found: &mut *self.found })?.is_some(),
                None => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Reads a key, and says which child of the node it names. Nothing is copied.
struct Child<'s>(&'s Node);

impl<'d> DeserializeSeed<'d> for Child<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'d>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Child<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.children.iter().position(|(name, _)| name == key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extract(pointers: &[&str], document: &[u8]) -> Result<Vec<Option<String>>, ExtractError> {
        let split = |p: &&str| p.split('/').skip(1).map(str::to_owned).collect::<Vec<_>>();
        let pointers: Vec<_> = pointers.iter().map(split).collect();
        let shape = Shape::new(pointers.clone());
        let extracted = shape.extract(document)?;
        pointers.iter().map(|p| shape.text(&extracted, p)).collect()
    }

    fn one(document: &[u8]) -> Result<Option<String>, ExtractError> {
        extract(&["/a/b"], document).map(|mut all| all.remove(0))
    }

    #[test]
    fn leaves_stay_as_they_were_written() {
        let document =
            br#"{ "x": [1, {"a": 2}], "a": {"c": {}, "b": 12345678901234567890123}, "s": "\u0041\ud83d\ude00\u0000" }"#;
        let got = extract(&["/a/b", "/s", "/x/1/a", "/x/2", "/a/none"], document).expect("JSON");
        let expected = [Some("12345678901234567890123"), Some("A\u{1F600}\0"), Some("2"), None, None];
        assert_eq!(got, expected.map(|t| t.map(str::to_owned)));
    }

    #[test]
    fn a_value_and_what_lies_below_it_can_both_be_read() {
        let got = extract(&["/a", "/a/b"], br#"{"a": "text"}"#).expect("JSON");
        assert_eq!(got, [Some("text".to_owned()), None]);
        let error = extract(&["/a", "/a/b"], br#"{"a": {"b": 1}}"#).expect_err("an object");
        assert_eq!(error, ExtractError::NotScalar { pointer: "/a".into(), found: "an object" });
    }

    #[test]
    fn names_may_stand_elsewhere_and_be_values_themselves() {
        let read = |place: &str, document: &str| {
            let place = place.parse::<Selector>().expect("a selector").place;
            let shape = Shape::new(place.pointers());
            let extracted = shape.extract(document.as_bytes()).expect("JSON");
            shape.values(&extracted, &place)
        };
        let document = r#"{"type":"payment","data":{"payment":{"id":7},"paymen":{"id":8}}}"#;
        assert_eq!(read("body:/data/{/type}/id", document), Ok(vec!["7".to_owned()]));
        assert_eq!(read("body:/data/{/none}/id", document), Ok(vec![]));
        assert_eq!(read("keys:/data", document), Ok(vec!["payment".to_owned(), "paymen".to_owned()]));
        assert_eq!(read("keys:", document), Ok(vec!["type".to_owned(), "data".to_owned()]));
        assert_eq!(read("keys:/type", document), Ok(vec![]));
        assert_eq!(read("body:", "\"x\""), Ok(vec!["x".to_owned()]));
        assert_eq!(read("body:/a", r#"{"a":false}"#), Ok(vec!["false".to_owned()]));
    }

    #[test]
    fn duplicate_keys_on_a_path_are_an_error_elsewhere_not() {
        for document in [r#"{"a":{"b":1},"a":{"b":2}}"#, r#"{"a":{"b":1,"b":1}}"#, r#"{"a":{"b":1,"\u0062":2}}"#] {
            assert!(matches!(one(document.as_bytes()), Err(ExtractError::DuplicateKey(_))), "{document}");
        }
        assert_eq!(one(br#"{"x":1,"x":2,"a":{"b":3,"c":1,"c":2}}"#), Ok(Some("3".into())));
    }

    #[test]
    fn hostile_documents_are_bounded() {
        let deep = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n)).into_bytes();
        assert_eq!(one(&deep("[", "]", 100_000)), Err(ExtractError::TooDeep));
        assert_eq!(one(&deep("{\"a\":", "}", 100_000)), Err(ExtractError::TooDeep));
        assert_eq!(one(&[b"{\"x\":".as_slice(), &deep("[", "]", 128), b"}"].concat()), Err(ExtractError::TooDeep));
        assert_eq!(
            one(format!("{{\"x\":\"{}\",\"a\":{{\"b\":1}}}}", "[".repeat(1000)).as_bytes()),
            Ok(Some("1".into()))
        );
        assert_eq!(one(b""), Err(ExtractError::Empty));
        assert_eq!(one(b" \n"), Err(ExtractError::Empty));
        for bad in
            [&b"{"[..], b"{}x", b"\xff", b"{\"a\":{\"b\":\"\xff\"}}", b"nul", b"{\"a\":{\"b\":01}}", b"\xef\xbb\xbf{}"]
        {
            assert!(matches!(one(bad), Err(ExtractError::NotJson(_))), "{}", String::from_utf8_lossy(bad));
        }
        assert!(matches!(one(br#"{"a":{"b":"\ud800"}}"#), Err(ExtractError::NotUnicode(_))));
        assert_eq!(one(br#"{"a":{"b":null}}"#), Ok(None));
        assert_eq!(one(br#"[1,2]"#), Ok(None));
        assert_eq!(one(br#"{"a":{"b":1e400}}"#), Ok(Some("1e400".into())));
        let keys: String = (0..200_000).map(|i| format!("\"k{i}\":0,")).collect();
        assert_eq!(one(format!("{{{keys}\"a\":{{\"b\":7}}}}").as_bytes()), Ok(Some("7".into())));
    }

    proptest! {
        #[test]
        fn agrees_with_a_full_parse(b in proptest::option::of(any::<i64>()), noise in ".{0,20}") {
            let document = serde_json::json!({ "n": noise, "a": { "z": [noise], "b": b } });
            prop_assert_eq!(one(document.to_string().as_bytes()), Ok(b.map(|v| v.to_string())));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = one(&bytes);
        }
    }
}
