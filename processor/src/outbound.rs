//! Where requests of ours may go. A tenant writes the address of a webhook, but we send the request, from inside of
//! our network: without a guard a tenant could reach cloud metadata, the store or another tenant through us. So only
//! public addresses are permitted, and others where an operator allowed their network.
//!
//! An address is checked at one of two places, since a host is written in one of two ways:
//!
//! - [`Guard::check_url`] checks a host that is an IP address, in every spelling: the client does not resolve it
//! - [`Resolver`] checks what a name resolves to, and hands only permitted addresses to the connection. Nothing is
//!   resolved a second time, so a name that changes its answer (DNS rebinding) gains nothing
//!
//! A redirect would be a URL that nobody checked: it is never followed. A proxy would resolve by itself: none is used.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Connections to one host that are kept for the next request.
const IDLE_PER_HOST_MAX: usize = 16;

/// What is not public, though it is IPv4, or within [`UNICAST_V6`]: the special-purpose registries of IANA
/// (<https://www.iana.org/assignments/iana-ipv4-special-registry>,
/// <https://www.iana.org/assignments/iana-ipv6-special-registry>). Their few anycast services inside of 192.0.0.0/24
/// and 2001::/23 are no receivers of webhooks, and are refused with the rest.
const NOT_PUBLIC: &[Network] = &[
    v4([0, 0, 0, 0], 8),         // this network, RFC 791
    v4([10, 0, 0, 0], 8),        // private use, RFC 1918
    v4([100, 64, 0, 0], 10),     // shared by carriers, RFC 6598; some clouds' metadata
    v4([127, 0, 0, 0], 8),       // loopback, RFC 1122
    v4([168, 63, 129, 16], 32),  // Azure's host agent: answers every virtual machine, though no registry has it
    v4([169, 254, 0, 0], 16),    // link-local, RFC 3927; most clouds' metadata
    v4([172, 16, 0, 0], 12),     // private use, RFC 1918
    v4([192, 0, 0, 0], 24),      // protocol assignments, RFC 6890
    v4([192, 0, 2, 0], 24),      // documentation, RFC 5737
    v4([192, 88, 99, 0], 24),    // 6to4 relays, RFC 7526
    v4([192, 168, 0, 0], 16),    // private use, RFC 1918
    v4([198, 18, 0, 0], 15),     // benchmarks, RFC 2544
    v4([198, 51, 100, 0], 24),   // documentation, RFC 5737
    v4([203, 0, 113, 0], 24),    // documentation, RFC 5737
    v4([224, 0, 0, 0], 4),       // multicast, RFC 5771
    v4([240, 0, 0, 0], 4),       // reserved, RFC 1112; broadcast, RFC 919
    v6([0x2001, 0, 0], 23),      // protocol assignments, RFC 2928; Teredo, RFC 4380
    v6([0x2001, 0x0db8, 0], 32), // documentation, RFC 3849
    v6([0x2002, 0, 0], 16),      // 6to4: goes to the IPv4 address inside of it, RFC 3056
    v6([0x3fff, 0, 0], 20),      // documentation, RFC 9637
];

/// Global unicast, RFC 4291. Outside of it are loopback, 64:ff9b:1::/48 (RFC 8215), 100::/64 (RFC 6666), 5f00::/16
/// (RFC 9602), fc00::/7 (RFC 4193), fe80::/10 (RFC 4291), fec0::/10 (RFC 3879), ff00::/8 (RFC 4291).
const UNICAST_V6: Network = v6([0x2000, 0, 0], 3);

