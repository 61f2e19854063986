//! Test traffic: events of one preset, spread over objects, repeated and shuffled. The same seed gives the
//! same events, so that sending again sends duplicates.

use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use seriatim_schemas::key::encode_part;

use crate::sign::Outgoing;

/// How much, of what, in which disorder.
#[derive(Debug, Clone)]
pub struct Plan {
    pub preset: String,
    /// Requests, repeated ones included.
    pub count: usize,
    pub objects: usize,
    pub duplicates: Share,
    pub shuffle: bool,
    pub seed: u64,
}

/// A share from 0 to 1; written `20%` or `0.2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
        let share = number.parse::<f64>().ok().map(|n| n / scale).filter(|s| (0.0..1.0).contains(s));
        share.map(Self).ok_or_else(|| format!("{text} is not a share such as 20% or 0.2, below 100%"))
    }
}

/// One event: the `step`-th of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub id: String,
    pub object: usize,
    pub step: u64,
}

/// The distinct events, and the requests as indices into them.
#[derive(Debug)]
pub struct Traffic {
    pub events: Vec<Event>,
    pub requests: Vec<usize>,
}

/// Presets whose events are made, any number of them; of the others the examples are sent.
pub const MADE: [&str; 5] = ["stripe", "github", "shopify", "standard_webhooks", "hmac"];

/// Versions of test events begin here, in unix seconds: safely in the past.
const FIRST_VERSION_S: i64 = 1_700_000_000;
/// How far behind its event a repeated request comes, unless all is shuffled.
const REPEAT_WITHIN: usize = 200;

impl Plan {
    pub fn traffic(&self) -> Traffic {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let repeated = (self.count as f64 * self.duplicates.0).round() as usize;
        let distinct = self.count.saturating_sub(repeated).max(1);
        let mut steps = vec![0_u64; self.objects.max(1)];
        let events: Vec<_> = (0..distinct)
            .map(|n| {
                let object = rng.random_range(0..steps.len());
                steps[object] += 1;
                Event { id: format!("evt_{}_{n}", self.seed), object, step: steps[object] }
            })
            .collect();
        let mut placed: Vec<(usize, usize)> = (0..distinct).map(|n| (n, n)).collect();
        placed.extend((distinct..self.count).map(|_| {
            let n = rng.random_range(0..distinct);
            (n + rng.random_range(0..REPEAT_WITHIN), n)
        }));
        placed.sort();
        let mut requests: Vec<_> = placed.into_iter().map(|(_, n)| n).collect();
        if self.shuffle {
            requests.shuffle(&mut rng);
        }
        Traffic { events, requests }
    }

    /// The id of an object as the preset derives it.
    pub fn object_id(&self, object: usize) -> String {
        let id = self.raw_object_id(object);
        match self.preset.as_str() {
            "github" => format!("pull_request {id}"),
            "shopify" => format!("orders {id}"),
            _ => id,
        }
    }

    fn raw_object_id(&self, object: usize) -> String {
        match self.preset.as_str() {
            "github" | "shopify" => (self.seed * 1_000_000 + object as u64).to_string(),
            _ => format!("obj_{}_{object}", self.seed),
        }
    }

    /// The request of an event, as its provider writes it, without a signature.
    pub fn request(&self, event: &Event) -> Outgoing {
        let object = self.raw_object_id(event.object);
        let number: u64 = object.parse().unwrap_or(0);
        let at_s = FIRST_VERSION_S + event.step as i64;
        let at = jiff::Timestamp::from_second(at_s).expect("steps are few").to_string();
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let mut header = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
        let body = match self.preset.as_str() {
            "stripe" => json!({
                "id": event.id, "object": "event", "created": at_s, "type": "customer.subscription.updated", "livemode": false,
                "data": { "object": { "id": object, "object": "subscription", "status": "active", "quantity": event.step } }
            }),
            "github" => {
                header("x-github-event", "pull_request");
                header("x-github-delivery", &event.id);
                json!({ "action": "edited", "number": number, "pull_request": { "id": number, "title": format!("step {}", event.step), "updated_at": at } })
            }
            "shopify" => {
                header("x-shopify-topic", "orders/updated");
                header("x-shopify-webhook-id", &event.id);
                header("x-shopify-shop-domain", "example.myshopify.com");
                header("x-shopify-api-version", "2026-01");
                json!({ "id": number, "total_price": event.step.to_string(), "updated_at": at })
            }
            "standard_webhooks" => {
                header("webhook-id", &event.id);
                json!({ "type": "thing.updated", "timestamp": at, "data": { "id": object, "step": event.step } })
            }
            _ => json!({ "id": event.id, "type": "thing.updated", "object": object, "version": event.step }),
        };
        Outgoing { method: "POST".to_owned(), query: String::new(), headers, body: body.to_string().into_bytes() }
    }
}

/// `/in/TENANT/SOURCE`, parts percent-encoded.
pub fn path(tenant: &str, source: &str) -> String {
    format!("/in/{}/{}", encode_part(tenant), encode_part(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(shuffle: bool) -> Plan {
        Plan { preset: "stripe".into(), count: 1000, objects: 10, duplicates: Share(0.2), shuffle, seed: 7 }
    }

    #[test]
    fn a_seed_gives_the_same_traffic_again() {
        for shuffle in [false, true] {
            let (a, b) = (plan(shuffle).traffic(), plan(shuffle).traffic());
            assert_eq!((&a.events, &a.requests), (&b.events, &b.requests));
            assert_eq!((a.events.len(), a.requests.len()), (800, 1000));
            let each = (0..800).all(|n| a.requests.contains(&n));
            assert!(each, "every event is sent at least once");
        }
    }

    #[test]
    fn shares_are_read() {
        assert_eq!("20%".parse(), Ok(Share(0.2)));
        assert_eq!("0.25".parse(), Ok(Share(0.25)));
        assert!("100%".parse::<Share>().is_err());
        assert!("x".parse::<Share>().is_err());
    }
}
