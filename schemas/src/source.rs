//! Sources: who sends what to which tenant, with which secrets, read by which declaration.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::declaration::Declaration;
use crate::fetch::FetchConfig;
use crate::name::check_name;
use crate::preset::Preset;
use crate::problem::Problem;

/// One configured sender of one tenant.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// Who the events belong to. Part of the URL: /in/TENANT/NAME
    pub tenant: String,
    /// Name of the source within its tenant.
    pub name: String,
    /// The preset to start from; see `seriatim source presets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Live signing secrets. Several at once allow a rotation without a gap.
    #[serde(default)]
    pub secrets: Vec<SecretRef>,
    /// Where the provider sends to, as it was told: some providers sign it. Without a query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
    /// Values that the declaration reads as `setting:NAME`, such as an id that the provider gave.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Names of the sinks that its effects go to; left out: all sinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sinks: Option<Vec<String>>,
    /// The documents of thin events are fetched from the provider, and are its state; see `declare.fetch`. Left out:
    /// its events are taken as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<FetchConfig>,
    /// What is declared here lies over the preset, field by field.
    #[serde(default)]
    pub declare: Declaration,
}

/// Where a secret stands: one of `value`, `env`, `file` and `handshake`.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretRef {
    /// The secret itself. For tests: a file or a variable keeps it out of the configuration.
    Value(String),
    /// Name of an environment variable.
    Env(String),
    /// Path of a file; white space at its end does not count.
    File(String),
    /// Path of a file that a handshake writes: the provider brings the secret. Until then there is none.
    Handshake(String),
}

impl std::fmt::Debug for SecretRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(_) => f.write_str("value (hidden)"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::File(path) => write!(f, "file {path}"),
            Self::Handshake(path) => write!(f, "handshake {path}"),
        }
    }
}

/// A source whose declaration is whole: the preset and the source's own fields, one over the other.
#[derive(Debug, Clone)]
pub struct Source {
    pub tenant: String,
    pub name: String,
    pub preset: Option<String>,
    pub secrets: Vec<SecretRef>,
    pub public_url: Option<String>,
    pub settings: BTreeMap<String, String>,
    pub sinks: Option<Vec<String>>,
    pub fetch: Option<FetchConfig>,
    pub declaration: Declaration,
    /// Names this very declaration (header `st_decl`): 16 hex digits of its digest.
    pub revision: String,
}

impl SourceConfig {
    /// The whole source, or all its mistakes with paths relative to it.
    pub fn resolve(&self) -> Result<Source, Vec<Problem>> {
        let mut problems = Vec::new();
        for (field, name) in [("tenant", &self.tenant), ("name", &self.name)] {
            if let Err(error) = check_name(name) {
                problems.push(Problem::at(field, error.to_string()));
            }
        }
        for (i, secret) in self.secrets.iter().enumerate() {
            let (SecretRef::Value(text) | SecretRef::Env(text) | SecretRef::File(text) | SecretRef::Handshake(text)) =
                secret;
            if text.trim().is_empty() {
                problems.push(Problem::at(format!("secrets.{i}"), "is empty"));
            }
        }
        let base = match self.preset.as_deref().map(Preset::named) {
            None => Some(Declaration::default()),
            Some(Some(preset)) => Some(preset.declaration()),
            Some(None) => {
                let name = self.preset.as_deref().unwrap_or_default();
                problems.push(Problem::at("preset", Preset::unknown(name)));
                None
            }
        };
        let declaration = base.map(|base| base.overlaid(self.declare.clone()));
        problems.extend(self.fetch_problems(declaration.as_ref()));
        // What is not fetched is read as it comes.
        let declaration = declaration.map(|d| if self.fetch.is_none() { Declaration { fetch: None, ..d } } else { d });
        // What a certificate signs needs no secret.
        let recipes = declaration.iter().flat_map(|d| &d.verify).flat_map(|v| &v.0);
        if self.secrets.is_empty() && !recipes.into_iter().any(|recipe| recipe.certificate.is_some()) {
            problems.push(Problem::at("secrets", "is empty: without a secret every request would be refused"));
        }
        if let Some(declaration) = &declaration {
            problems.extend(declaration.problems().into_iter().map(|p| p.under("declare")));
            problems.extend(self.setting_problems(declaration));
        }
        match declaration {
            Some(declaration) if problems.is_empty() => Ok(Source {
                tenant: self.tenant.clone(),
                name: self.name.clone(),
                preset: self.preset.clone(),
                secrets: self.secrets.clone(),
                public_url: self.public_url.clone(),
                settings: self.settings.clone(),
                sinks: self.sinks.clone(),
                fetch: self.fetch.clone(),
                revision: declaration.revision(),
                declaration,
            }),
            _ => Err(problems),
        }
    }

    fn fetch_problems(&self, declaration: Option<&Declaration>) -> Vec<Problem> {
        let Some(fetch) = &self.fetch else {
            let remedy = "is missing: without it the documents of declare.fetch are not fetched";
            return self.declare.fetch.iter().map(|_| Problem::at("fetch", remedy)).collect();
        };
        let mut out: Vec<_> = fetch.problems().into_iter().map(|p| p.under("fetch")).collect();
        if declaration.is_some_and(|d| d.fetch.is_none()) {
            out.push(Problem::at(
                "declare.fetch",
                "is missing: say where the documents are, such as url = \"https://api.example.com/v1/{object}\"",
            ));
        }
        out
    }

    /// What the declaration needs of this source beside secrets.
    fn setting_problems(&self, declaration: &Declaration) -> Vec<Problem> {
        let mut out = Vec::new();
        let stores = declaration.handshakes.iter().flatten().any(|h| h.store.is_some());
        let kept: Vec<_> =
            self.secrets.iter().enumerate().filter(|(_, s)| matches!(s, SecretRef::Handshake(_))).collect();
        match kept.as_slice() {
            [] => {}
            [_] if stores => {}
            [(i, _), ..] if !stores => out.push(Problem::at(
                format!("secrets.{i}"),
                "no handshake of the declaration brings a secret: name a file or a variable",
            )),
            [_, (i, _), ..] => {
                out.push(Problem::at(format!("secrets.{i}"), "is the second handshake file: a source has one"))
            }
            _ => {}
        }
        let names = declaration.setting_names();
        for name in names.iter().filter(|name| self.settings.get(**name).is_none_or(|text| text.is_empty())) {
            out.push(Problem::at(format!("settings.{name}"), "is missing: the declaration reads it"));
        }
        for name in self.settings.keys().filter(|name| !names.contains(&name.as_str())) {
            out.push(Problem::at(format!("settings.{name}"), "is read by nothing in the declaration"));
        }
        let is_url = |url: &str| {
            let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')) && !url.contains(['?', '#', ' '])
        };
        match &self.public_url {
            None if declaration.needs_url() => out.push(Problem::at(
                "public_url",
                "is missing: this provider signs the URL that it was given, such as \"https://hooks.example.com/in/acme/shop\"",
            )),
            Some(url) if !is_url(url) => {
                out.push(Problem::at("public_url", format!("{url:?} is no URL of http or https without a query")));
            }
            _ => {}
        }
        out
    }
}
