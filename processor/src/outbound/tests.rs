use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::header::LOCATION;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Set in a test that was started by a test.
const CHILD: &str = "SERIATIM_TEST_OUTBOUND_CHILD";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn network(text: &str) -> Network {
    text.parse().expect("a network")
}

fn guard(allow: &[&str]) -> Guard {
    Guard::new(allow.iter().map(|text| network(text)).collect())
}

/// The n-th lookup gives the n-th answer, later ones the last; counted.
fn answers(lists: &'static [&'static [&'static str]]) -> (Lookup, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let lookup: Lookup = Arc::new(move |_| {
        let list = lists[counted.fetch_add(1, Ordering::SeqCst).min(lists.len() - 1)];
        let found = list.iter().map(|text| SocketAddr::new(ip(text), 0)).collect();
        async move { Ok(found) }.boxed()
    });
    (lookup, count)
}

async fn resolve(resolver: &Resolver) -> Result<Vec<String>, OutboundError> {
    match resolver.resolve("hooks.example".parse().expect("a name")).await {
        Ok(addresses) => Ok(addresses.map(|address| address.ip().to_string()).collect()),
        Err(error) => Err(error.downcast_ref::<OutboundError>().expect("an error of ours").clone()),
    }
}

/// The guard's own error within the client's.
fn refusal(error: &reqwest::Error) -> Option<&OutboundError> {
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// A server on 127.0.0.1 that gives every request the same answer, and keeps the heads of requests.
struct Server {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = heads.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                exchange(stream, &answer, &kept).await;
            }
        });
        Self { port, heads }
    }

    fn url(&self, host: &str) -> String {
        format!("http://{host}:{}/first", self.port)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("no panic").clone()
    }
}

/// A head is kept before it is answered, so that whoever has the answer finds it.
async fn exchange(mut stream: TcpStream, answer: &str, heads: &Mutex<Vec<String>>) {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => head.extend_from_slice(&buffer[..count]),
        }
    }
    heads.lock().expect("no panic").push(String::from_utf8_lossy(&head).to_ascii_lowercase());
    let _ = stream.write_all(answer.as_bytes()).await;
}

#[test]
fn networks_are_read_and_written() {
    for (text, written) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("::1/128", "::1/128"),
        ("FD00:0::/8", "fd00::/8"),
        ("127.0.0.1", "127.0.0.1/32"),
        ("fd00:ec2::254", "fd00:ec2::254/128"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:10.1.2.3", "10.1.2.3/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
    ] {
        assert_eq!(network(text).to_string(), written, "{text}");
        assert_eq!(network(written), network(text), "{text}");
    }
}

#[test]
fn what_is_no_network_is_refused_by_name_and_with_a_remedy() {
    for text in [
        "",
        "/",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/33",
        "::/129",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.0/08",
        "10.0.0.0/8/8",
        "10.0.0.0/256",
        "10.0.0.0/255.0.0.0",
        " 10.0.0.0/8",
        "10.0.0.0 /8",
        "10/8",
        "10.0.0/24",
        "0x0a.0.0.0/8",
        "010.0.0.0/8",
        "[::1]",
        "fe80::1%eth0",
        "localhost",
        "*",
    ] {
        let error = text.parse::<Network>().expect_err(text);
        assert_eq!(error, OutboundError::Network(text.to_owned()));
        assert!(error.to_string().starts_with(&format!("{text:?} is no network: write ")), "{error}");
    }
}

#[test]
fn bits_after_the_prefix_are_refused_with_the_network_that_is_meant() {
    for (text, meant) in [
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.0.0.1/31", "10.0.0.0/31"),
        ("1.2.3.5/0", "0.0.0.0/0"),
        ("fd00::1/8", "fd00::/8"),
        ("::1/0", "::/0"),
        ("::ffff:10.0.0.1/104", "::ffff:10.0.0.0/104"),
    ] {
        let error = text.parse::<Network>().expect_err(text).to_string();
        assert!(error.starts_with(&format!("{text:?} has bits after its prefix length: write {meant},")), "{error}");
    }
}

