//! Splits a request that carries many events: each item is an exact slice of the decoded body.
//!
//! Patterns are followed from the outside in. Where none of them leads on from an element, the element itself is
//! the item, so that a kind of event that nobody declared is kept too; where none leads into the document, it is
//! no batch but one event. An array that is there and empty yields nothing: a heartbeat.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use seriatim_schemas::batch::{BatchRule, EVERY, ItemPattern};
use seriatim_schemas::expression::Expression;
use seriatim_schemas::pointer::{Pointer, write_pointer};
use seriatim_schemas::selector::Place;
use thiserror::Error;

use crate::extract::{ExtractError, Shape};

/// Most items of one request.
pub const ITEMS_MAX: usize = 10_000;

/// One event of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// From 0, in the order of the patterns, then of the request.
    pub index: u32,
    /// The pattern that found it, without its stars.
    pub path: String,
    /// Where it stands in the document, first byte and end.
    pub range: (usize, usize),
    /// What the declaration reads of the rest of the request, by pointer.
    context: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
    #[error(transparent)]
    Extract(#[from] ExtractError),
    #[error("the value at {pointer} is no array of items")]
    NotArray { pointer: String },
    #[error("the request carries more than {ITEMS_MAX} items")]
    TooMany,
}

impl Item {
    /// An item that is the whole of its record's value. Which of several patterns found it is not kept in the log.
    pub fn from_record(index: u32, length: usize, context: BTreeMap<String, String>) -> Self {
        Self { index, path: String::new(), range: (0, length), context }
    }

    pub fn context(&self, pointer: &[String]) -> Option<String> {
        self.context.get(&write_pointer(pointer)).cloned()
    }

    /// For the record; none where nothing of the rest of the request is read.
    pub fn context_json(&self) -> Option<String> {
        (!self.context.is_empty()).then(|| serde_json::to_string(&self.context).expect("texts are JSON"))
    }
}

/// A batch rule, compiled.
#[derive(Debug)]
pub struct Splitter {
    patterns: Vec<Pointer>,
    /// Pointers of `batch:` selectors.
    context: Vec<Pointer>,
}

impl Splitter {
    pub fn new(rule: &BatchRule, expressions: &[&Expression]) -> Self {
        let mut context: Vec<Pointer> = Vec::new();
        for selector in expressions.iter().flat_map(|e| e.selectors()) {
            if let Place::Batch(pointer) = &selector.place
                && !context.contains(pointer)
            {
                context.push(pointer.clone());
            }
        }
        Self { patterns: rule.items.iter().map(|pattern| pattern.0.clone()).collect(), context }
    }

    /// The items of a document; none where it is no batch.
    pub fn split(&self, document: &[u8]) -> Result<Option<Vec<Item>>, BatchError> {
        let mut walk = Walk { splitter: self, start: document.as_ptr() as usize, items: Vec::new(), is_batch: true };
        let text = Shape::new([Vec::new()]);
        let whole = text.extract(document)?;
        let raw = text.raw(&whole, &[]).expect("the whole document is always there");
        let patterns: Vec<_> = self.patterns.iter().map(|p| (p.as_slice(), p.as_slice())).collect();
        walk.element(raw, &patterns, &[], &BTreeMap::new())?;
        Ok(walk.is_batch.then_some(walk.items))
    }
}

/// A pattern, and what of it is still to be followed.
type Followed<'s> = (&'s [String], &'s [String]);

struct Walk<'s> {
    splitter: &'s Splitter,
    /// Address of the document's first byte.
    start: usize,
    items: Vec<Item>,
    is_batch: bool,
}

