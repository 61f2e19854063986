//! Tokens that bind a request: JWS compact form (RFC 7515), with only the declared algorithms, whatever the
//! token says of itself.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;
use seriatim_schemas::verification::{JwtAlgorithm, JwtRule};

use crate::error::Refusal;
use crate::key::{LiveKey, TokenKey};
use crate::request::Claims;

#[derive(Deserialize)]
struct Header {
    alg: JwtAlgorithm,
    /// Extensions that must be understood; none is.
    crit: Option<serde_json::Value>,
}

/// The claims of a token that one of `keys` signed, and that key.
pub fn verify_token<'k>(
    token: &str,
    rule: &JwtRule,
    keys: &'k [LiveKey],
    now: Timestamp,
) -> Result<(&'k LiveKey, Claims), Refusal> {
    let (message, signature) = token.rsplit_once('.').ok_or(Refusal::SignatureMalformed)?;
    let (header, payload) = message.split_once('.').ok_or(Refusal::SignatureMalformed)?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| Refusal::SignatureMalformed);
    let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| Refusal::SignatureMalformed)?;
    if header.crit.is_some() || !rule.algorithms.contains(&header.alg) {
        return Err(Refusal::SignatureMalformed);
    }
    let signature = decode(signature)?;
    let signed = |key: &&LiveKey| key.token().is_some_and(|k| holds(k, header.alg, message.as_bytes(), &signature));
    let key = keys.iter().find(signed).ok_or(Refusal::SignatureMismatch)?;
    let claims: Claims = serde_json::from_slice(&decode(payload)?).map_err(|_| Refusal::SignatureMalformed)?;
    check_claims(&claims, rule, now)?;
    Ok((key, claims))
}

fn holds(key: &TokenKey, algorithm: JwtAlgorithm, message: &[u8], signature: &[u8]) -> bool {
    match (algorithm, key) {
        (JwtAlgorithm::HS256, key) => key.hmac_holds(256, message, signature),
        (JwtAlgorithm::HS384, key) => key.hmac_holds(384, message, signature),
        (JwtAlgorithm::HS512, key) => key.hmac_holds(512, message, signature),
        (JwtAlgorithm::RS256, TokenKey::Rsa(key))
        | (JwtAlgorithm::ES256, TokenKey::Ecdsa(key))
        | (JwtAlgorithm::EdDSA, TokenKey::Ed25519(key)) => key.verify_sig(message, signature).is_ok(),
        _ => false,
    }
}

/// `exp`, `nbf`, `iat` and `iss` (RFC 7519, section 4.1). Exactly at a limit passes.
fn check_claims(claims: &Claims, rule: &JwtRule, now: Timestamp) -> Result<(), Refusal> {
    let now = now.as_second();
    let leeway = i64::try_from(rule.leeway_s).unwrap_or(i64::MAX);
    let seconds = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => {
            let whole = value.as_i64().or_else(|| value.as_f64().map(|s| s as i64));
            whole.map(Some).ok_or(Refusal::TimestampMalformed)
        }
    };
    if seconds("exp")?.is_some_and(|exp| now > exp.saturating_add(leeway)) {
        return Err(Refusal::TimestampTooOld);
    }
    if seconds("nbf")?.is_some_and(|nbf| now < nbf.saturating_sub(leeway)) {
        return Err(Refusal::TimestampTooNew);
    }
    if let Some(max) = rule.max_age_s {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let iat = seconds("iat")?.ok_or(Refusal::TimestampMalformed)?;
        if now.saturating_sub(iat) > max.saturating_add(leeway) {
            return Err(Refusal::TimestampTooOld);
        }
        if iat.saturating_sub(now) > max.saturating_add(leeway) {
            return Err(Refusal::TimestampTooNew);
        }
    }
    match &rule.issuer {
        Some(issuer) if claims.get("iss").and_then(|v| v.as_str()) != Some(issuer) => Err(Refusal::ClaimMismatch),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use hmac::{Hmac, KeyInit, Mac};
    use serde_json::json;
    use seriatim_schemas::verification::Recipe;
    use sha2::Sha256;

    use super::*;

    const NOW: i64 = 1_767_225_600;

    fn recipe() -> Recipe {
        let text = "algorithm = \"jwt\"\nsignature = \"header:X\"\n\
            jwt = { algorithms = [\"HS256\", \"ES256\"], issuer = \"us\", leeway_s = 1, max_age_s = 300 }";
        toml::from_str(text).expect("a recipe")
    }

    fn token(header: serde_json::Value, claims: serde_json::Value) -> String {
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(b"secret").expect("any length");
        mac.update(message.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    fn check(token: &str) -> Result<(), Refusal> {
        let recipe = recipe();
        let keys = [LiveKey::new(0, "secret", &recipe).expect("a key")];
        let now = Timestamp::from_second(NOW).expect("a time");
        verify_token(token, recipe.jwt.as_ref().expect("a rule"), &keys, now).map(|_| ())
    }

    #[test]
    fn only_declared_algorithms_and_claims_that_hold_are_believed() {
        let good = json!({ "iss": "us", "iat": NOW });
        let with = |name: &str, value: serde_json::Value| {
            let mut claims = good.clone();
            claims[name] = value;
            claims
        };
        let header = json!({ "alg": "HS256", "typ": "JWT" });
        let table = [
            (header.clone(), good.clone(), Ok(())),
            (header.clone(), with("exp", json!(NOW - 1)), Ok(())),
            (header.clone(), with("exp", json!(NOW - 2)), Err(Refusal::TimestampTooOld)),
            (header.clone(), with("nbf", json!(NOW + 2)), Err(Refusal::TimestampTooNew)),
            (header.clone(), with("iat", json!(NOW - 302)), Err(Refusal::TimestampTooOld)),
            (header.clone(), with("iat", json!(NOW + 302)), Err(Refusal::TimestampTooNew)),
            (header.clone(), with("iat", json!("now")), Err(Refusal::TimestampMalformed)),
            (header.clone(), with("iss", json!("them")), Err(Refusal::ClaimMismatch)),
            (header.clone(), json!({ "iat": NOW }), Err(Refusal::ClaimMismatch)),
            (json!({ "alg": "HS384" }), good.clone(), Err(Refusal::SignatureMalformed)),
            (json!({ "alg": "none" }), good.clone(), Err(Refusal::SignatureMalformed)),
            (json!({ "alg": "HS256", "crit": ["b64"] }), good.clone(), Err(Refusal::SignatureMalformed)),
            (json!({ "alg": "ES256" }), good.clone(), Err(Refusal::SignatureMismatch)),
        ];
        for (header, claims, expected) in table {
            assert_eq!(check(&token(header.clone(), claims.clone())), expected, "{header} {claims}");
        }
        for malformed in ["", ".", "..", "a.b.c", "e30.e30."] {
            assert_eq!(check(malformed), Err(Refusal::SignatureMalformed), "{malformed}");
        }
        let good = token(header, good);
        let (message, _) = good.rsplit_once('.').expect("three parts");
        assert_eq!(check(&format!("{message}.AAAA")), Err(Refusal::SignatureMismatch));
    }
}
