//! Tokens of the admin API. Only their digests are kept, and every one of them is compared, in constant time.

use anyhow::{Context, bail};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use seriatim_ingest::secret::read_secret;
use seriatim_schemas::name::check_name;
use seriatim_schemas::problem::Problem;
use seriatim_schemas::source::SecretRef;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::problem::ApiError;

/// Shortest token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;

/// Who may use the admin API.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Who uses it: stands in the ledger with each act.
    pub name: String,
    pub role: Role,
    /// At least 16 bytes, such as `openssl rand -hex 32` makes.
    pub token: SecretRef,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks at everything.
    Read,
    /// Acts, too.
    Operate,
}

/// What can be said of tokens without reading them.
pub fn problems(tokens: &[TokenConfig]) -> Vec<Problem> {
    let mut out = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        if let Err(error) = check_name(&token.name) {
            out.push(Problem::at(format!("tokens.{i}.name"), error.to_string()));
        }
        if tokens[..i].iter().any(|other| other.name == token.name) {
            out.push(Problem::at(format!("tokens.{i}.name"), "is used more than once"));
        }
        if matches!(token.token, SecretRef::Handshake(_)) {
            out.push(Problem::at(format!("tokens.{i}.token"), "no handshake brings it: name a file or a variable"));
        }
    }
    out
}

struct Token {
    caller: Caller,
    digest: [u8; 32],
}

/// Who has sent a request.
#[derive(Debug, Clone)]
pub struct Caller {
    pub name: String,
    role: Role,
}

pub struct Tokens(Vec<Token>);

impl Tokens {
    /// Reads all tokens. Refuses one that could be guessed, and one that would not tell who it is.
    pub fn read(tokens: &[TokenConfig]) -> anyhow::Result<Self> {
        let mut read: Vec<Token> = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            let TokenConfig { name, role, token } = token;
            let field = || format!("admin.tokens.{i} ({name})");
            let text = read_secret(token).with_context(field)?;
            if text.len() < TOKEN_BYTES_MIN {
                let bytes = text.len();
                bail!(
                    "{}: is {bytes} bytes long: at least {TOKEN_BYTES_MIN}, make one by `openssl rand -hex 32`",
                    field()
                );
            }
            if text.bytes().any(|byte| !byte.is_ascii_graphic()) {
                bail!("{}: holds what no header can: use printable ASCII without spaces", field());
            }
            let digest = Sha256::digest(&text).into();
            if let Some(twin) = read.iter().find(|other| other.digest == digest) {
                bail!("{}: is the token of {} too: give each its own", field(), twin.caller.name);
            }
            read.push(Token { caller: Caller { name: name.clone(), role: *role }, digest });
        }
        Ok(Self(read))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whoever the request's token names.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let refused = |detail: &str| ApiError::new(StatusCode::UNAUTHORIZED, detail);
        if self.is_empty() {
            return Err(refused("no token is configured: configure admin.tokens"));
        }
        let mut all = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (all.next(), all.next()) else {
            return Err(refused("send one header Authorization: Bearer TOKEN"));
        };
        let (scheme, token) = value.as_bytes().split_at_checked(7).unwrap_or_default();
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return Err(refused("send the header Authorization: Bearer TOKEN"));
        }
        let digest: [u8; 32] = Sha256::digest(token.trim_ascii()).into();
        let mut found = None;
        for token in &self.0 {
            if bool::from(token.digest.ct_eq(&digest)) {
                found = Some(&token.caller);
            }
        }
        found.cloned().ok_or_else(|| refused("the token is none of admin.tokens"))
    }
}

/// A caller who may act.
pub struct Operates(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Operates {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let caller = parts.extensions.get::<Caller>().cloned();
        match caller {
            Some(caller) if caller.role == Role::Operate => Ok(Self(caller)),
            _ => Err(ApiError::new(StatusCode::FORBIDDEN, "the token has role read, an act needs role operate")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, role: Role, token: &str) -> TokenConfig {
        TokenConfig { name: name.into(), role, token: SecretRef::Value(token.into()) }
    }

    #[test]
    fn tokens_that_protect_nothing_are_refused() {
        let read = |tokens: &[TokenConfig]| Tokens::read(tokens).err().map(|e| format!("{e:#}")).unwrap_or_default();
        assert!(read(&[config("a", Role::Read, "short")]).contains("admin.tokens.0 (a): is 5 bytes long"));
        assert!(read(&[config("a", Role::Read, " ")]).contains("is empty"));
        assert!(read(&[config("a", Role::Read, "0123456789abcdef\n")]).contains("printable ASCII"));
        let twins = ["a", "b"].map(|name| config(name, Role::Read, "0123456789abcdef"));
        assert!(read(&twins).contains("admin.tokens.1 (b): is the token of a too"));
        let same = ["a", "a"].map(|name| config(name, Role::Read, "0123456789abcdef"));
        assert_eq!(problems(&same).len(), 1);
        assert_eq!(problems(&[config("", Role::Read, "x")]).len(), 1);
    }

    #[test]
    fn only_a_whole_token_in_one_header_names_its_caller() {
        let tokens = Tokens::read(&[config("a", Role::Read, "0123456789abcdef")]).expect("good");
        let name = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().expect("a value"));
            }
            tokens.caller(&headers).ok().map(|caller| caller.name)
        };
        assert_eq!(name(&["Bearer 0123456789abcdef"]).as_deref(), Some("a"));
        assert_eq!(name(&["bearer  0123456789abcdef "]).as_deref(), Some("a"));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Basic 0123456789abcdef"]
        {
            assert_eq!(name(&[wrong]), None, "{wrong:?}");
        }
        assert_eq!(name(&["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"]), None);
        assert_eq!(name(&[]), None);
    }
}
