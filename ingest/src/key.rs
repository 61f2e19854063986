//! One live secret as the key of a recipe's algorithm, ready to check signatures. Comparisons take the same
//! time whatever differs. Nothing prints a key.

use std::sync::atomic::AtomicI64;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA1_ASN1, ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::digest::Update;
use hmac::{Hmac, KeyInit, Mac};
use seriatim_schemas::verification::{Algorithm, KeyStep, Recipe};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use unicode_normalization::UnicodeNormalization;

use crate::secret::SecretError;
use crate::signed::Piece;

/// Start of any PEM block (RFC 7468).
const BEGIN: &str = "-----BEGIN";
const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const CERTIFICATE_BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// Some editors write it in front of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';
const PEM_END: &str = "-----END PUBLIC KEY-----";

pub struct LiveKey {
    /// `INDEX:` and 8 hex digits that name the key without telling it.
    pub label: String,
    /// When it last signed a request, in unix seconds; 0: never.
    pub last_used: AtomicI64,
    checker: Checker,
}

enum Checker {
    HmacSha1(Hmac<Sha1>),
    HmacSha256(Hmac<Sha256>),
    HmacSha512(Hmac<Sha512>),
    Sha1(Vec<u8>),
    Sha256(Vec<u8>),
    Public(ParsedPublicKey),
    Sent(Vec<u8>),
    Token(TokenKey),
}

/// What a JWT is checked with. A public key never becomes a secret: anyone could sign with it.
pub enum TokenKey {
    Secret(Vec<u8>),
    Rsa(ParsedPublicKey),
    Ecdsa(ParsedPublicKey),
    Ed25519(ParsedPublicKey),
}

impl std::fmt::Debug for LiveKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LiveKey({})", self.label)
    }
}

impl LiveKey {
    /// The `index`-th secret of a source, by the recipe's steps.
    pub fn new(index: usize, text: &str, recipe: &Recipe) -> Result<Self, SecretError> {
        let bytes = key_bytes(text, &recipe.key)?;
        let label = label(index, &bytes);
        let is_pem = text.contains(BEGIN) || memchr::memmem::find(&bytes, BEGIN.as_bytes()).is_some();
        if is_pem && !recipe.algorithm.is_public() && recipe.algorithm != Algorithm::Jwt {
            return Err(SecretError::Public);
        }
        let public = |algorithm| public_key(algorithm, &bytes).map(Checker::Public);
        let checker = match recipe.algorithm {
            Algorithm::HmacSha1 => Checker::HmacSha1(keyed(&bytes)),
            Algorithm::HmacSha256 => Checker::HmacSha256(keyed(&bytes)),
            Algorithm::HmacSha512 => Checker::HmacSha512(keyed(&bytes)),
            Algorithm::Sha1 => Checker::Sha1(bytes),
            Algorithm::Sha256 => Checker::Sha256(bytes),
            Algorithm::Ed25519 => public(&ED25519)?,
            Algorithm::EcdsaP256Sha1 => public(&ECDSA_P256_SHA1_ASN1)?,
            Algorithm::EcdsaP256Sha256 => public(&ECDSA_P256_SHA256_ASN1)?,
            Algorithm::RsaSha1 => public(&RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY)?,
            Algorithm::RsaSha256 => public(&RSA_PKCS1_2048_8192_SHA256)?,
            Algorithm::Static | Algorithm::Basic => Checker::Sent(bytes),
            Algorithm::Jwt => Checker::Token(TokenKey::new(bytes, is_pem)?),
        };
        Ok(Self { label, last_used: AtomicI64::new(0), checker })
    }

    /// The label without the place in the list, which changes when another secret is removed.
    pub fn name(&self) -> &str {
        self.label.split_once(':').map_or(&self.label, |(_, name)| name)
    }

    /// The key of a certificate that was fetched, and not given.
    pub fn fetched(pem: &str, recipe: &Recipe) -> Result<Self, SecretError> {
        let mut key = Self::new(0, pem, recipe)?;
        key.label = key.label.replacen("0:", "certificate:", 1);
        Ok(key)
    }

