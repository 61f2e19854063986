//! The sources that this edge takes requests for, each compiled once, and again when its secrets change.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use seriatim_schemas::declaration::Declaration;
use seriatim_schemas::expression::Expression;
use seriatim_schemas::selector::{Place, Selector, is_header};
use seriatim_schemas::source::{SecretRef, Source};
use seriatim_schemas::verification::{Algorithm, Encoding, Recipe, Verify};
use thiserror::Error;

use crate::batch::Splitter;
use crate::challenge::Challenges;
use crate::fetch::SourceName;
use crate::handshake::Handshakes;
use crate::identify::Identifier;
use crate::refused::HIDDEN;
use crate::secret::{SecretError, read_secrets};
use crate::verify::Verifier;

/// A source, ready to verify and derive.
pub struct LiveSource {
    pub source: Source,
    pub verifier: Verifier,
    pub handshakes: Handshakes,
    pub splitter: Option<Splitter>,
    pub identifier: Identifier,
    /// Headers that verification or derivation reads: these are kept in the record, to check it again.
    pub kept_headers: Vec<String>,
    /// Those that derivation reads: an item of a batch keeps no others.
    pub item_headers: Vec<String>,
    /// Headers that are themselves the secret, in lower case.
    pub secret_headers: Vec<String>,
    /// Parameters of the query that are.
    secret_parameters: Vec<String>,
    /// Places whose value is compared with a setting, which may be a secret: it is not told.
    compared: Vec<Place>,
    secrets: Vec<String>,
}

impl std::fmt::Debug for LiveSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveSource({}/{})", self.source.tenant, self.source.name)
    }
}

#[derive(Debug, Error)]
pub enum SourcesError {
    #[error("source {tenant}/{source_name}: {error}")]
    Secret { tenant: String, source_name: String, error: SecretError },
    #[error("source {tenant}/{source_name} is declared more than once")]
    Doubled { tenant: String, source_name: String },
}

/// By tenant, then by name.
type ByName = HashMap<String, HashMap<String, Arc<LiveSource>>>;

/// All sources by tenant and name, and a decoy for names that are unknown.
#[derive(Debug)]
pub struct Sources {
    by_name: ArcSwap<ByName>,
    decoy: Arc<LiveSource>,
}

impl Sources {
    /// Compiles all sources. `decoy_key` is random: no one has a secret for an unknown source.
    pub fn new(sources: Vec<Source>, decoy_key: [u8; 32]) -> Result<Self, SourcesError> {
        let mut by_name = ByName::new();
        for source in sources {
            let (tenant, source_name) = (source.tenant.clone(), source.name.clone());
            let secrets = read_secrets(&source.secrets);
            let live = secrets.and_then(|secrets| LiveSource::new(source, secrets)).map_err(|error| {
                SourcesError::Secret { tenant: tenant.clone(), source_name: source_name.clone(), error }
            })?;
            let of_tenant = by_name.entry(tenant.clone()).or_default();
            if of_tenant.insert(source_name.clone(), Arc::new(live)).is_some() {
                return Err(SourcesError::Doubled { tenant, source_name });
            }
        }
        Ok(Self { by_name: ArcSwap::from_pointee(by_name), decoy: Arc::new(decoy(decoy_key)) })
    }

    pub fn get(&self, tenant: &str, name: &str) -> Option<Arc<LiveSource>> {
        self.by_name.load().get(tenant)?.get(name).cloned()
    }

    /// Stands in for a name that is unknown, so that it costs what a bad signature costs. It believes nothing.
    pub fn decoy(&self) -> Arc<LiveSource> {
        self.decoy.clone()
    }

    pub fn all(&self) -> Vec<Arc<LiveSource>> {
        self.by_name.load().values().flat_map(HashMap::values).cloned().collect()
    }

