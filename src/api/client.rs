//! Asked of a server: the admin API of a process that runs elsewhere. Errors are those that it would tell here.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::redirect::Policy;
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use seriatim_ingest::secret::read_secret;
use seriatim_schemas::key::{ObjectKey, encode_part};
use seriatim_schemas::source::SecretRef;

use super::operations::{LettersAct, ObjectAct, OperationError, Operations};
use super::problem::Problem;
use super::rows::{
    Event, Group, LetterFilter, LetterRow, LetterSummary, LettersDone, LettersRequest, ObjectDone, ObjectRequest,
    ObjectRow, ObjectSummary, Page, Paging, PartitionLag, Trace, WaiterRow, WaitingQuery,
};

/// The variable that holds the token.
pub const TOKEN_VARIABLE: &str = "SERIATIM_TOKEN";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// More than a server takes for any request.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Client {
    http: reqwest::Client,
    /// Without a slash at its end.
    server: String,
    token: String,
}

impl Client {
    /// The token stands in `token_file`, or else in the environment.
    pub fn new(server: &str, token_file: Option<&Path>) -> Result<Self, OperationError> {
        let invalid = |text: String| OperationError::Invalid(text);
        let url = Url::parse(server).map_err(|error| invalid(format!("--server {server}: {error}")))?;
        let is_plain = match url.scheme() {
            "https" => false,
            "http" => true,
            other => return Err(invalid(format!("--server {server}: {other} is neither https nor http"))),
        };
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("--server: give scheme, host and port only, such as https://seriatim:9464".to_owned()));
        }
        if is_plain && !is_loopback(&url) {
            let remedy = "use https (a proxy that ends TLS), or forward the port to this machine";
            return Err(invalid(format!("--server {server}: the token would be readable on the way: {remedy}")));
        }
        let token = match token_file {
            Some(path) => read_secret(&SecretRef::File(path.display().to_string())),
            None => read_secret(&SecretRef::Env(TOKEN_VARIABLE.to_owned())),
        };
        let token = token.map_err(|error| invalid(format!("--server needs a token: {error}")))?;
        if token.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return Err(invalid("the token holds what no header can: is it the right file?".to_owned()));
        }
        let http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).timeout(TIMEOUT);
        // A token goes to the server that was named, and nowhere else: a proxy would read what is not encrypted.
        let http = http.redirect(Policy::none());
        let http = if is_plain { http.no_proxy() } else { http };
        let http = http.build().map_err(|error| OperationError::Failed(error.to_string()))?;
        Ok(Self { http, server: url.as_str().trim_end_matches('/').to_owned(), token })
    }

    async fn ask(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Bytes, OperationError> {
        let url = format!("{}/v1{path}", self.server);
        let mut request = self.http.request(method, &url).header(AUTHORIZATION, format!("Bearer {}", self.token));
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let away = |error: reqwest::Error| {
            let error = anyhow::Error::from(error.without_url());
            OperationError::Away(format!("{} does not answer: {error:#}", self.server))
        };
        let answer = request.send().await.map_err(away)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(away)?;
        if status.is_success() {
            return Ok(body);
        }
        let Ok(Problem { detail, .. }) = serde_json::from_slice(&body) else {
            let text = format!("{} answered {status}: is it the admin address of a Seriatim?", self.server);
            return Err(OperationError::Failed(text));
        };
        Err(match status.as_u16() {
            404 => OperationError::NotFound(detail),
            400 | 422 => OperationError::Invalid(detail),
            401 | 403 => OperationError::Invalid(format!("{} refused: {detail}", self.server)),
            503 => OperationError::Away(detail),
            _ => OperationError::Failed(detail),
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Query) -> Result<T, OperationError> {
        let text = form_urlencoded::Serializer::new(String::new()).extend_pairs(query.pairs()).finish();
        let path = if text.is_empty() { path.to_owned() } else { format!("{path}?{text}") };
        self.read(&self.ask(Method::GET, &path, None).await?)
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, OperationError> {
        let body = serde_json::to_vec(body).expect("plain data");
        self.read(&self.ask(Method::POST, path, Some(body)).await?)
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, OperationError> {
        let failed = |error| format!("{}: an answer that this version cannot read: {error}", self.server);
        serde_json::from_slice(body).map_err(|error| OperationError::Failed(failed(error)))
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// What stands in a query, where it stands there at all.
trait Query {
    fn pairs(&self) -> Vec<(&'static str, String)>;
}

fn given<const N: usize>(of: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    of.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

impl Query for () {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

impl Query for Paging {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        given([("limit", self.limit.map(|limit| limit.to_string())), ("after", self.after.clone())])
    }
}

impl Query for LetterFilter {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let Self { tenant, source, object, id, cause } = self.clone();
        given([("tenant", tenant), ("source", source), ("object", object), ("id", id), ("cause", cause)])
    }
}

impl Query for WaitingQuery {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let parked = self.parked.map(|parked| parked.to_string());
        given([("tenant", self.tenant.clone()), ("source", self.source.clone()), ("parked", parked)])
    }
}

impl<A: Query, B: Query> Query for (&A, &B) {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        [self.0.pairs(), self.1.pairs()].concat()
    }
}

/// A path of fixed words and names. Some names no URL can hold.
fn path(parts: &[&str]) -> Result<String, OperationError> {
    if let Some(part) = parts.iter().find(|part| matches!(**part, "" | "." | "..")) {
        return Err(OperationError::Invalid(format!(
            "no URL can name {part:?}: ask where the store is, without --server"
        )));
    }
    Ok(parts.iter().map(|part| format!("/{}", encode_part(part))).collect())
}

fn object_path(key: &ObjectKey, rest: &[&str]) -> Result<String, OperationError> {
    path(&[&["tenants", &key.tenant, "sources", &key.source, "objects", &key.object], rest].concat())
}

fn event_path(tenant: &str, source: &str, event_id: &str, rest: &[&str]) -> Result<String, OperationError> {
    path(&[&["tenants", tenant, "sources", source, "events", event_id], rest].concat())
}

#[async_trait]
impl Operations for Client {
    async fn objects(
        &self,
        tenant: &str,
        source: &str,
        paging: &Paging,
    ) -> Result<Page<ObjectSummary>, OperationError> {
        self.get(&path(&["tenants", tenant, "sources", source, "objects"])?, paging).await
    }

    async fn object(&self, key: &ObjectKey) -> Result<ObjectRow, OperationError> {
        self.get(&object_path(key, &[])?, &()).await
    }

    async fn events(&self, key: &ObjectKey, paging: &Paging) -> Result<Page<Event>, OperationError> {
        self.get(&object_path(key, &["events"])?, paging).await
    }

    async fn trace(
        &self,
        tenant: &str,
        source: &str,
        event_id: &str,
        paging: &Paging,
    ) -> Result<Trace, OperationError> {
        self.get(&event_path(tenant, source, event_id, &[])?, paging).await
    }

    async fn raw(&self, tenant: &str, source: &str, event_id: &str) -> Result<Bytes, OperationError> {
        self.ask(Method::GET, &event_path(tenant, source, event_id, &["raw"])?, None).await
    }

    async fn letters(&self, filter: &LetterFilter, paging: &Paging) -> Result<Page<LetterSummary>, OperationError> {
        self.get("/dead-letters", &(filter, paging)).await
    }

    async fn letter_groups(&self, filter: &LetterFilter) -> Result<Page<Group>, OperationError> {
        self.get("/dead-letters/groups", filter).await
    }

    async fn letter(&self, tenant: &str, source: &str, id: &str) -> Result<LetterRow, OperationError> {
        self.get(&path(&["dead-letters", tenant, source, id])?, &()).await
    }

    async fn act_on_letters(
        &self,
        act: LettersAct,
        request: &LettersRequest,
        _: &str,
    ) -> Result<LettersDone, OperationError> {
        self.post(&format!("/dead-letters/{}", act.as_str()), request).await
    }

    async fn waiting(&self, query: &WaitingQuery, paging: &Paging) -> Result<Page<WaiterRow>, OperationError> {
        self.get("/waiting", &(query, paging)).await
    }

    async fn act_on_object(
        &self,
        key: &ObjectKey,
        act: ObjectAct,
        request: &ObjectRequest,
        _: &str,
    ) -> Result<ObjectDone, OperationError> {
        self.post(&object_path(key, &[act.as_str()])?, request).await
    }

    async fn lag(&self) -> Result<Page<PartitionLag>, OperationError> {
        self.get("/lag", &()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_sent_readable_over_a_network() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").expect("written");
        let problem = |server: &str| Client::new(server, Some(&file)).err().map(|e| e.to_string());
        for good in ["https://seriatim.example:9464", "http://127.0.0.1:9464/", "http://[::1]:9464", "http://localhost"]
        {
            assert_eq!(problem(good), None, "{good}");
        }
        for plain in ["http://seriatim.example", "http://10.0.0.1:9464", "http://localhost.example"] {
            assert!(problem(plain).is_some_and(|text| text.contains("readable on the way")), "{plain}");
        }
        for wrong in ["seriatim:9464", "ftp://localhost", "", "https://kim:secret@localhost", "https://localhost/?x=1"]
        {
            assert!(problem(wrong).is_some(), "{wrong}");
        }
        std::fs::write(&file, "\n").expect("written");
        assert!(problem("http://localhost").is_some_and(|text| text.contains("is empty")));
    }

    #[test]
    fn names_stand_in_paths_as_they_are() {
        let key = ObjectKey::new("a/b", "ü", "?#%\0");
        assert_eq!(
            object_path(&key, &["events"]).expect("a path"),
            "/tenants/a%2Fb/sources/%C3%BC/objects/%3F%23%25%00/events"
        );
        assert!(["", ".", ".."].iter().all(|name| event_path("a", "b", name, &[]).is_err()));
    }
}
