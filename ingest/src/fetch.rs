//! Fetches what a provider publishes for its receivers: certificates, and addresses that confirm a subscription.
//! A request names the address, so it is outsiders' input: https only, declared hosts only, no redirects, bounded
//! in bytes, time and number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use reqwest::Url;
use seriatim_schemas::pattern::Pattern;
use thiserror::Error;
use tokio::sync::Semaphore;

const WITHIN: Duration = Duration::from_secs(5);
const BYTES_MAX: usize = 64 * 1024;
/// How long a certificate is kept; and how long an address that failed is left alone.
const KEPT: Duration = Duration::from_secs(24 * 3600);
const LEFT_ALONE: Duration = Duration::from_secs(30);
const CACHED_MAX: usize = 256;
const AT_ONCE: usize = 4;
/// Fetches of certificates that are not kept yet, in one minute: a forger may name any number of addresses.
const PER_MINUTE: usize = 60;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchError {
    #[error("{url:?} is no https address of a declared host")]
    NotAllowed { url: String },
    #[error("{url} cannot be fetched: {reason}")]
    Failed { url: String, reason: String },
    #[error("too many addresses in a minute")]
    TooMany,
}

/// A GET over https. A seam: tests stand in for the providers' hosts.
#[async_trait]
pub trait Get: Send + Sync + 'static {
    async fn get(&self, url: &Url) -> Result<Vec<u8>, FetchError>;
}

/// The real one.
pub struct Https(reqwest::Client);

impl Https {
    pub fn new() -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(WITHIN)
            .user_agent(concat!("seriatim/", env!("CARGO_PKG_VERSION")));
        Ok(Self(client.build()?))
    }
}

#[async_trait]
impl Get for Https {
    async fn get(&self, url: &Url) -> Result<Vec<u8>, FetchError> {
        let failed = |reason: String| FetchError::Failed { url: url.to_string(), reason };
        let answer = self.0.get(url.clone()).send().await.map_err(|e| failed(e.without_url().to_string()))?;
        if !answer.status().is_success() {
            return Err(failed(format!("status {}", answer.status().as_u16())));
        }
        let (mut answer, mut body) = (answer, Vec::new());
        while let Some(chunk) = answer.chunk().await.map_err(|e| failed(e.without_url().to_string()))? {
            body.extend_from_slice(&chunk);
            if body.len() > BYTES_MAX {
                return Err(failed(format!("more than {BYTES_MAX} bytes")));
            }
        }
        Ok(body)
    }
}

/// Fetches, and keeps what it got.
#[derive(Clone)]
pub struct Fetcher {
    get: Arc<dyn Get>,
    kept: Arc<Mutex<Kept>>,
    at_once: Arc<Semaphore>,
}

type Fetched = Result<Arc<Vec<u8>>, FetchError>;

#[derive(Default)]
struct Kept {
    by_url: HashMap<String, (Instant, Fetched)>,
    minute: Option<(Instant, usize)>,
}