/// Why a request of ours may not go somewhere. Names no more of a URL than its scheme or its host, since the rest
/// may be secret; nor which address a name resolved to, since a tenant could map a private network by it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OutboundError {
    #[error("{0:?} is no network: write an address and its prefix length, such as 10.0.0.0/8, or a single address")]
    Network(String),
    #[error("{given:?} has bits after its prefix length: write {network}, or the single address without a length")]
    HostBits { given: String, network: Network },
    #[error("the URL cannot be read ({0}): write it as https://host/path")]
    Url(String),
    #[error("a URL with {0}: is not sent to: write https: or http:")]
    Scheme(String),
    #[error("the URL has no host: write it as https://host/path")]
    Host,
    #[error("the URL has a user name or a password: put credentials into a header")]
    UserInfo,
    #[error("{0} is no public address: use one, or allow its network")]
    Address(IpAddr),
    #[error("{0:?} resolves to no public address: use a host that does, or allow its network")]
    NoAddress(String),
    #[error("{host:?} cannot be resolved: {reason}")]
    Lookup { host: String, reason: String },
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

/// An IP network, such as 10.0.0.0/8, ::1/128, or a single address. All bits after the prefix are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

const fn v4(base: [u8; 4], prefix: u8) -> Network {
    Network { base: IpAddr::V4(Ipv4Addr::from_octets(base)), prefix }
}

const fn v6([first, second, third]: [u16; 3], prefix: u8) -> Network {
    Network { base: IpAddr::V6(Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0)), prefix }
}

impl Network {
    /// Whether `ip` is in this network. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.base, ip.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => shift_v4(base, self.prefix) == shift_v4(ip, self.prefix),
            (IpAddr::V6(base), IpAddr::V6(ip)) => shift_v6(base, self.prefix) == shift_v6(ip, self.prefix),
            _ => false,
        }
    }

    /// The network of this length that `ip` is in; none if the length is more than an address has bits.
    fn around(ip: IpAddr, prefix: u8) -> Option<Self> {
        let spare = bits(ip).checked_sub(prefix)?.into();
        let base = match ip {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & u32::MAX.checked_shl(spare).unwrap_or(0)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & u128::MAX.checked_shl(spare).unwrap_or(0)).into(),
        };
        Some(Self { base, prefix })
    }

    /// An IPv4-mapped network as the IPv4 network that it means. No length of IPv4 is 96 or more.
    fn canonical(self) -> Self {
        match (self.base.to_canonical(), self.prefix.checked_sub(96)) {
            (base @ IpAddr::V4(_), Some(prefix)) => Self { base, prefix },
            _ => self,
        }
    }
}

/// Bits of an address of this family.
fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// The first `prefix` bits. A shift by all bits leaves none of them.
fn shift_v4(ip: Ipv4Addr, prefix: u8) -> u32 {
    ip.to_bits().checked_shr(32 - u32::from(prefix)).unwrap_or(0)
}

fn shift_v6(ip: Ipv6Addr, prefix: u8) -> u128 {
    ip.to_bits().checked_shr(128 - u32::from(prefix)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = OutboundError;

    fn from_str(text: &str) -> Result<Self, OutboundError> {
        let (ip, prefix) = split(text).ok_or_else(|| OutboundError::Network(text.to_owned()))?;
        let network = Self::around(ip, prefix).ok_or_else(|| OutboundError::Network(text.to_owned()))?;
        if network.base != ip {
            return Err(OutboundError::HostBits { given: text.to_owned(), network });
        }
        Ok(network.canonical())
    }
}

/// Address and prefix length. A length has no sign and no leading zero.
fn split(text: &str) -> Option<(IpAddr, u8)> {
    let Some((ip, prefix)) = text.split_once('/') else {
        return text.parse().ok().map(|ip| (ip, bits(ip)));
    };
    let length: u8 = prefix.parse().ok()?;
    (length.to_string() == prefix).then_some((ip.parse().ok()?, length))
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl TryFrom<String> for Network {
    type Error = OutboundError;

    fn try_from(text: String) -> Result<Self, OutboundError> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

impl JsonSchema for Network {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "An IP network, such as 10.0.0.0/8 or fd00::/8, or a single address",
            "pattern": "^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"
        })
    }
}