    /// Reads the secrets again. Where they changed, requests are verified with the new ones from now on; a source
    /// whose secrets cannot be read keeps those it has. Returns how many changed, and what went wrong.
    pub fn reload(&self) -> (usize, Vec<SourcesError>) {
        let (mut changed, mut errors) = (Vec::new(), Vec::new());
        for live in self.all() {
            let source = &live.source;
            let fresh = match read_secrets(&source.secrets) {
                Ok(secrets) if secrets == live.secrets => continue,
                Ok(secrets) => LiveSource::new(source.clone(), secrets),
                Err(error) => Err(error),
            };
            match fresh {
                Ok(fresh) => {
                    fresh.verifier.remember_use(&live.verifier);
                    changed.push(Arc::new(fresh));
                }
                Err(error) => errors.push(SourcesError::Secret {
                    tenant: source.tenant.clone(),
                    source_name: source.name.clone(),
                    error,
                }),
            }
        }
        if !changed.is_empty() {
            self.by_name.rcu(|current| {
                let mut next = ByName::clone(current);
                for live in &changed {
                    let of_tenant = next.entry(live.source.tenant.clone()).or_default();
                    of_tenant.insert(live.source.name.clone(), live.clone());
                }
                next
            });
        }
        (changed.len(), errors)
    }
}

impl LiveSource {
    /// A source that derives and believes nothing: for records that were verified before.
    pub fn without_secrets(source: Source) -> Result<Self, SecretError> {
        Self::new(source, Vec::new())
    }

    fn new(source: Source, secrets: Vec<String>) -> Result<Self, SecretError> {
        let declaration = &source.declaration;
        let verify = declaration.verify.clone().expect("validated with the declaration");
        let verifier = Verifier::with_texts(verify, &secrets)?;
        let verifier = verifier.with_settings(source.settings.clone(), source.public_url.clone());
        let declared = declaration.handshakes.clone().unwrap_or_default();
        let verifier = verifier.with_challenges(Challenges::new(&declared, &secrets, &source.settings)?);
        let handshakes = Handshakes::new(declared, &secrets)?;
        let (mut secret_headers, secret_parameters) = (verifier.secret_headers(), verifier.secret_parameters());
        let stored = declaration.handshakes.iter().flatten().filter_map(|handshake| handshake.store.as_ref());
        secret_headers.extend(stored.filter_map(|store| store.place.header()).map(str::to_owned));
        let compared = declaration.compared_with_settings();
        let mut kept_headers = declaration.header_names();
        kept_headers.retain(|name| name != "content-type");
        let expressions = declaration.expressions();
        let read: Vec<&Selector> = expressions.iter().flat_map(|e| Expression::selectors(e)).collect();
        let of_items = |name: &&String| read.iter().any(|s| s.place.header() == Some(name.as_str()));
        let item_headers = kept_headers.iter().filter(of_items).cloned().collect();
        let splitter = declaration.batch.as_ref().map(|rule| Splitter::new(rule, &expressions));
        let identifier = Identifier::new(declaration.clone());
        Ok(Self {
            verifier,
            handshakes,
            splitter,
            identifier,
            kept_headers,
            item_headers,
            secret_headers,
            secret_parameters,
            compared,
            secrets,
            source,
        })
    }

    /// Tenant and name.
    pub fn named(&self) -> SourceName {
        (self.source.tenant.clone(), self.source.name.clone())
    }

    /// Path and query to keep: without the values of parameters that are secrets.
    pub fn kept_target(&self, target: &str) -> String {
        hiding(target, |name| self.secret_parameters.iter().any(|secret| secret == name))
    }

    /// Path and query to tell: without those that are compared with a setting either.
    pub fn told_target(&self, target: &str) -> String {
        hiding(target, |name| self.compared.iter().any(|place| matches!(place, Place::Query(own) if own == name)))
    }

    /// Whether the value of a header may be told; its name is in lower case.
    pub fn tells_header(&self, name: &str) -> bool {
        !self.compared.iter().any(|place| place.header().is_some_and(|wanted| is_header(wanted, name)))
    }

