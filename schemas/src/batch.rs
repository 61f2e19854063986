//! Batches as data: where the events of one request stand in it.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::pointer::{Pointer, parse_pointer, write_pointer};
use crate::problem::Problem;

/// A segment that stands for every element of an array.
pub const EVERY: &str = "*";

/// A request that carries many events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRule {
    /// Where the items stand. Where a pattern leads nowhere, what encloses it is the item: nothing is lost.
    pub items: Vec<ItemPattern>,
    /// Each item is signed by itself: recipes read `body:/..` of the item.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verify_each: bool,
}

/// A pointer in which `*` stands for every element of an array: `/events/*`, `/entry/*/changes/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemPattern(pub Pointer);

/// Most stars of a pattern.
const LEVELS_MAX: usize = 4;

impl BatchRule {
    pub fn problems(&self) -> Vec<Problem> {
        if self.items.is_empty() {
            return vec![Problem::at("items", "is empty: say where the events stand, such as \"/events/*\"")];
        }
        Vec::new()
    }
}

impl ItemPattern {
    /// Without its stars and the slashes at its ends: `tweet_create_events`.
    pub fn name(&self) -> String {
        let names: Vec<_> = self.0.iter().filter(|segment| *segment != EVERY).map(String::as_str).collect();
        names.join("/")
    }
}

impl<'de> Deserialize<'de> for ItemPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let stars = |pointer: &Pointer| pointer.iter().filter(|segment| *segment == EVERY).count();
        let pattern = parse_pointer(&text).filter(|p| (1..=LEVELS_MAX).contains(&stars(p)));
        pattern.map(Self).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is no pointer with one to {LEVELS_MAX} segments *, such as \"/events/*\" or \"/*\""
            ))
        })
    }
}

impl Serialize for ItemPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&write_pointer(&self.0))
    }
}

impl JsonSchema for ItemPattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ItemPattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A JSON pointer in which * stands for every element of an array, such as /events/*",
            "pattern": r"^(/.*)?/\*(/.*)?$"
        })
    }
}