#[test]
fn a_network_contains_its_addresses_and_no_others() {
    for (text, inside, outside) in [
        ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.0.0.0"),
        ("172.16.0.0/12", "172.31.255.255", "172.32.0.0"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
        ("0.0.0.0/0", "255.255.255.255", "::1"),
        ("::/0", "ffff::", "::ffff:127.0.0.1"),
        ("::1", "::1", "::2"),
        ("fd00::/8", "fdff::1", "fe00::"),
        ("2001:db8::/33", "2001:db8:7fff::", "2001:db8:8000::"),
        ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.0"),
    ] {
        assert!(network(text).contains(ip(inside)), "{text} {inside}");
        assert!(!network(text).contains(ip(outside)), "{text} {outside}");
    }
}

#[test]
fn a_network_is_a_string_in_files_and_in_their_schema() {
    let networks: Vec<Network> = serde_json::from_str(r#"["10.0.0.0/8", "::1"]"#).expect("networks");
    assert_eq!(serde_json::to_string(&networks).expect("JSON"), r#"["10.0.0.0/8","::1/128"]"#);
    let error = serde_json::from_str::<Network>("\"10.1.2.3/8\"").expect_err("bits after the prefix");
    assert!(error.to_string().contains("write 10.0.0.0/8"), "{error}");
    let schema = schemars::schema_for!(Network);
    assert_eq!(schema.get("type"), Some(&"string".into()));
}

#[test]
fn the_table_of_networks_is_well_formed() {
    for listed in NOT_PUBLIC.iter().chain([&UNICAST_V6]) {
        assert_eq!(listed.to_string().parse(), Ok(*listed));
    }
}

/// First and last address of each network that is not public, and the public ones beside them.
#[test]
fn the_bounds_of_what_is_public_are_those_of_the_registries() {
    for (before, first, last, after) in [
        ("", "0.0.0.0", "0.255.255.255", "1.0.0.0"),
        ("9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"),
        ("100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"),
        ("126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"),
        ("168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17"),
        ("169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"),
        ("172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"),
        ("191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"),
        ("192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"),
        ("192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"),
        ("192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"),
        ("198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"),
        ("198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"),
        ("203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"),
        ("223.255.255.255", "224.0.0.0", "239.255.255.255", ""),
        ("", "240.0.0.0", "255.255.255.255", ""),
        ("", "1fff:ffff::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2000::"),
        ("2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:200::"),
        ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8::", "2001:db8:ffff::", "2001:db9::"),
        ("2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2002::", "2002:ffff::ffff", "2003::"),
        ("3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff::", "3fff:fff:ffff::", "3fff:1000::"),
        ("3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", ""),
    ] {
        for private in [first, last] {
            assert!(!is_public(ip(private)), "{private}");
        }
        for public in [before, after].into_iter().filter(|text| !text.is_empty()) {
            assert!(is_public(ip(public)), "{public}");
        }
    }
}

#[test]
fn what_carries_an_ipv4_address_is_decided_by_it() {
    for private in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "255.255.255.255", "100.100.100.200"] {
        for around in ["::", "::ffff:", "64:ff9b::"] {
            assert!(!is_public(ip(&format!("{around}{private}"))), "{around}{private}");
        }
    }
    for around in ["::", "::ffff:", "64:ff9b::"] {
        assert!(is_public(ip(&format!("{around}8.8.8.8"))), "{around}8.8.8.8");
    }
    // 6to4, Teredo, NAT64 of a network's own, and IPv4-translated addresses, whatever they carry.
    for other in
        ["2002:808:808::1", "2001:0:808:808::1", "64:ff9b:1::8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b::1:8.8.8.8"]
    {
        assert!(!is_public(ip(other)), "{other}");
    }
}

#[test]
fn special_ipv6_addresses_are_not_public() {
    for text in [
        "::",
        "::1",
        "100::1",
        "100:0:0:1::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ] {
        assert!(!is_public(ip(text)), "{text}");
    }
}

#[test]
fn an_allowed_network_is_permitted_and_its_neighbour_is_not() {
    let guard = guard(&["10.1.0.0/16", "fd00::/16"]);
    for text in ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "8.8.8.8", "2606:4700::1111"] {
        assert!(guard.permits(ip(text)), "{text}");
    }
    // An address that reaches an allowed one by a translator must be allowed itself.
    for text in ["10.2.0.1", "::ffff:10.2.0.1", "fd01::1", "127.0.0.1", "64:ff9b::10.1.2.3", "2002:a01:203::1"] {
        assert!(!guard.permits(ip(text)), "{text}");
    }
    assert!(!Guard::default().permits(ip("10.1.2.3")));
}

/// URLs that the client would send to an address that is not public, and what that address is.
const PRIVATE: &[(&str, &str)] = &[
    ("http://127.0.0.1/", "127.0.0.1"),
    ("https://127.0.0.1:8443/hook?a=b#c", "127.0.0.1"),
    ("HTTP://127.0.0.1", "127.0.0.1"),
    ("http:127.0.0.1", "127.0.0.1"),
    ("http:/127.0.0.1", "127.0.0.1"),
    ("http:////127.0.0.1", "127.0.0.1"),
    ("http:\\\\127.0.0.1\\", "127.0.0.1"),
    ("http://127.0.0.1\\@8.8.8.8/", "127.0.0.1"),
    ("  http://127.0.0.1/", "127.0.0.1"),
    ("ht\ntp://127.\t0.0.1/", "127.0.0.1"),
    ("http://@127.0.0.1/", "127.0.0.1"),
    ("http://127.0.0.1./", "127.0.0.1"),
    ("http://127.1/", "127.0.0.1"),
    ("http://127.0.1/", "127.0.0.1"),
    ("http://2130706433/", "127.0.0.1"),
    ("http://2130706433./", "127.0.0.1"),
    ("http://017700000001/", "127.0.0.1"),
    ("http://0x7f000001/", "127.0.0.1"),
    ("http://0X7F000001/", "127.0.0.1"),
    ("http://0x7f.1/", "127.0.0.1"),
    ("http://0x7f.0x0.0x0.0x1/", "127.0.0.1"),
    ("http://0177.0.0.1/", "127.0.0.1"),
    ("http://0177.0.0.01/", "127.0.0.1"),
    ("http://000000177.0x.0.1/", "127.0.0.1"),
    ("http://127.0x0.00.1/", "127.0.0.1"),
    ("http://%31%32%37.0.0.1/", "127.0.0.1"),
    ("http://127%2e0%2E0%2e1/", "127.0.0.1"),
    ("http://0%78%37f.1/", "127.0.0.1"),
    ("http://\u{ff11}\u{ff12}\u{ff17}.0.0.1/", "127.0.0.1"),
    ("http://127\u{ff0e}0.0.1/", "127.0.0.1"),
    ("http://127\u{3002}0\u{3002}0\u{3002}1/", "127.0.0.1"),
    ("http://\u{2460}\u{2461}\u{2466}.\u{24ea}.\u{24ea}.\u{2460}/", "127.0.0.1"),
    ("http://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1/", "127.0.0.1"),
    ("http://127.0.\u{ad}0.1/", "127.0.0.1"),
    ("http://0/", "0.0.0.0"),
    ("http://0x/", "0.0.0.0"),
    ("http://0.0.0.0:80/", "0.0.0.0"),
    ("http://10.1/", "10.0.0.1"),
    ("http://012.0.0.1/", "10.0.0.1"),
    ("http://167772161/", "10.0.0.1"),
    ("http://172.16.1/", "172.16.0.1"),
    ("http://0xac.0x10.1/", "172.16.0.1"),
    ("http://192.168.257/", "192.168.1.1"),
    ("http://0xc0a80101/", "192.168.1.1"),
    ("http://0300.0250.1.1/", "192.168.1.1"),
    ("http://169.254.169.254/latest/meta-data/", "169.254.169.254"),
    ("http://2852039166/", "169.254.169.254"),
    ("http://0251.0376.0251.0376/", "169.254.169.254"),
    ("http://0xa9fea9fe/", "169.254.169.254"),
    ("http://0xA9.0376.43518/", "169.254.169.254"),
    ("http://169.254.43518/", "169.254.169.254"),
    ("http://100.100.100.200/", "100.100.100.200"),
    ("http://192.0.0.192/", "192.0.0.192"),
    ("http://168.63.129.16/", "168.63.129.16"),
    ("http://4294967295/", "255.255.255.255"),
    ("http://224.0.0.1/", "224.0.0.1"),
    ("http://[::]/", "::"),
    ("http://[::1]:8080/", "::1"),
    ("http://[0:0:0:0:0:0:0:1]/", "::1"),
    ("http://[0000::0001]/", "::1"),
    ("http://[::127.0.0.1]/", "::7f00:1"),
    ("http://[::7f00:1]/", "::7f00:1"),
    ("http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1"),
    ("http://[::ffff:7f00:1]/", "::ffff:127.0.0.1"),
    ("http://[::FFFF:7F00:0001]/", "::ffff:127.0.0.1"),
    ("http://[0:0:0:0:0:ffff:169.254.169.254]/", "::ffff:169.254.169.254"),
    ("http://[::ffff:a9fe:a9fe]/", "::ffff:169.254.169.254"),
    ("http://[64:ff9b::169.254.169.254]/", "64:ff9b::a9fe:a9fe"),
    ("http://[64:ff9b::a00:1]/", "64:ff9b::a00:1"),
    ("http://[64:ff9b:1::1]/", "64:ff9b:1::1"),
    ("http://[2002:7f00:1::]/", "2002:7f00:1::"),
    ("http://[2002:a9fe:a9fe::1]/", "2002:a9fe:a9fe::1"),
    ("http://[2001:0:7f00:1::]/", "2001:0:7f00:1::"),
    ("http://[2001:db8::1]/", "2001:db8::1"),
    ("http://[fd00:ec2::254]/", "fd00:ec2::254"),
    ("http://[FC00::1]/", "fc00::1"),
    ("http://[fe80::1]/", "fe80::1"),
    ("http://[fec0::1]/", "fec0::1"),
    ("http://[ff02::1]/", "ff02::1"),
    ("http://[100::1]/", "100::1"),
    ("http://[5f00::1]/", "5f00::1"),
];

#[test]
fn private_addresses_are_refused_in_every_spelling() {
    for (url, address) in PRIVATE {
        assert_eq!(Guard::default().check_url(url), Err(OutboundError::Address(ip(address))), "{url:?}");
    }
}

/// The table tests the check of addresses only if each of its URLs passes all other checks.
#[test]
fn every_private_spelling_is_accepted_once_its_network_is_allowed() {
    for (url, address) in PRIVATE {
        let checked = guard(&[address]).check_url(url).expect(url);
        assert_eq!(literal(checked.host_str().expect("a host")), Some(ip(address)), "{url:?}");
    }
}

#[test]
fn what_is_no_url_is_refused() {
    for url in [
        "",
        "http://",
        "https:///",
        "//127.0.0.1/",
        "/hook",
        "hooks.example/hook",
        "127.0.0.1",
        "http://[fe80::1%eth0]/",
        "http://[fe80::1%25eth0]/",
        "http://[::1",
        "http://::1/",
        "http://[127.0.0.1]/",
        "http://[::ffff:0x7f.0.0.1]/",
        "http://127.0.0.256/",
        "http://127.0.0.0.1/",
        "http://4294967296/",
        "http://0xffffffff1/",
        "http://0800.0.0.1/",
        "http://127.0.0.1%00/",
        "http://127.0.0.1:65536/",
        "http://127.0.0.1 /",
        "http://a b/",
        "http://127.0.0.1%25eth0/",
    ] {
        let error = Guard::default().check_url(url).expect_err(url);
        assert!(matches!(error, OutboundError::Url(_)), "{url:?}: {error}");
        assert!(error.to_string().ends_with("): write it as https://host/path"), "{error}");
    }
}

#[test]
fn only_http_and_https_are_sent_to() {
    for url in [
        "file:///etc/passwd",
        "ftp://8.8.8.8/",
        "gopher://8.8.8.8:6379/_FLUSHALL",
        "ws://8.8.8.8/",
        "unix:/run/docker.sock",
        "data:,x",
        "javascript:alert(1)",
        "localhost:80/",
        "httpss://8.8.8.8/",
    ] {
        let error = Guard::default().check_url(url).expect_err(url);
        assert!(matches!(&error, OutboundError::Scheme(scheme) if url.starts_with(scheme)), "{url}: {error}");
    }
}

#[test]
fn a_user_name_or_a_password_is_refused() {
    for url in [
        "http://8.8.8.8@127.0.0.1/",
        "http://hooks.example@127.0.0.1/",
        "http://hooks.example:80@127.0.0.1/",
        "http://127.0.0.1@hooks.example/",
        "http://name:password@hooks.example/",
        "http://:password@hooks.example/",
        "http://a@b@127.0.0.1/",
        "http://hooks.example%2f@127.0.0.1/",
        "https://hooks.example&@127.0.0.1#@hooks.example/",
    ] {
        let error = Guard::default().check_url(url).expect_err(url);
        assert_eq!(error, OutboundError::UserInfo, "{url}");
    }
}

#[test]
fn public_addresses_and_names_are_accepted() {
    for (url, written) in [
        ("https://hooks.example/a?b=c", "https://hooks.example/a?b=c"),
        ("HTTPS://HOOKS.EXAMPLE:443", "https://hooks.example/"),
        ("https://hooks.example./", "https://hooks.example./"),
        ("https://b\u{fc}cher.example/", "https://xn--bcher-kva.example/"),
        ("https://127.0.0.1.nip.io/", "https://127.0.0.1.nip.io/"),
        ("https://hooks.example\\@127.0.0.1/", "https://hooks.example/@127.0.0.1/"),
        ("https://hooks.example#@127.0.0.1/", "https://hooks.example/#@127.0.0.1/"),
        ("https://hooks.example?@127.0.0.1/", "https://hooks.example/?@127.0.0.1/"),
        ("http://localhost:8080/", "http://localhost:8080/"),
        ("http://LOCALHOST./", "http://localhost./"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
        ("http://134744072/", "http://8.8.8.8/"),
        ("http://0x08.010.8.8/", "http://8.8.8.8/"),
        ("http://[::ffff:8.8.8.8]/", "http://[::ffff:808:808]/"),
        ("http://[64:ff9b::8.8.8.8]/", "http://[64:ff9b::808:808]/"),
        ("https://[2606:4700:4700::1111]:8443/", "https://[2606:4700:4700::1111]:8443/"),
    ] {
        let checked = Guard::default().check_url(url).map(String::from);
        assert_eq!(checked.as_deref(), Ok(written), "{url}");
    }
}

#[test]
fn errors_name_the_remedy_and_no_secret() {
    let guard = Guard::default();
    for (url, message) in [
        ("http://2130706433/?key=secret", "127.0.0.1 is no public address: use one, or allow its network"),
        ("ftp://hooks.example/secret", "a URL with ftp: is not sent to: write https: or http:"),
        ("http://a:secret@b/", "the URL has a user name or a password: put credentials into a header"),
        ("http://[secret]/", "the URL cannot be read (invalid IPv6 address): write it as https://host/path"),
    ] {
        assert_eq!(guard.check_url(url).expect_err(url).to_string(), message);
    }
}

#[tokio::test]
async fn of_mixed_answers_only_the_permitted_are_used() {
    const MIXED: &[&str] = &[
        "127.0.0.1",
        "8.8.8.8",
        "::ffff:10.0.0.1",
        "10.0.0.1",
        "2606:4700::1111",
        "::1",
        "64:ff9b::10.0.0.1",
        "169.254.169.254",
    ];
    let (lookup, _) = answers(&[MIXED]);
    let public = Resolver { guard: Guard::default(), lookup: lookup.clone() };
    assert_eq!(resolve(&public).await, Ok(vec!["8.8.8.8".to_owned(), "2606:4700::1111".to_owned()]));
    let loopback = Resolver { guard: guard(&["127.0.0.0/8"]), lookup };
    let kept = vec!["127.0.0.1".to_owned(), "8.8.8.8".to_owned(), "2606:4700::1111".to_owned()];
    assert_eq!(resolve(&loopback).await, Ok(kept));
}

#[tokio::test]
async fn a_name_without_a_permitted_address_is_refused() {
    const PRIVATE_ONLY: &[&str] = &["10.0.0.1", "::1"];
    let (lookup, _) = answers(&[PRIVATE_ONLY, &[]]);
    let resolver = Resolver { guard: Guard::default(), lookup };
    for _ in 0..2 {
        let error = resolve(&resolver).await.expect_err("nothing is permitted");
        let message = "\"hooks.example\" resolves to no public address: use a host that does, or allow its network";
        assert_eq!(error.to_string(), message);
    }
}

#[tokio::test]
async fn a_lookup_that_fails_says_why() {
    let lookup: Lookup = Arc::new(|_| async { Err(io::Error::other("no name server")) }.boxed());
    let error = resolve(&Resolver { guard: Guard::default(), lookup }).await.expect_err("no answer");
    assert_eq!(error.to_string(), "\"hooks.example\" cannot be resolved: no name server");
}

#[tokio::test]
async fn a_name_that_turns_private_is_refused_by_the_resolver() {
    let (lookup, count) = answers(&[&["8.8.8.8"], &["127.0.0.1"]]);
    let resolver = Resolver { guard: Guard::default(), lookup };
    assert_eq!(resolve(&resolver).await, Ok(vec!["8.8.8.8".to_owned()]));
    assert_eq!(resolve(&resolver).await, Err(OutboundError::NoAddress("hooks.example".to_owned())));
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_name_that_turns_private_is_refused_by_the_client() {
    let server = Server::start(OK.to_owned()).await;
    let (lookup, count) = answers(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let guard = guard(&["127.0.0.1"]);
    let url = guard.check_url(&server.url("hooks.example")).expect("a URL");
    let client = guard.client_with(lookup, LONG, LONG).expect("a client");
    let answer = client.get(url.clone()).send().await.expect("the first answer is permitted");
    assert_eq!((answer.status().as_u16(), count.load(Ordering::SeqCst)), (200, 1), "one lookup for each connection");
    let error = client.get(url).send().await.expect_err("the second answer is not permitted");
    assert_eq!(refusal(&error), Some(&OutboundError::NoAddress("hooks.example".to_owned())));
    assert_eq!(server.heads().len(), 1);
}

#[tokio::test]
async fn a_name_of_a_private_address_is_refused_at_connect() {
    let server = Server::start(OK.to_owned()).await;
    let (lookup, _) = answers(&[&["127.0.0.1"]]);
    let open = guard(&["127.0.0.1"]).client_with(lookup.clone(), LONG, LONG).expect("a client");
    let closed = Guard::default().client_with(lookup, LONG, LONG).expect("a client");
    let url = Guard::default().check_url(&server.url("hooks.example")).expect("a URL");
    let error = closed.get(url.clone()).send().await.expect_err("nothing is permitted");
    assert_eq!(refusal(&error), Some(&OutboundError::NoAddress("hooks.example".to_owned())));
    assert_eq!(server.heads().len(), 0);
    assert!(open.get(url).send().await.is_ok(), "the server would have answered");
    assert_eq!(server.heads().len(), 1);
}

#[tokio::test]
async fn localhost_is_refused_by_the_lookup_of_the_system() {
    let server = Server::start(OK.to_owned()).await;
    let open = guard(&["127.0.0.0/8", "::1"]).client(LONG, LONG).expect("a client");
    let closed = Guard::default().client(LONG, LONG).expect("a client");
    for host in ["localhost", "LocalHost"] {
        let url = Guard::default().check_url(&server.url(host)).expect("a URL");
        let error = closed.get(url.clone()).send().await.expect_err("nothing is permitted");
        assert_eq!(refusal(&error), Some(&OutboundError::NoAddress("localhost".to_owned())));
        assert!(open.get(url).send().await.is_ok(), "the server would have answered");
    }
    assert_eq!(server.heads().len(), 2);
}

#[tokio::test]
async fn the_public_resolver_refuses_localhost_too() {
    let name = || "localhost".parse().expect("a name");
    assert!(Resolver::new(Guard::default()).resolve(name()).await.is_err());
    assert!(Resolver::new(guard(&["127.0.0.0/8", "::1"])).resolve(name()).await.is_ok());
}

#[tokio::test]
async fn a_redirect_is_returned_and_not_followed() {
    let guard = guard(&["127.0.0.1"]);
    let client = guard.client(LONG, LONG).expect("a client");
    for status in [301, 302, 303, 307, 308] {
        for target in ["http://169.254.169.254/latest/meta-data/", "/second"] {
            let answer = format!("HTTP/1.1 {status} Moved\r\nlocation: {target}\r\nconnection: close\r\n\r\n");
            let server = Server::start(answer).await;
            let url = guard.check_url(&server.url("127.0.0.1")).expect("a URL");
            let answer = client.get(url).send().await.expect("the redirect itself");
            assert_eq!(answer.status(), status);
            assert_eq!(answer.headers()[LOCATION], target);
            assert_eq!(server.heads().len(), 1, "{status} {target}");
        }
    }
}

#[tokio::test]
async fn requests_name_our_agent_and_the_host_of_the_url() {
    let server = Server::start(OK.to_owned()).await;
    let (lookup, _) = answers(&[&["127.0.0.1"]]);
    let client = guard(&["127.0.0.1"]).client_with(lookup, LONG, LONG).expect("a client");
    client.get(server.url("hooks.example")).send().await.expect("an answer");
    let head = server.heads().concat();
    assert!(head.contains(&format!("user-agent: seriatim/{}\r\n", env!("CARGO_PKG_VERSION"))), "{head}");
    assert!(head.contains(&format!("host: hooks.example:{}\r\n", server.port)), "{head}");
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let client = guard(&["127.0.0.1"]).client(SHORT, LONG).expect("a client");
    let error = tokio::time::timeout(LONG, client.get(url).send()).await.expect("in time").expect_err("no answer");
    assert!(error.is_timeout() && !error.is_connect(), "{error:?}");
}

#[tokio::test]
async fn a_lookup_that_does_not_end_is_given_up() {
    let lookup: Lookup = Arc::new(|_| futures::future::pending().boxed());
    let client = Guard::default().client_with(lookup, LONG * 2, SHORT).expect("a client");
    let sent = client.get("http://hooks.example/").send();
    let error = tokio::time::timeout(LONG, sent).await.expect("in time").expect_err("no address");
    assert!(error.is_timeout() && error.is_connect(), "{error:?}");
}

/// Runs itself in a process of its own, since a process cannot change its environment safely.
#[tokio::test]
async fn a_proxy_of_the_environment_is_not_used() {
    if std::env::var_os(CHILD).is_some() {
        return reach_a_server_directly().await;
    }
    let test = concat!(module_path!(), "::a_proxy_of_the_environment_is_not_used");
    let test = test.split_once("::").expect("a module").1;
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env_remove("NO_PROXY").env_remove("no_proxy");
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, "http://127.0.0.1:9");
    }
    let output = child.env_remove("REQUEST_METHOD").output().expect("a process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

async fn reach_a_server_directly() {
    let server = Server::start(OK.to_owned()).await;
    let plain = Client::builder().build().expect("a client").get(server.url("127.0.0.1")).send().await;
    assert!(plain.is_err(), "a client without our settings uses the proxy");
    let client = guard(&["127.0.0.1"]).client(LONG, LONG).expect("a client");
    let answer = client.get(server.url("127.0.0.1")).send().await.expect("an answer");
    assert_eq!((answer.status().as_u16(), server.heads().len()), (200, 1));
}