    /// Whether `signature` is this key's over `pieces`.
    pub fn signed(&self, pieces: &[Piece<'_>], signature: &[u8]) -> bool {
        match &self.checker {
            Checker::HmacSha1(mac) => fed(mac.clone(), pieces, &[]).verify_slice(signature).is_ok(),
            Checker::HmacSha256(mac) => fed(mac.clone(), pieces, &[]).verify_slice(signature).is_ok(),
            Checker::HmacSha512(mac) => fed(mac.clone(), pieces, &[]).verify_slice(signature).is_ok(),
            Checker::Sha1(key) => bool::from(fed(Sha1::new(), pieces, key).finalize().as_slice().ct_eq(signature)),
            Checker::Sha256(key) => bool::from(fed(Sha256::new(), pieces, key).finalize().as_slice().ct_eq(signature)),
            Checker::Public(key) => key.verify_sig(&joined(pieces), signature).is_ok(),
            // Digests have one length: the time tells nothing of the secret's.
            Checker::Sent(secret) => bool::from(Sha256::digest(secret).ct_eq(&Sha256::digest(signature))),
            Checker::Token(_) => false,
        }
    }

    /// The signature of this key over `pieces`; none where only the provider can sign.
    pub fn sign(&self, pieces: &[Piece<'_>]) -> Option<Vec<u8>> {
        match &self.checker {
            Checker::HmacSha1(mac) => Some(fed(mac.clone(), pieces, &[]).finalize().into_bytes().to_vec()),
            Checker::HmacSha256(mac) => Some(fed(mac.clone(), pieces, &[]).finalize().into_bytes().to_vec()),
            Checker::HmacSha512(mac) => Some(fed(mac.clone(), pieces, &[]).finalize().into_bytes().to_vec()),
            Checker::Sha1(key) => Some(fed(Sha1::new(), pieces, key).finalize().to_vec()),
            Checker::Sha256(key) => Some(fed(Sha256::new(), pieces, key).finalize().to_vec()),
            Checker::Sent(secret) => Some(secret.clone()),
            Checker::Public(_) | Checker::Token(_) => None,
        }
    }

    pub fn token(&self) -> Option<&TokenKey> {
        match &self.checker {
            Checker::Token(key) => Some(key),
            _ => None,
        }
    }
}

impl TokenKey {
    /// Whatever holds a PEM block is a public key or a mistake.
    fn new(bytes: Vec<u8>, is_pem: bool) -> Result<Self, SecretError> {
        if !is_pem {
            return Ok(Self::Secret(bytes));
        }
        let parsed = |algorithm| public_key(algorithm, &bytes).ok();
        let rsa = parsed(&RSA_PKCS1_2048_8192_SHA256).map(Self::Rsa);
        rsa.or_else(|| parsed(&ECDSA_P256_SHA256_FIXED).map(Self::Ecdsa))
            .or_else(|| parsed(&ED25519).map(Self::Ed25519))
            .ok_or_else(not_public)
    }

    /// HMAC with SHA-256, SHA-384 or SHA-512 by `bits`.
    pub fn hmac_holds(&self, bits: u32, message: &[u8], signature: &[u8]) -> bool {
        let Self::Secret(key) = self else { return false };
        match bits {
            256 => Mac::chain_update(keyed::<Hmac<Sha256>>(key), message).verify_slice(signature).is_ok(),
            384 => Mac::chain_update(keyed::<Hmac<Sha384>>(key), message).verify_slice(signature).is_ok(),
            512 => Mac::chain_update(keyed::<Hmac<Sha512>>(key), message).verify_slice(signature).is_ok(),
            _ => false,
        }
    }
}

fn keyed<M: KeyInit>(key: &[u8]) -> M {
    M::new_from_slice(key).expect("HMAC takes a key of any length")
}

fn label(index: usize, key: &[u8]) -> String {
    let named = Mac::chain_update(keyed::<Hmac<Sha256>>(key), b"seriatim key label").finalize().into_bytes();
    format!("{index}:{}", hex::encode(&named[..4]))
}

fn fed<H: Update>(mut hash: H, pieces: &[Piece<'_>], secret: &[u8]) -> H {
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => hash.update(bytes),
            Piece::Secret => hash.update(secret),
        }
    }
    hash
}

pub fn joined(pieces: &[Piece<'_>]) -> Vec<u8> {
    let bytes = |piece: &Piece<'_>| match piece {
        Piece::Bytes(bytes) => bytes.to_vec(),
        Piece::Secret => Vec::new(),
    };
    pieces.iter().flat_map(bytes).collect()
}

/// From PEM (a public key or a certificate), DER (SubjectPublicKeyInfo), or the algorithm's own bare form.
fn public_key(algorithm: &'static dyn VerificationAlgorithm, bytes: &[u8]) -> Result<ParsedPublicKey, SecretError> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == BYTE_ORDER_MARK);
    let inner = text.strip_prefix(PEM_BEGIN).and_then(|rest| rest.strip_suffix(PEM_END));
    let der = match inner {
        Some(lines) => STANDARD.decode(lines.split_whitespace().collect::<String>()).map_err(|_| not_public())?,
        None if text.starts_with(CERTIFICATE_BEGIN) => certificate_key(text.as_bytes())?,
        None => bytes.to_vec(),
    };
    ParsedPublicKey::new(algorithm, der).map_err(|_| not_public())
}

/// SubjectPublicKeyInfo of the first certificate of a PEM text.
fn certificate_key(pem: &[u8]) -> Result<Vec<u8>, SecretError> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| not_public())?;
    let certificate = block.parse_x509().map_err(|_| not_public())?;
    Ok(certificate.public_key().raw.to_vec())
}