    /// The file in which a handshake's secret is kept.
    pub fn handshake_file(&self) -> Option<&str> {
        self.source.secrets.iter().find_map(|secret| match secret {
            SecretRef::Handshake(path) => Some(path.as_str()),
            _ => None,
        })
    }

    /// Whether each item of a batch is verified by itself.
    pub fn verifies_items(&self) -> bool {
        self.source.declaration.batch.as_ref().is_some_and(|batch| batch.verify_each)
    }
}

/// Path and query, without the values of some parameters.
fn hiding(target: &str, is_secret: impl Fn(&str) -> bool) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let pair = |pair: &str| {
        let hides = form_urlencoded::parse(pair.as_bytes()).any(|(name, _)| is_secret(&name));
        let name = pair.split('=').next().unwrap_or_default();
        if hides { format!("{name}={HIDDEN}") } else { pair.to_owned() }
    };
    format!("{path}?{}", query.split('&').map(pair).collect::<Vec<_>>().join("&"))
}

fn decoy(key: [u8; 32]) -> LiveSource {
    let (signature, body) =
        ("const:00".parse().expect("a valid selector"), "{body}".parse().expect("a valid template"));
    let recipe = Recipe::over(body, Algorithm::HmacSha256, signature, Encoding::Hex);
    let declaration = Declaration { verify: Some(Verify(vec![recipe])), ..Declaration::default() };
    let source = Source {
        tenant: String::new(),
        name: String::new(),
        preset: None,
        secrets: Vec::new(),
        public_url: None,
        settings: Default::default(),
        sinks: None,
        fetch: None,
        revision: declaration.revision(),
        declaration,
    };
    LiveSource::new(source, vec![hex::encode(key)]).expect("text is a key")
}

#[cfg(test)]
mod tests {
    use seriatim_schemas::preset::Preset;
    use seriatim_schemas::source::SourceConfig;

    use super::*;

    #[test]
    fn a_secret_in_the_query_is_not_kept() {
        let config: SourceConfig = toml::from_str(
            "tenant = 't'\nname = 's'\nsecrets = [{ value = 'hush' }]\n[declare]\nobject = 'query:o'\n\
            [declare.verify]\nalgorithm = 'static'\nsignature = 'query:token'\n",
        )
        .expect("a source");
        let sources = Sources::new(vec![config.resolve().expect("whole")], [0; 32]).expect("a secret");
        let live = sources.get("t", "s").expect("declared");
        assert_eq!(live.kept_target("/in/t/s?o=1&token=hush&x"), "/in/t/s?o=1&token=(hidden)&x");
        assert_eq!(live.kept_target("/in/t/s?t%6fken=hush"), "/in/t/s?t%6fken=(hidden)");
        assert_eq!(live.kept_target("/in/t/s"), "/in/t/s");
    }

    #[test]
    fn what_is_compared_with_a_setting_is_not_told() {
        let live = |preset: &str| {
            let settings = Preset::named(preset).expect("a preset").declare;
            let settings = settings.setting_names().into_iter().map(|name| format!("{name} = 'x'\n"));
            let text = format!(
                "tenant = 't'\nname = 's'\npreset = '{preset}'\nsecrets = [{{ value = 'hush' }}]\n[settings]\n{}",
                settings.collect::<String>()
            );
            let config: SourceConfig = toml::from_str(&text).expect("a source");
            let sources = Sources::new(vec![config.resolve().expect("whole")], [0; 32]).expect("a secret");
            sources.get("t", "s").expect("declared")
        };
        let target = "/in/t/s?hub.mode=subscribe&hub.verify_token=hush";
        assert_eq!(live("meta").told_target(target), "/in/t/s?hub.mode=subscribe&hub.verify_token=(hidden)");
        assert!(live("meta").tells_header("x-hub-signature-256"));
        assert_eq!(live("asana").secret_headers, ["x-hook-secret"]);
    }
}
