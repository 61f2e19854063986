//! What the system says of itself, by the admin API of one of its processes.

use futures::StreamExt as _;
use reqwest::Client;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::fleet::{SOURCE, TENANT, TOKEN};
use crate::traffic::object_name;

/// Objects that are asked for at once.
const AT_ONCE: usize = 8;

/// What is stored of one object.
#[derive(Debug)]
pub struct Stored {
    /// Null where there is none.
    pub object: Value,
    /// Every record of it, and what it did.
    pub arrivals: Vec<Value>,
}

pub struct Ask {
    runtime: Runtime,
    client: Client,
    base: String,
}

impl Ask {
    pub fn at(admin: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = Client::builder().build().expect("a client");
        Self { runtime, client, base: format!("http://127.0.0.1:{admin}/v1") }
    }

    /// Records that are not done; none while nobody answers.
    pub fn lag(&self) -> Option<i64> {
        let answer = self.runtime.block_on(self.get("/lag"))?;
        answer["rows"].as_array()?.iter().map(|row| row["lag"].as_i64()).sum()
    }

    /// Objects that wait for their sink; none while nobody answers.
    pub fn waiting(&self) -> Option<Vec<Value>> {
        self.runtime.block_on(self.pages("/waiting?limit=1000"))
    }

    pub fn dead_letters(&self) -> Vec<Value> {
        self.runtime.block_on(self.pages("/dead-letters?limit=1000")).expect("it answers")
    }

    /// All objects, by number.
    pub fn objects(&self, count: usize) -> Vec<Stored> {
        let all = futures::stream::iter((0..count).map(|object| self.stored(object))).buffered(AT_ONCE);
        self.runtime.block_on(all.collect())
    }

    async fn stored(&self, object: usize) -> Stored {
        let path = format!("/tenants/{TENANT}/sources/{SOURCE}/objects/{}", object_name(object));
        let arrivals = self.pages(&format!("{path}/arrivals?limit=1000")).await.expect("it answers");
        Stored { object: self.get(&path).await.expect("it answers"), arrivals }
    }

    async fn pages(&self, path: &str) -> Option<Vec<Value>> {
        let (mut rows, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("{path}{after}")).await?;
            rows.extend(page["rows"].as_array().into_iter().flatten().cloned());
            let Some(next) = page["after"].as_str() else { return Some(rows) };
            after = format!("&after={next}");
        }
    }

    /// Null where there is no such thing.
    async fn get(&self, path: &str) -> Option<Value> {
        let answer = self.client.get(format!("{}{path}", self.base)).bearer_auth(TOKEN).send().await.ok()?;
        match answer.status().as_u16() {
            200 => serde_json::from_slice(&answer.bytes().await.ok()?).ok(),
            404 => Some(Value::Null),
            _ => None,
        }
    }
}