fn not_public() -> SecretError {
    SecretError::Encoding { place: "the secret".to_owned(), encoding: "a public key of the declared algorithm" }
}

/// The key in a secret's text.
fn key_bytes(text: &str, steps: &[KeyStep]) -> Result<Vec<u8>, SecretError> {
    let wrong = |encoding| SecretError::Encoding { place: "the secret".to_owned(), encoding };
    let mut key = text.as_bytes().to_vec();
    for step in steps {
        let as_text = |key: &[u8]| String::from_utf8(key.to_vec()).map_err(|_| wrong("text"));
        key = match step {
            KeyStep::Strip(prefix) => key.strip_prefix(prefix.as_bytes()).unwrap_or(&key).to_vec(),
            KeyStep::Hex => hex::decode(&key).map_err(|_| wrong("hex"))?,
            KeyStep::Base64 => STANDARD.decode(&key).map_err(|_| wrong("base64"))?,
            KeyStep::Latin1 => {
                let bytes: Result<Vec<u8>, _> = as_text(&key)?.chars().map(u8::try_from).collect();
                bytes.map_err(|_| wrong("Latin-1"))?
            }
            KeyStep::Nfkd => as_text(&key)?.nfkd().collect::<String>().into_bytes(),
            KeyStep::Sha1 => Sha1::digest(&key).to_vec(),
        };
    }
    let empty = || SecretError::Empty { place: "the secret".to_owned() };
    if key.is_empty() { Err(empty()) } else { Ok(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str, steps: &[&str]) -> Result<Vec<u8>, SecretError> {
        let steps: Vec<KeyStep> = steps.iter().map(|s| s.parse().expect("a step")).collect();
        key_bytes(text, &steps)
    }

    #[test]
    fn secrets_become_keys_by_steps() {
        assert_eq!(bytes("whsec_QUI=", &["strip:whsec_", "base64"]).expect("a key"), b"AB");
        assert_eq!(bytes("4142", &["hex"]).expect("a key"), b"AB");
        assert_eq!(bytes("\u{e9}", &["latin1"]).expect("a key"), [0xe9]);
        assert_eq!(bytes("\u{e9}", &["nfkd"]).expect("a key"), "e\u{301}".as_bytes());
        assert_eq!(bytes("x", &["sha1"]).expect("a key").len(), 20);
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_told() {
        for (text, steps) in [("whsec_", vec!["strip:whsec_", "base64"]), ("zz", vec!["hex"]), ("*", vec!["base64"])] {
            let error = bytes(text, &steps).expect_err("no key").to_string();
            assert!(!error.contains(text), "{error}");
        }
        assert!(bytes("\u{20ac}", &["latin1"]).is_err());
    }

    #[test]
    fn a_public_key_is_never_the_secret_of_a_token() {
        let pem = format!("{PEM_BEGIN}\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n{PEM_END}\n");
        let recipe: Recipe =
            toml::from_str("algorithm = 'jwt'\nsignature = 'header:A'\njwt = { algorithms = ['HS256', 'EdDSA'] }\n")
                .expect("a recipe");
        for text in [pem.clone(), format!("\u{feff}{pem}"), format!("\r\n {pem}\t")] {
            let key = LiveKey::new(0, &text, &recipe).expect("a key");
            let key = key.token().expect("of a token");
            assert!(matches!(key, TokenKey::Ed25519(_)));
            let mac = Mac::chain_update(keyed::<Hmac<Sha256>>(text.as_bytes()), b"m").finalize().into_bytes();
            assert!(!key.hmac_holds(256, b"m", &mac));
        }
        for text in [
            pem.replace("PUBLIC KEY", "RSA PUBLIC KEY"),
            pem.replace("PUBLIC KEY", "CERTIFICATE"),
            format!("# ours\n{pem}"),
            format!("{pem}{pem}"),
            "-----BEGIN PUBLIC KEY-----".to_owned(),
        ] {
            assert!(LiveKey::new(0, &text, &recipe).is_err(), "{text}");
        }
        assert!(matches!(LiveKey::new(0, "plain", &recipe).expect("a key").token(), Some(TokenKey::Secret(_))));
        let hmac: Recipe =
            toml::from_str("algorithm = 'hmac-sha256'\nsignature = 'header:A'\nencoding = 'hex'\nsigned = '{body}'\n")
                .expect("a recipe");
        assert!(matches!(LiveKey::new(0, &pem, &hmac), Err(SecretError::Public)));
    }
}
