//! Expressions: one value out of selectors. A selector, a list of which the first that yields a value counts, or
//! a join.
//!
//! ```text
//! "body:/id"
//! ["body:/id", { join = ["const:hook", "body:/hook_id"], with = " " }]
//! ```

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::selector::Selector;

/// One value out of selectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    One(Selector),
    FirstOf(Vec<Expression>),
    Join { parts: Vec<Selector>, with: String },
}

impl Expression {
    /// Every selector in it, from left to right.
    pub fn selectors(&self) -> Vec<&Selector> {
        match self {
            Self::One(selector) => vec![selector],
            Self::FirstOf(all) => all.iter().flat_map(Self::selectors).collect(),
            Self::Join { parts, .. } => parts.iter().collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExpressionVisitor)
    }
}

struct ExpressionVisitor;

impl<'de> Visitor<'de> for ExpressionVisitor {
    type Value = Expression;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a selector, a list of them (first of), or { join = [..], with = \"..\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map(Expression::One).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = seq.next_element()? {
            all.push(one);
        }
        if all.is_empty() {
            Err(de::Error::custom("a first-of list needs at least one selector"))
        } else {
            Ok(Expression::FirstOf(all))
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut parts, mut with) = (None::<Vec<Selector>>, None::<String>);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "join" => parts = Some(map.next_value()?),
                "with" => with = Some(map.next_value()?),
                other => return Err(de::Error::unknown_field(other, &["join", "with"])),
            }
        }
        let parts = parts.filter(|p| !p.is_empty()).ok_or_else(|| de::Error::missing_field("join"))?;
        Ok(Expression::Join { parts, with: with.unwrap_or_default() })
    }
}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One(selector) => selector.serialize(serializer),
            Self::FirstOf(all) => all.serialize(serializer),
            Self::Join { parts, with } => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("join", parts)?;
                map.serialize_entry("with", with)?;
                map.end()
            }
        }
    }
}

impl JsonSchema for Expression {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Expression".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let selector = generator.subschema_for::<Selector>();
        json_schema!({
            "description": "A selector, a list of which the first that yields a value counts, or a join",
            "anyOf": [
                selector,
                { "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/Expression" } },
                {
                    "type": "object",
                    "properties": { "join": { "type": "array", "minItems": 1, "items": selector }, "with": { "type": "string" } },
                    "required": ["join"],
                    "additionalProperties": false
                }
            ]
        })
    }
}
