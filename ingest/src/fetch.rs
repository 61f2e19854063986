//! Fetches what a provider publishes for its receivers: certificates, and addresses that confirm a subscription.
//! A request names the address, so it is outsiders' input: https only, declared hosts only, no redirects, bounded
//! in bytes, time and number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use reqwest::Url;
use seriatim_schemas::handshake::FetchRule;
use seriatim_schemas::pattern::Pattern;
use seriatim_schemas::verification::CertificateRule;
use thiserror::Error;
use tokio::sync::{Semaphore, SemaphorePermit};

const WITHIN: Duration = Duration::from_secs(5);
const BYTES_MAX: usize = 64 * 1024;
/// How long a certificate is kept; and how long an address that failed is left alone.
const KEPT: Duration = Duration::from_secs(24 * 3600);
const LEFT_ALONE: Duration = Duration::from_secs(30);
/// Addresses of one source, those that are proven and the others each.
const CACHED_MAX: usize = 32;
/// Fetches of one source.
const AT_ONCE: usize = 4;
/// Fetches for one source of certificates that are not kept yet, in one minute: a forger may name any number of addresses.
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

/// Which addresses may be fetched.
#[derive(Debug, Clone, Copy)]
pub struct Allowed<'a> {
    hosts: &'a [String],
    path: Option<&'a Pattern>,
    query: bool,
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

/// Fetches, and keeps what it got; each source by itself, so that a forger at one is no trouble to the others.
#[derive(Clone)]
pub struct Fetcher {
    get: Arc<dyn Get>,
    sources: Arc<Mutex<HashMap<SourceName, Arc<OfSource>>>>,
}

/// Tenant and name.
pub type SourceName = (String, String);

type Fetched = Result<Arc<Vec<u8>>, FetchError>;

struct OfSource {
    kept: Mutex<Kept>,
    at_once: Semaphore,
}

#[derive(Default)]
struct Kept {
    /// What has verified a request. Nothing else takes its place.
    proven: Addresses,
    /// What has not yet, and what cannot be fetched: a forger may name any number of addresses.
    others: Addresses,
    minute: Option<(Instant, usize)>,
}

/// What came of addresses, a bounded number of them.
#[derive(Default)]
struct Addresses(HashMap<String, (Instant, Fetched)>);

impl Fetcher {
    pub fn new(get: Arc<dyn Get>) -> Self {
        Self { get, sources: Arc::default() }
    }

    /// The document at `url`, once.
    pub async fn once(&self, source: &SourceName, url: &str, allowed: Allowed<'_>) -> Result<Vec<u8>, FetchError> {
        let url = allowed.check(url)?;
        let own = self.of(source);
        let _permit = own.permit().await?;
        self.get.get(&url).await
    }

    /// The document at `url`, from memory where it was fetched before.
    pub async fn kept(&self, source: &SourceName, url: &str, allowed: Allowed<'_>) -> Fetched {
        let url = allowed.check(url)?;
        let own = self.of(source);
        if let Some(found) = own.lock().find(url.as_str())? {
            return found;
        }
        let _permit = own.permit().await?;
        // Others may have fetched it while this one waited.
        if let Some(found) = own.lock().find_only(url.as_str()) {
            return found;
        }
        let result = self.get.get(&url).await.map(Arc::new);
        own.lock().others.keep(url.as_str(), (Instant::now(), result.clone()));
        result
    }

    /// To be called once the document at `url` has verified a request: it is kept from then on.
    pub fn prove(&self, source: &SourceName, url: &str) {
        let Ok(url) = Url::parse(url) else { return };
        let own = self.of(source);
        let mut kept = own.lock();
        if let Some(found) = kept.others.0.remove(url.as_str()) {
            kept.proven.keep(url.as_str(), found);
        }
    }

    fn of(&self, source: &SourceName) -> Arc<OfSource> {
        let mut all = self.sources.lock().expect("nothing panics while it holds this lock");
        all.entry(source.clone()).or_insert_with(|| Arc::new(OfSource::new())).clone()
    }
}