impl Fetcher {
    pub fn new(get: Arc<dyn Get>) -> Self {
        Self { get, kept: Arc::default(), at_once: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// The document at `url`, once.
    pub async fn once(&self, url: &str, hosts: &[String]) -> Result<Vec<u8>, FetchError> {
        let url = allowed(url, hosts)?;
        let _permit = self.at_once.acquire().await.expect("never closed");
        self.get.get(&url).await
    }

    /// The document at `url`, from memory where it was fetched before.
    pub async fn kept(&self, url: &str, hosts: &[String]) -> Fetched {
        let parsed = allowed(url, hosts)?;
        if let Some(found) = self.lock().find(url)? {
            return found;
        }
        let _permit = self.at_once.acquire().await.expect("never closed");
        // Others may have fetched it while this one waited.
        if let Some(found) = self.lock().find_only(url) {
            return found;
        }
        let result = self.get.get(&parsed).await.map(Arc::new);
        self.lock().keep(url, result.clone());
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().expect("nothing panics while it holds this lock")
    }
}

impl Kept {
    fn find_only(&self, url: &str) -> Option<Fetched> {
        let (at, result) = self.by_url.get(url)?;
        let limit = if result.is_ok() { KEPT } else { LEFT_ALONE };
        (at.elapsed() < limit).then(|| result.clone())
    }

    /// What is kept; else none, and one fetch more is counted.
    fn find(&mut self, url: &str) -> Result<Option<Fetched>, FetchError> {
        if let Some(found) = self.find_only(url) {
            return Ok(Some(found));
        }
        let (began, count) = self.minute.filter(|(at, _)| at.elapsed().as_secs() < 60).unwrap_or((Instant::now(), 0));
        if count == PER_MINUTE {
            return Err(FetchError::TooMany);
        }
        self.minute = Some((began, count + 1));
        Ok(None)
    }

    fn keep(&mut self, url: &str, result: Fetched) {
        if self.by_url.len() >= CACHED_MAX
            && let Some(oldest) = self.by_url.iter().min_by_key(|(_, (at, _))| *at).map(|(url, _)| url.clone())
        {
            self.by_url.remove(&oldest);
        }
        self.by_url.insert(url.to_owned(), (Instant::now(), result));
    }
}

fn allowed(text: &str, hosts: &[String]) -> Result<Url, FetchError> {
    let refused = || FetchError::NotAllowed { url: text.chars().take(200).collect() };
    let url = Url::parse(text).map_err(|_| refused())?;
    let is_plain =
        url.scheme() == "https" && url.port().is_none() && url.username().is_empty() && url.password().is_none();
    let host = url.host_str().filter(|_| is_plain).ok_or_else(refused)?.to_owned();
    if hosts.iter().any(|pattern| is_host(pattern, &host)) { Ok(url) } else { Err(refused()) }
}

/// Whether `host` is meant by `pattern`, label by label; a `*` stays within its label.
fn is_host(pattern: &str, host: &str) -> bool {
    let (wanted, labels): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), host.split('.').collect());
    let fits = |(pattern, label): (&&str, &&str)| !label.is_empty() && Pattern((*pattern).to_owned()).matches(label);
    wanted.len() == labels.len() && wanted.iter().zip(&labels).all(fits)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    #[async_trait]
    impl Get for Counted {
        async fn get(&self, url: &Url) -> Result<Vec<u8>, FetchError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            if url.path() == "/none" {
                return Err(FetchError::Failed { url: url.to_string(), reason: "status 404".into() });
            }
            Ok(url.path().as_bytes().to_vec())
        }
    }

    fn hosts() -> Vec<String> {
        vec!["sns.*.amazonaws.com".to_owned()]
    }

    #[test]
    fn only_declared_hosts_over_https() {
        let good = "https://sns.eu-west-1.amazonaws.com/cert.pem";
        assert!(allowed(good, &hosts()).is_ok());
        for bad in [
            "http://sns.eu-west-1.amazonaws.com/c",
            "https://sns.eu-west-1.amazonaws.com.evil.example/c",
            "https://evil.example/sns.eu-west-1.amazonaws.com",
            "https://sns.a.b.amazonaws.com/c",
            "https://sns..amazonaws.com/c",
            "https://user@sns.eu-west-1.amazonaws.com/c",
            "https://sns.eu-west-1.amazonaws.com@evil.example/c",
            "https://sns.eu-west-1.amazonaws.com:8443/c",
            "https://snsxeu-west-1.amazonaws.com/c",
            "https://127.0.0.1/c",
            "file:///etc/passwd",
            "",
        ] {
            assert!(allowed(bad, &hosts()).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn what_was_fetched_is_kept_and_failures_are_left_alone() {
        let get = Arc::new(Counted::default());
        let fetcher = Fetcher::new(get.clone());
        let url = |path: &str| format!("https://sns.us.amazonaws.com/{path}");
        for _ in 0..3 {
            assert_eq!(fetcher.kept(&url("a"), &hosts()).await.map(|b| b.to_vec()), Ok(b"/a".to_vec()));
            assert!(fetcher.kept(&url("none"), &hosts()).await.is_err());
        }
        assert_eq!(get.0.load(Ordering::SeqCst), 2);
        let mut last = Ok(Arc::default());
        for i in 0..PER_MINUTE {
            last = fetcher.kept(&url(&i.to_string()), &hosts()).await;
        }
        assert_eq!(last, Err(FetchError::TooMany));
        assert!(fetcher.kept(&url("a"), &hosts()).await.is_ok());
    }

    #[tokio::test]
    async fn the_real_client_takes_no_plain_http() {
        let client = Https::new().expect("a client");
        let url = Url::parse("http://127.0.0.1:1/").expect("a URL");
        assert!(client.get(&url).await.is_err());
    }
}
