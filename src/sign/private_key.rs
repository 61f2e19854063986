//! A provider's private key, for trying a source whose secrets are public keys. Made where it is missing.

use std::path::Path;

use anyhow::{Context, bail};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use seriatim_schemas::verification::{Algorithm, JwtAlgorithm, Recipe};
use sha2::Sha256;

use super::{compact, public_text};

const PEM_BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const PEM_END: &str = "-----END PRIVATE KEY-----";

/// PKCS#8.
pub struct PrivateKey {
    der: Vec<u8>,
}

impl PrivateKey {
    /// Reads a PEM file; makes one that fits `recipe` where there is none.
    pub fn open(path: &Path, recipe: &Recipe) -> anyhow::Result<Self> {
        if !path.exists() {
            let der = make(recipe)?;
            std::fs::write(path, format!("{PEM_BEGIN}\n{}\n{PEM_END}\n", STANDARD.encode(der)))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        let inner = text.trim().strip_prefix(PEM_BEGIN).and_then(|rest| rest.strip_suffix(PEM_END));
        let inner = inner.with_context(|| format!("{}: no PEM of a PKCS#8 private key", path.display()))?;
        let der = STANDARD.decode(inner.split_whitespace().collect::<String>()).context("the PEM is not base64")?;
        Ok(Self { der })
    }

    /// The text to configure as the source's secret.
    pub fn public(&self, recipe: &Recipe) -> anyhow::Result<String> {
        let spki: PublicKeyX509Der<'static> = match kind(recipe)? {
            Kind::Ed25519 => self.ed25519()?.public_key().as_der()?,
            Kind::P256 => self.ecdsa(&ECDSA_P256_SHA256_ASN1_SIGNING)?.public_key().as_der()?,
            Kind::Rsa => self.rsa()?.public_key().as_der()?,
        };
        Ok(public_text(recipe, spki.as_ref()))
    }

    pub fn sign(&self, algorithm: Algorithm, message: &[u8]) -> anyhow::Result<Vec<u8>> {
        match algorithm {
            Algorithm::Ed25519 => Ok(self.ed25519()?.sign(message).as_ref().to_vec()),
            Algorithm::EcdsaP256Sha256 => self.sign_ecdsa(&ECDSA_P256_SHA256_ASN1_SIGNING, message),
            Algorithm::RsaSha256 => self.sign_rsa(message),
            other => bail!("{other:?} cannot be signed here: it is out of use for new signatures"),
        }
    }

    fn ed25519(&self) -> anyhow::Result<Ed25519KeyPair> {
        Ed25519KeyPair::from_pkcs8(&self.der).map_err(|e| anyhow::anyhow!("the private key is no Ed25519 key: {e}"))
    }

    fn ecdsa(&self, algorithm: &'static aws_lc_rs::signature::EcdsaSigningAlgorithm) -> anyhow::Result<EcdsaKeyPair> {
        EcdsaKeyPair::from_pkcs8(algorithm, &self.der)
            .map_err(|e| anyhow::anyhow!("the private key is no P-256 key: {e}"))
    }

    fn rsa(&self) -> anyhow::Result<RsaKeyPair> {
        RsaKeyPair::from_pkcs8(&self.der).map_err(|e| anyhow::anyhow!("the private key is no RSA key: {e}"))
    }

    fn sign_ecdsa(
        &self,
        algorithm: &'static aws_lc_rs::signature::EcdsaSigningAlgorithm,
        message: &[u8],
    ) -> anyhow::Result<Vec<u8>> {
        Ok(self.ecdsa(algorithm)?.sign(&SystemRandom::new(), message)?.as_ref().to_vec())
    }

    fn sign_rsa(&self, message: &[u8]) -> anyhow::Result<Vec<u8>> {
        let key = self.rsa()?;
        let mut signature = vec![0; key.public_modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)?;
        Ok(signature)
    }
}

enum Kind {
    Ed25519,
    P256,
    Rsa,
}

fn kind(recipe: &Recipe) -> anyhow::Result<Kind> {
    let token = recipe.jwt.as_ref().map(|rule| rule.algorithms.as_slice()).unwrap_or_default();
    Ok(match recipe.algorithm {
        Algorithm::Ed25519 => Kind::Ed25519,
        Algorithm::EcdsaP256Sha1 | Algorithm::EcdsaP256Sha256 => Kind::P256,
        Algorithm::RsaSha1 | Algorithm::RsaSha256 => Kind::Rsa,
        Algorithm::Jwt if token.contains(&JwtAlgorithm::ES256) => Kind::P256,
        Algorithm::Jwt if token.contains(&JwtAlgorithm::RS256) => Kind::Rsa,
        Algorithm::Jwt if token.contains(&JwtAlgorithm::EdDSA) => Kind::Ed25519,
        _ => bail!("this source's secrets are not public keys: leave --private-key out"),
    })
}

fn make(recipe: &Recipe) -> anyhow::Result<Vec<u8>> {
    let random = SystemRandom::new();
    Ok(match kind(recipe)? {
        Kind::Ed25519 => Ed25519KeyPair::generate_pkcs8(&random)?.as_ref().to_vec(),
        Kind::P256 => EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)?.as_ref().to_vec(),
        Kind::Rsa => {
            let key = RsaKeyPair::generate(KeySize::Rsa2048)?;
            let der: aws_lc_rs::encoding::Pkcs8V1Der<'_> = key.as_der()?;
            der.as_ref().to_vec()
        }
    })
}

/// A token of `claims`: by the private key where there is one, else HS256 with the secret.
pub fn token(
    algorithms: &[JwtAlgorithm],
    private: Option<&PrivateKey>,
    secret: &[u8],
    claims: &Value,
) -> anyhow::Result<String> {
    let header = |algorithm: &str| json!({ "alg": algorithm, "typ": "JWT", "kid": "seriatim" });
    let allows = |algorithm| algorithms.contains(&algorithm);
    match private {
        None if allows(JwtAlgorithm::HS256) => compact(&header("HS256"), claims, |message| {
            let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(secret).expect("HMAC takes a key of any length");
            mac.update(message);
            Ok(mac.finalize().into_bytes().to_vec())
        }),
        None => bail!("only the provider can sign: give --private-key, and configure the public key that it prints"),
        Some(key) if allows(JwtAlgorithm::ES256) => {
            compact(&header("ES256"), claims, |message| key.sign_ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING, message))
        }
        Some(key) if allows(JwtAlgorithm::RS256) => compact(&header("RS256"), claims, |message| key.sign_rsa(message)),
        Some(key) if allows(JwtAlgorithm::EdDSA) => {
            compact(&header("EdDSA"), claims, |message| key.sign(Algorithm::Ed25519, message))
        }
        Some(_) => bail!("no algorithm of the declaration has a private key"),
    }
}
