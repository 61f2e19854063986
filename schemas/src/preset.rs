//! Presets: the declarations of well-known providers, one file each in `presets/`, in the binary.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::declaration::Declaration;
use crate::document;

/// A provider's declaration and what a reader should know about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    pub name: String,
    pub title: String,
    /// The provider's documentation of its webhooks.
    pub docs: String,
    pub notes: String,
    pub declare: Declaration,
}

const FILES: [&str; 5] = [
    include_str!("../presets/stripe.toml"),
    include_str!("../presets/github.toml"),
    include_str!("../presets/shopify.toml"),
    include_str!("../presets/standard_webhooks.toml"),
    include_str!("../presets/hmac.toml"),
];

static PRESETS: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    let read = |text: &&str| document::read(text, &[], |_| Vec::new()).expect("presets are checked by a test");
    FILES.iter().map(read).collect()
});

impl Preset {
    pub fn all() -> &'static [Preset] {
        &PRESETS
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|p| p.name.as_str())
    }

    pub fn named(name: &str) -> Option<Self> {
        PRESETS.iter().find(|p| p.name == name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_whole_but_for_the_object_of_generic_ones() {
        for preset in Preset::all() {
            let missing: Vec<_> = preset.declare.problems().into_iter().map(|p| p.path).collect();
            let expected: &[&str] = match preset.name.as_str() {
                "standard_webhooks" | "hmac" => &["object"],
                _ => &[],
            };
            assert_eq!(missing, expected, "{}", preset.name);
        }
    }
}