/// Whether `ip` is a unicast address that is reachable from everywhere, by the registries of IANA.
pub fn is_public(ip: IpAddr) -> bool {
    let ip = embedded_v4(ip).map_or(ip, IpAddr::V4);
    let unicast = ip.is_ipv4() || UNICAST_V6.contains(ip);
    unicast && !NOT_PUBLIC.iter().any(|network| network.contains(ip))
}

/// The IPv4 address that a packet to this IPv6 address may end at: IPv4-compatible and IPv4-mapped (RFC 4291), NAT64
/// (RFC 6052). `::` and `::1` read as 0.0.0.0 and 0.0.0.1, which are not public either.
fn embedded_v4(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

/// Decides where requests may go: to public addresses, and to networks that an operator allowed.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    allow: Arc<[Network]>,
}

impl Guard {
    pub fn new(allow: Vec<Network>) -> Self {
        Self { allow: allow.into() }
    }

    pub fn permits(&self, ip: IpAddr) -> bool {
        is_public(ip) || self.allow.iter().any(|network| network.contains(ip))
    }

    /// The URL, if a request may be sent to it. A host that is a name is checked when it is resolved.
    pub fn check_url(&self, text: &str) -> Result<Url, OutboundError> {
        let url = Url::parse(text).map_err(|error| OutboundError::Url(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(OutboundError::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(OutboundError::UserInfo);
        }
        match literal(url.host_str().ok_or(OutboundError::Host)?) {
            Some(ip) if !self.permits(ip) => Err(OutboundError::Address(ip)),
            _ => Ok(url),
        }
    }

    /// A client for URLs of [`Guard::check_url`], and only for them: it does not resolve an IP address, so nothing
    /// here would check it.
    pub fn client(&self, timeout: Duration, connect_timeout: Duration) -> Result<Client, OutboundError> {
        self.client_with(system_lookup(), timeout, connect_timeout)
    }

    fn client_with(&self, lookup: Lookup, timeout: Duration, connect: Duration) -> Result<Client, OutboundError> {
        Client::builder()
            .user_agent(concat!("seriatim/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Resolver { guard: self.clone(), lookup })
            .redirect(Policy::none())
            .no_proxy()
            .timeout(timeout)
            .connect_timeout(connect)
            .tcp_nodelay(true)
            .pool_max_idle_per_host(IDLE_PER_HOST_MAX)
            .build()
            .map_err(|error| OutboundError::Client(root_cause(&error)))
    }

    /// Those of a name's addresses that are permitted; an error if there are none.
    fn keep_permitted(&self, host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, OutboundError> {
        let kept: Vec<_> = found.into_iter().filter(|address| self.permits(address.ip())).collect();
        if kept.is_empty() { Err(OutboundError::NoAddress(host.to_owned())) } else { Ok(kept) }
    }
}

/// The address that a URL's host is, if it is one. The parser of the URL has already made one spelling out of all.
fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

/// The end of the chain of sources, where the reason is.
fn root_cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}

/// How a name becomes addresses: the system's way, or a test's.
type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

fn system_lookup() -> Lookup {
    Arc::new(|host| async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) }.boxed())
}

/// Resolves a name to permitted addresses only. The connection goes to one of them, without a further lookup.
pub struct Resolver {
    guard: Guard,
    lookup: Lookup,
}

impl Resolver {
    /// Resolves as the system does.
    pub fn new(guard: Guard) -> Self {
        Self { guard, lookup: system_lookup() }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, host) = (self.guard.clone(), name.as_str().to_owned());
        let found = (self.lookup)(host.clone());
        let kept = async move {
            match found.await {
                Ok(found) => guard.keep_permitted(&host, found),
                Err(error) => Err(OutboundError::Lookup { host, reason: error.to_string() }),
            }
        };
        Box::pin(kept.map(|kept| Ok(Box::new(kept?.into_iter()) as Addrs)))
    }
}

#[cfg(test)]
mod tests;
