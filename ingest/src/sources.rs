//! The sources that this edge takes requests for, each compiled once.

use std::collections::HashMap;

use seriatim_schemas::declaration::{SecretRef, Source};
use seriatim_schemas::verification::{Algorithm, Encoding, Recipe, Verify};
use thiserror::Error;

use crate::identify::Identifier;
use crate::secret::SecretError;
use crate::verify::Verifier;

/// A source, ready to verify and derive.
#[derive(Debug)]
pub struct LiveSource {
    pub source: Source,
    pub verifier: Verifier,
    pub identifier: Identifier,
    /// Headers that verification or derivation reads: these are kept in the record, to check it again.
    pub kept_headers: Vec<String>,
}

#[derive(Debug, Error)]
pub enum SourcesError {
    #[error("source {tenant}/{source_name}: {error}")]
    Secret { tenant: String, source_name: String, error: SecretError },
    #[error("source {tenant}/{source_name} is declared more than once")]
    Doubled { tenant: String, source_name: String },
}

/// All sources by tenant and name, and a decoy for names that are unknown.
#[derive(Debug)]
pub struct Sources {
    by_name: HashMap<(String, String), LiveSource>,
    decoy: Verifier,
}

impl Sources {
    /// Compiles all sources. `decoy_key` is random: no one has a secret for an unknown source.
    pub fn new(sources: Vec<Source>, decoy_key: [u8; 32]) -> Result<Self, SourcesError> {
        let mut by_name = HashMap::new();
        for source in sources {
            let (tenant, source_name) = (source.tenant.clone(), source.name.clone());
            let live = LiveSource::new(source).map_err(|error| SourcesError::Secret {
                tenant: tenant.clone(),
                source_name: source_name.clone(),
                error,
            })?;
            if by_name.insert((tenant.clone(), source_name.clone()), live).is_some() {
                return Err(SourcesError::Doubled { tenant, source_name });
            }
        }
        Ok(Self { by_name, decoy: decoy(decoy_key) })
    }

    pub fn get(&self, tenant: &str, name: &str) -> Option<&LiveSource> {
        self.by_name.get(&(tenant.to_owned(), name.to_owned()))
    }

    /// Verifies what no source asked for, so that an unknown name costs what a bad signature costs.
    pub fn decoy(&self) -> &Verifier {
        &self.decoy
    }

    pub fn iter(&self) -> impl Iterator<Item = &LiveSource> {
        self.by_name.values()
    }
}

impl LiveSource {
    fn new(source: Source) -> Result<Self, SecretError> {
        let verify = source.declaration.verify.clone().expect("validated with the declaration");
        let verifier = Verifier::new(verify, &source.secrets)?;
        let verifier = verifier.with_settings(source.settings.clone(), source.public_url.clone());
        let mut kept_headers = source.declaration.header_names();
        kept_headers.retain(|name| name != "content-type");
        let identifier = Identifier::new(source.declaration.clone());
        Ok(Self { verifier, identifier, kept_headers, source })
    }
}

fn decoy(key: [u8; 32]) -> Verifier {
    let recipe = Recipe {
        algorithm: Algorithm::HmacSha256,
        signature: "const:00".parse().expect("a valid selector"),
        encoding: Encoding::Hex,
        signed: Some("{body}".parse().expect("a valid template")),
        key: Vec::new(),
        timestamp: None,
        require: Vec::new(),
        digests: Vec::new(),
        jwt: None,
        either_port: false,
        unsigned_body: false,
    };
    Verifier::new(Verify(vec![recipe]), &[SecretRef::Value(hex::encode(key))]).expect("text is a key")
}