impl OfSource {
    fn new() -> Self {
        Self { kept: Mutex::default(), at_once: Semaphore::new(AT_ONCE) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().expect("nothing panics while it holds this lock")
    }

    async fn permit(&self) -> Result<SemaphorePermit<'_>, FetchError> {
        let permit = tokio::time::timeout(WITHIN, self.at_once.acquire()).await;
        Ok(permit.map_err(|_| FetchError::TooMany)?.expect("never closed"))
    }
}

impl Kept {
    fn find_only(&self, url: &str) -> Option<Fetched> {
        self.proven.find(url).or_else(|| self.others.find(url))
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
}

impl Addresses {
    fn find(&self, url: &str) -> Option<Fetched> {
        let (at, result) = self.0.get(url)?;
        let limit = if result.is_ok() { KEPT } else { LEFT_ALONE };
        (at.elapsed() < limit).then(|| result.clone())
    }

    fn keep(&mut self, url: &str, found: (Instant, Fetched)) {
        if self.0.len() >= CACHED_MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, (at, _))| *at).map(|(url, _)| url.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert(url.to_owned(), found);
    }
}

impl<'a> Allowed<'a> {
    pub fn certificates(rule: &'a CertificateRule) -> Self {
        Self { hosts: &rule.hosts, path: rule.path.as_ref(), query: false }
    }

    pub fn confirmations(rule: &'a FetchRule) -> Self {
        Self { hosts: &rule.hosts, path: rule.path.as_ref(), query: true }
    }

    /// The address, where it is one of these.
    fn check(self, text: &str) -> Result<Url, FetchError> {
        let refused = || FetchError::NotAllowed { url: text.chars().take(200).collect() };
        let url = Url::parse(text).map_err(|_| refused())?;
        let is_plain =
            url.scheme() == "https" && url.port().is_none() && url.username().is_empty() && url.password().is_none();
        let is_plain = is_plain && url.fragment().is_none();
        let is_path = self.path.is_none_or(|path| path.matches(url.path())) && (self.query || url.query().is_none());
        let host = url.host_str().filter(|_| is_plain && is_path).ok_or_else(refused)?;
        let is_one = |excluding: bool| {
            let patterns = self.hosts.iter().map(|p| p.strip_prefix('!').map_or((false, p.as_str()), |p| (true, p)));
            patterns.into_iter().any(|(excludes, pattern)| excludes == excluding && is_host(pattern, host))
        };
        if is_one(false) && !is_one(true) { Ok(url) } else { Err(refused()) }
    }
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