impl<'s> Walk<'s> {
    /// Follows `patterns` below one element that stands at `at` (stars as they are in the pattern).
    fn element(
        &mut self,
        raw: &str,
        patterns: &[Followed<'s>],
        at: &[String],
        above: &BTreeMap<String, String>,
    ) -> Result<(), BatchError> {
        let context = self.context_at(raw, at, above)?;
        let mut leads_on = false;
        let mut seen: Vec<&[String]> = Vec::new();
        for (whole, rest) in patterns {
            let Some(star) = rest.iter().position(|segment| segment == EVERY) else { continue };
            let names = &rest[..star];
            if seen.contains(&names) {
                continue;
            }
            seen.push(names);
            let Some(array) = value_at(raw, names)? else { continue };
            leads_on = true;
            let pointer: Vec<String> = whole[..whole.len() - rest.len() + star + 1].to_vec();
            let not_array = || BatchError::NotArray { pointer: write_pointer(&pointer[..pointer.len() - 1]) };
            let elements: Vec<&RawValue> = match array {
                "null" => Vec::new(),
                array => serde_json::from_str(array).map_err(|_| not_array())?,
            };
            let through: Vec<Followed<'s>> = patterns
                .iter()
                .filter(|(_, r)| r.starts_with(&rest[..=star]))
                .map(|(w, r)| (*w, &r[star + 1..]))
                .collect();
            for element in elements {
                self.element(element.get(), &through, &pointer, &context)?;
            }
        }
        if at.is_empty() {
            self.is_batch = leads_on;
        }
        if leads_on || at.is_empty() {
            return Ok(());
        }
        // A pattern that ends here may name something inside the element.
        let inner = patterns.iter().find(|(_, rest)| !rest.contains(&EVERY.to_owned()) && !rest.is_empty());
        let found = match inner {
            Some((_, names)) => value_at(raw, names)?.unwrap_or(raw),
            None => raw,
        };
        self.push(found, at, context)
    }

    fn push(&mut self, raw: &str, at: &[String], context: BTreeMap<String, String>) -> Result<(), BatchError> {
        if self.items.len() == ITEMS_MAX {
            return Err(BatchError::TooMany);
        }
        let first = raw.as_ptr() as usize - self.start;
        let range = (first, first + raw.len());
        let path = ItemPattern(at.to_vec()).name();
        self.items.push(Item { index: self.items.len() as u32, path, range, context });
        Ok(())
    }

    /// What `batch:` selectors read of the element at `at`, beside what they read above it.
    fn context_at(
        &self,
        raw: &str,
        at: &[String],
        above: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, BatchError> {
        let below = |pointer: &Pointer| {
            let rest = pointer.strip_prefix(at)?;
            (!rest.iter().any(|segment| segment == EVERY)).then(|| (write_pointer(pointer), rest.to_vec()))
        };
        let wanted: Vec<_> = self.splitter.context.iter().filter_map(below).collect();
        let mut context = above.clone();
        if wanted.is_empty() {
            return Ok(context);
        }
        let shape = Shape::new(wanted.iter().map(|(_, rest)| rest.clone()));
        let extracted = shape.extract(raw.as_bytes())?;
        for (name, rest) in wanted {
            if let Some(text) = shape.text(&extracted, &rest)? {
                context.insert(name, text);
            }
        }
        Ok(context)
    }
}

/// The raw JSON at names below `raw`.
fn value_at<'d>(raw: &'d str, names: &[String]) -> Result<Option<&'d str>, ExtractError> {
    if names.is_empty() {
        // Only an array has elements.
        return Ok(raw.starts_with('[').then_some(raw));
    }
    if !raw.starts_with('{') {
        return Ok(None);
    }
    let shape = Shape::new([names.to_vec()]);
    let extracted = shape.extract(raw.as_bytes())?;
    Ok(shape.raw(&extracted, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(patterns: &[&str], context: &[&str], document: &str) -> Result<Vec<(String, String, String)>, BatchError> {
        let items: Vec<_> = patterns.iter().map(|p| serde_json::from_value((*p).into()).expect("a pattern")).collect();
        let rule = BatchRule { items, verify_each: false };
        let expressions: Vec<Expression> =
            context.iter().map(|c| serde_json::from_value((*c).into()).expect("a selector")).collect();
        let splitter = Splitter::new(&rule, &expressions.iter().collect::<Vec<_>>());
        let items = splitter.split(document.as_bytes())?.unwrap_or_default();
        let text = |item: &Item| document[item.range.0..item.range.1].to_owned();
        Ok(items.iter().map(|i| (text(i), i.path.clone(), i.context_json().unwrap_or_default())).collect())
    }

    fn items(patterns: &[&str], document: &str) -> Vec<String> {
        split(patterns, &[], document).expect("a batch").into_iter().map(|(text, ..)| text).collect()
    }

    #[test]
    fn items_are_exact_slices() {
        assert_eq!(items(&["/*"], "[ {\"a\": 1.0} ,2]\r\n"), ["{\"a\": 1.0}", "2"]);
        assert_eq!(items(&["/events/*"], r#"{"x":[1],"events":[{"e":[1]},{}]}"#), [r#"{"e":[1]}"#, "{}"]);
        assert_eq!(items(&["/n/*/Item"], r#"{"n":[{"Item":{"a":1}},{"Item":2}]}"#), [r#"{"a":1}"#, "2"]);
        assert_eq!(
            items(
                &["/entry/*/changes/*", "/entry/*/messaging/*"],
                r#"{"entry":[{"changes":[1,2]},{"messaging":[3]}]}"#
            ),
            ["1", "2", "3"]
        );
    }

    #[test]
    fn empty_arrays_yield_nothing_and_unknown_kinds_are_kept() {
        assert_eq!(items(&["/events/*"], r#"{"events":[]}"#), [""; 0]);
        assert_eq!(items(&["/events/*"], r#"{"events":null}"#), [""; 0]);
        assert_eq!(items(&["/entry/*/changes/*"], r#"{"entry":[{"standby":[1]}]}"#), [r#"{"standby":[1]}"#]);
        assert_eq!(items(&["/n/*/Item"], r#"{"n":[{"Other":1}]}"#), [r#"{"Other":1}"#]);
    }

    #[test]
    fn what_no_pattern_leads_into_is_no_batch() {
        let rule = |p: &str| BatchRule {
            items: vec![serde_json::from_value(p.into()).expect("a pattern")],
            verify_each: false,
        };
        for (pattern, document) in [("/events/*", r#"{"ping":1}"#), ("/*", r#"{"a":1}"#), ("/a/*", "[1]"), ("/*", "7")]
        {
            let split = Splitter::new(&rule(pattern), &[]).split(document.as_bytes());
            assert_eq!(split, Ok(None), "{pattern} of {document}");
        }
    }

    #[test]
    fn what_stands_around_an_item_goes_with_it() {
        let document = r#"{"object":"page","entry":[{"id":7,"changes":[{}]},{"id":8,"changes":[{},{}]}]}"#;
        let context = ["batch:/object", "batch:/entry/*/id", "batch:/none"];
        let got = split(&["/entry/*/changes/*"], &context, document).expect("a batch");
        let contexts: Vec<_> = got.iter().map(|(_, path, context)| (path.as_str(), context.as_str())).collect();
        let of = |id| format!(r#"{{"/entry/*/id":"{id}","/object":"page"}}"#);
        assert_eq!(contexts, [("entry/changes", &*of(7)), ("entry/changes", &*of(8)), ("entry/changes", &*of(8))]);
    }

    #[test]
    fn hostile_batches_are_bounded() {
        let many = format!("[{}0]", "0,".repeat(ITEMS_MAX));
        assert_eq!(split(&["/*"], &[], &many), Err(BatchError::TooMany));
        let error = split(&["/events/*"], &[], r#"{"events":{"a":1}}"#);
        assert_eq!(error, Err(BatchError::NotArray { pointer: "/events".into() }));
        assert!(matches!(split(&["/*"], &[], "[1,"), Err(BatchError::Extract(_))));
        assert!(matches!(split(&["/a/*"], &[], r#"{"a":[1],"a":[2]}"#), Err(BatchError::Extract(_))));
    }
}
