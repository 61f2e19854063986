//! Why a request is not answered with success. One exhaustive match turns each into its status, so a new
//! cause does not compile until it has one.

use axum::http::StatusCode;
use thiserror::Error;

use crate::fetch::FetchError;
use crate::log::AppendError;

/// A request that gets no success.
#[derive(Debug, Error)]
pub enum WebhookError {
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    #[error("the body is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("the body ended early: {0}")]
    Truncated(String),
    #[error("the body took longer than {ms} ms")]
    TooSlow { ms: u64 },
    #[error("bodies in flight reached their bound of {max} bytes")]
    Busy { max: usize },
    #[error("not durable: {0}")]
    NotDurable(#[from] AppendError),
    #[error("not durable within {ms} ms")]
    PublishTimeout { ms: u64 },
    #[error("what the provider publishes is not to be had now: {0}")]
    NotFetched(FetchError),
}

/// Why a request is not believed. The sender is told none of this: 401 has one body for all causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    #[error("tenant and source are unknown")]
    UnknownSource,
    #[error("the signature is missing")]
    SignatureMissing,
    #[error("a value that verification reads comes more than once")]
    ValueDoubled,
    #[error("a value that verification reads is missing")]
    ValueMissing,
    #[error("the body is not what verification reads: JSON with the declared places")]
    BodyMalformed,
    #[error("no signature is of the declared form")]
    SignatureMalformed,
    #[error("no live secret makes this signature")]
    SignatureMismatch,
    #[error("the list of signed headers lacks its own name, or the timestamp")]
    HeaderNotListed,
    #[error("it could be a challenge that was signed for anyone who asked")]
    SignedChallenge,
    #[error("a value is not what it is required to be")]
    RequireMismatch,
    #[error("a digest is missing, or not of what was sent")]
    DigestMismatch,
    #[error("the signer's certificate is none, or not at a declared address")]
    Certificate,
    #[error("the secret that the handshake brings cannot be kept: there is one already, or no place for it")]
    SecretNotKept,
    #[error("the address that confirms the handshake is not a declared one")]
    ConfirmationFailed,
    #[error("a claim of the token does not hold")]
    ClaimMismatch,
    #[error("the timestamp is missing or not of the declared unit")]
    TimestampMalformed,
    #[error("the timestamp is too old")]
    TimestampTooOld,
    #[error("the timestamp is too far ahead")]
    TimestampTooNew,
}

impl Refusal {
    /// The value of the metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownSource => "unknown_source",
            Self::SignatureMissing => "signature_missing",
            Self::ValueDoubled => "value_doubled",
            Self::ValueMissing => "value_missing",
            Self::BodyMalformed => "body_malformed",
            Self::SignatureMalformed => "signature_malformed",
            Self::SignatureMismatch => "signature_mismatch",
            Self::HeaderNotListed => "header_not_listed",
            Self::SignedChallenge => "signed_challenge",
            Self::RequireMismatch => "require_mismatch",
            Self::DigestMismatch => "digest_mismatch",
            Self::Certificate => "certificate",
            Self::SecretNotKept => "secret_not_kept",
            Self::ConfirmationFailed => "confirmation_failed",
            Self::ClaimMismatch => "claim_mismatch",
            Self::TimestampMalformed => "timestamp_malformed",
            Self::TimestampTooOld => "timestamp_too_old",
            Self::TimestampTooNew => "timestamp_too_new",
        }
    }
}

impl WebhookError {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Refused(_) => StatusCode::UNAUTHORIZED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Truncated(_) => StatusCode::BAD_REQUEST,
            Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::NotDurable(AppendError::TooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Busy { .. } | Self::NotDurable(_) | Self::PublishTimeout { .. } | Self::NotFetched(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// Whether the body was not read to its end.
    pub fn leaves_body_unread(&self) -> bool {
        match self {
            Self::TooLarge { .. } | Self::Truncated(_) | Self::TooSlow { .. } | Self::Busy { .. } => true,
            Self::Refused(_) | Self::NotDurable(_) | Self::PublishTimeout { .. } | Self::NotFetched(_) => false,
        }
    }

    /// What the sender is told. It names no cause that would help a forger; some providers demand that a refusal
    /// has no body.
    pub fn public_text(&self) -> &'static str {
        match self {
            Self::Refused(_) => "",
            Self::TooLarge { .. } | Self::NotDurable(AppendError::TooLarge { .. }) => "body too large",
            Self::Truncated(_) => "body incomplete",
            Self::TooSlow { .. } => "body too slow",
            Self::Busy { .. } | Self::NotDurable(_) | Self::PublishTimeout { .. } | Self::NotFetched(_) => {
                "try again later"
            }
        }
    }
}