    use seriatim_schemas::preset::Preset;

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    #[async_trait]
    impl Get for Counted {
        async fn get(&self, url: &Url) -> Result<Vec<u8>, FetchError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            if url.path() == "/none.pem" {
                return Err(FetchError::Failed { url: url.to_string(), reason: "status 404".into() });
            }
            Ok(url.path().as_bytes().to_vec())
        }
    }

    fn certificates(preset: &str) -> CertificateRule {
        let verify = Preset::named(preset).expect("a preset").declare.verify.expect("verifies");
        verify.0[0].certificate.clone().expect("fetched")
    }

    #[test]
    fn only_declared_hosts_over_https() {
        let sns = certificates("aws_sns");
        let allowed = Allowed::certificates(&sns);
        for good in [
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-f3ecfb72.pem",
            "https://sns.cn-north-1.amazonaws.com.cn/c.pem",
            "https://sns.us-gov-west-1.amazonaws.com/c.pem",
        ] {
            assert!(allowed.check(good).is_ok(), "{good}");
        }
        for bad in [
            "http://sns.eu-west-1.amazonaws.com/c.pem",
            "https://sns.eu-west-1.amazonaws.com.evil.example/c.pem",
            "https://evil.example/sns.eu-west-1.amazonaws.com.pem",
            "https://sns.a-b.c.amazonaws.com/c.pem",
            "https://sns..amazonaws.com/c.pem",
            "https://user@sns.eu-west-1.amazonaws.com/c.pem",
            "https://sns.eu-west-1.amazonaws.com@evil.example/c.pem",
            "https://sns.eu-west-1.amazonaws.com:8443/c.pem",
            "https://snsxeu-west-1.amazonaws.com/c.pem",
            // Buckets that are called sns.
            "https://sns.s3.amazonaws.com/c.pem",
            "https://sns.s3-us-west-2.amazonaws.com/c.pem",
            "https://sns.S3-Accelerate.amazonaws.com/c.pem",
            "https://sns.s3-1.amazonaws.com.cn/c.pem",
            // What is no certificate.
            "https://sns.eu-west-1.amazonaws.com/c",
            "https://sns.eu-west-1.amazonaws.com/c.pem?x",
            "https://sns.eu-west-1.amazonaws.com/?.pem",
            "https://127.0.0.1/c.pem",
            "file:///etc/passwd",
            "",
        ] {
            assert!(allowed.check(bad).is_err(), "{bad}");
        }
        let paypal = certificates("paypal");
        let allowed = |url: &str| Allowed::certificates(&paypal).check(url).is_ok();
        assert!(allowed("https://api.sandbox.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77"));
        assert!(!allowed("https://www.paypal.com/v1/notifications/certs/CERT-1"));
        assert!(!allowed("https://api.paypal.com/v1/notifications/certs/../../other"));
    }

    fn named(name: &str) -> SourceName {
        ("t".to_owned(), name.to_owned())
    }

    fn url(path: impl std::fmt::Display) -> String {
        format!("https://sns.us-east-1.amazonaws.com/{path}.pem")
    }

    #[tokio::test]
    async fn what_was_fetched_is_kept_and_failures_are_left_alone() {
        let get = Arc::new(Counted::default());
        let fetcher = Fetcher::new(get.clone());
        let sns = certificates("aws_sns");
        let allowed = Allowed::certificates(&sns);
        let (own, other) = (named("own"), named("other"));
        for _ in 0..3 {
            let found = fetcher.kept(&own, &url("a"), allowed).await.map(|b| b.to_vec());
            assert_eq!(found, Ok(b"/a.pem".to_vec()));
            assert!(fetcher.kept(&own, &url("none"), allowed).await.is_err());
        }
        assert_eq!(get.0.load(Ordering::SeqCst), 2);
        fetcher.prove(&own, &url("a"));
        let mut last = Ok(Arc::default());
        for i in 0..PER_MINUTE {
            last = fetcher.kept(&own, &url(i), allowed).await;
        }
        assert_eq!(last, Err(FetchError::TooMany));
        assert!(fetcher.kept(&own, &url("a"), allowed).await.is_ok(), "what has verified something stays");
        assert_eq!(fetcher.kept(&own, &url("b"), allowed).await, Err(FetchError::TooMany));
        assert!(fetcher.kept(&other, &url("b"), allowed).await.is_ok(), "each source has a budget of its own");
    }

    #[test]
    fn a_bounded_number_of_addresses_is_kept() {
        let mut kept = Kept::default();
        kept.proven.keep("proven", (Instant::now(), Ok(Arc::default())));
        for n in 0..CACHED_MAX * 2 {
            kept.others.keep(&n.to_string(), (Instant::now(), Err(FetchError::TooMany)));
        }
        assert_eq!(kept.others.0.len(), CACHED_MAX);
        assert!(kept.find_only("proven").is_some() && kept.find_only("0").is_none());
    }

    #[tokio::test]
    async fn the_real_client_takes_no_plain_http() {
        let client = Https::new().expect("a client");
        let url = Url::parse("http://127.0.0.1:1/").expect("a URL");
        assert!(client.get(&url).await.is_err());
    }
}
