//! Connections through the real HTTP edge: silent ones end, so that others find a place.

mod support;

use std::time::{Duration, Instant};

use seriatim_ingest::config::IngestConfig;
use support::{Documents, Running, start_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const FIRST_MS: u64 = 300;
const BETWEEN_MS: u64 = 600;
const REQUEST: &[u8] = b"GET /in/t/unknown HTTP/1.1\r\nhost: x\r\n\r\n";

async fn edge(connections_max: usize) -> Running {
    let config = IngestConfig {
        connections_max,
        header_timeout_ms: FIRST_MS,
        idle_timeout_ms: BETWEEN_MS,
        ..IngestConfig::default()
    };
    start_with(Vec::new(), Documents::default(), config).await
}

async fn connect(edge: &Running) -> TcpStream {
    TcpStream::connect(edge.base.trim_start_matches("http://")).await.expect("a connection")
}

/// After how many milliseconds the edge closes it.
async fn closed_after(stream: &mut TcpStream) -> u128 {
    let began = Instant::now();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "it stays open");
    began.elapsed().as_millis()
}

async fn ask(stream: &mut TcpStream) {
    stream.write_all(REQUEST).await.expect("written");
    let mut answer = [0; 1024];
    let read = stream.read(&mut answer).await.expect("an answer");
    assert!(answer[..read].starts_with(b"HTTP/1.1 401"), "{:?}", String::from_utf8_lossy(&answer[..read]));
}

#[tokio::test]
async fn a_connection_that_sends_no_request_ends() {
    let edge = edge(10).await;
    // HTTP/2 begins with a preface, and settings.
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for sent in [&b""[..], b"P", b"POST /in/t/s HTTP/1.1\r\nhost: x\r\nx-", preface] {
        let mut stream = connect(&edge).await;
        stream.write_all(sent).await.expect("written");
        let ms = closed_after(&mut stream).await;
        assert!(u128::from(FIRST_MS) - 100 <= ms && ms < 5000, "{ms} ms after {:?}", String::from_utf8_lossy(sent));
    }
}

#[tokio::test]
async fn a_connection_is_kept_between_requests_for_a_while() {
    let edge = edge(10).await;
    let mut stream = connect(&edge).await;
    for _ in 0..3 {
        ask(&mut stream).await;
        tokio::time::sleep(Duration::from_millis(BETWEEN_MS / 2)).await;
    }
    ask(&mut stream).await;
    let ms = closed_after(&mut stream).await;
    assert!(u128::from(BETWEEN_MS) - 100 <= ms && ms < 5000, "{ms} ms");
}

#[tokio::test]
async fn silent_connections_give_their_places_back() {
    let edge = edge(2).await;
    let _silent = [connect(&edge).await, connect(&edge).await];
    let answer = edge.client.get(format!("{}/in/t/unknown", edge.base)).timeout(Duration::from_secs(8)).send().await;
    assert_eq!(answer.expect("a place").status(), 401);
}

/// A body that is slow has its own bound; the connection is not silent while its request is under way.
#[tokio::test]
async fn a_slow_body_is_not_silence() {
    let edge = edge(10).await;
    let mut stream = connect(&edge).await;
    stream.write_all(b"POST /in/t/unknown HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n").await.expect("written");
    for byte in [b"a", b"b", b"c", b"d"] {
        tokio::time::sleep(Duration::from_millis(BETWEEN_MS / 2)).await;
        stream.write_all(byte).await.expect("written");
    }
    let mut answer = [0; 1024];
    let read = stream.read(&mut answer).await.expect("an answer");
    assert!(answer[..read].starts_with(b"HTTP/1.1 401"), "{:?}", String::from_utf8_lossy(&answer[..read]));
}
