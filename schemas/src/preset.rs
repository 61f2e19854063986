//! Presets: the declarations of well-known providers, one file each in `presets/`, in the binary.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::declaration::{DEDUPE_WINDOW_S, Declaration};
use crate::document;

/// How much longer than a provider's retries an event is remembered, at least: they also come by hand.
const MARGIN_S: u64 = 7 * 24 * 3600;

/// A provider's declaration and what a reader should know about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    pub name: String,
    pub title: String,
    /// The provider's documentation of its webhooks.
    pub docs: String,
    pub notes: String,
    pub basis: Basis,
    pub delivery: Delivery,
    pub advice: Advice,
    pub declare: Declaration,
}

/// What the facts rest on.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Basis {
    pub signature: Source,
    pub delivery: Source,
    pub fields: Source,
    /// Where the documents of thin events are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch: Option<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Read in the provider's documentation or code.
    Read,
    /// From memory of the provider's documentation: unconfirmed.
    Recall,
}

/// How the provider delivers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delivery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// The longest time over which it tries again by itself; 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_window_s: Option<u64>,
    /// How long it waits for an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Which answers it takes for a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering: Option<String>,
    /// Deliveries that a person or a program asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redelivery: Option<String>,
    /// When it stops sending for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disables: Option<String>,
}

/// What to rely on for an object's state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    pub state: State,
    pub why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Fetch the current state from the provider, where an API secret is given.
    Fetch,
    /// The version gate decides.
    Version,
    /// There is no state: each event counts.
    Each,
}

/// Requests as a provider sends them, and what their events are. Signatures are left out.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// The provider's page that shows them, or that they are from memory.
    pub source: String,
    pub requests: Vec<ExampleRequest>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExampleRequest {
    pub method: String,
    pub query: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
    /// Claims of its token.
    #[serde(default)]
    pub claims: Option<serde_json::Map<String, serde_json::Value>>,
    pub events: Vec<ExampleEvent>,
}

/// What one event of an example is, as the provider means it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExampleEvent {
    pub object: String,
    /// None: the digest of the body.
    pub event_id: Option<String>,
    pub event_type: String,
    pub version: Option<String>,
    /// Where its document is fetched from, if it is thin.
    #[serde(default)]
    pub fetch: Option<String>,
}

/// Name, declaration and examples of each preset.
macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$((
            $name,
            include_str!(concat!("../presets/", $name, ".toml")),
            include_str!(concat!("../examples/", $name, ".json")),
        )),*]
    };
}

const FILES: &[(&str, &str, &str)] = presets![
    "adyen_platform",
    "adyen_standard",
    "airtable",
    "asaas",
    "asana",
    "attio",
    "aws_sns",
    "bitbucket",
    "box",
    "braintree",
    "buildkite",
    "cal_com",
    "calendly",
    "chargebee",
    "checkout_com",
    "circleci",
    "clerk",
    "cloudinary",
    "coinbase_commerce",
    "contentful",
    "discord",
    "docusign",
    "doppler",
    "dropbox",
    "easypost",
    "ebay",
    "elevenlabs",
    "fusionauth",
    "github",
    "gitlab",
    "gocardless",
    "google_push",
    "grafana",
    "hcp_terraform",
    "hmac",
    "hubspot",
    "hygraph",
    "intercom",
    "jira",
    "lark",
    "lemonsqueezy",
    "line",
    "linear",
    "lithic",
    "mailgun",
    "mandrill",
    "mercadopago",
    "messagebird",
    "meta",
    "microsoft_graph",
    "modern_treasury",
    "mollie",
    "mux",
    "notion",
    "onfido",
    "openai",
    "orb",
    "paddle",
    "pagerduty",
    "paypal",
    "paystack",
    "plaid",
    "plivo",
    "postmark",
    "pusher",
    "razorpay",
    "recurly",
    "replicate",
    "resend",
    "revenuecat",
    "sanity",
    "sendgrid",
    "sentry",
    "shopify",
    "sinch",
    "slack",
    "square",
    "standard_webhooks",
    "stream",
    "stripe",
    "telegram",
    "telnyx",
    "trello",
    "twilio",
    "twitch",
    "twitter",
    "typeform",
    "vercel",
    "webflow",
    "woocommerce",
    "workos",
    "xero",
    "zendesk",
    "zoom",
];

fn read(text: &str) -> Preset {
    document::read(text, &[], |_| Vec::new()).expect("presets are checked by a test")
}

impl Preset {
    pub fn all() -> Vec<Preset> {
        FILES.iter().map(|(_, text, _)| read(text)).collect()
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, ..)| *name)
    }

    pub fn named(name: &str) -> Option<Self> {
        FILES.iter().find(|(known, ..)| *known == name).map(|(_, text, _)| read(text))
    }

    /// What to say to a name that no preset has.
    pub fn unknown(name: &str) -> String {
        let likeness = |known: &str| strsim::jaro_winkler(known, &name.to_ascii_lowercase());
        let closest = Self::names().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let closest = closest.filter(|known| likeness(known) > 0.8);
        let hint = closest.map_or(String::new(), |known| format!("; did you mean {known}?"));
        format!("{name:?} is unknown{hint} (`seriatim source presets` lists all)")
    }

    /// The declaration, with what follows from the delivery facts: events are remembered for longer than the
    /// provider tries again.
    pub fn declaration(self) -> Declaration {
        let window = self.dedupe_window_s();
        let more = (window != DEDUPE_WINDOW_S).then_some(window);
        Declaration { dedupe_window_s: self.declare.dedupe_window_s.or(more), ..self.declare }
    }

    fn dedupe_window_s(&self) -> u64 {
        let retries = self.delivery.retry_window_s.unwrap_or(0) + MARGIN_S;
        self.declare.dedupe_window_s.unwrap_or_else(|| retries.max(DEDUPE_WINDOW_S))
    }

    /// Requests as the provider sends them.
    pub fn example(name: &str) -> Option<Example> {
        let (.., text) = FILES.iter().find(|(known, ..)| *known == name)?;
        Some(serde_json::from_str(text).expect("examples are checked by a test"))
    }

    /// The file, with its comments.
    pub fn text(name: &str) -> Option<&'static str> {
        FILES.iter().find(|(known, ..)| *known == name).map(|(_, text, _)| *text)
    }
}

#[cfg(test)]
mod tests;
