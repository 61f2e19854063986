//! An endpoint that effects are pushed to, written against HTTP/1.1 alone: it records every request, and answers,
//! hangs, hangs up or is away as a test says.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

/// One request, as it was received.
#[derive(Debug, Clone)]
pub struct Push {
    pub path: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// When the last byte was there.
    pub at: Instant,
    /// Requests with the same key to the same path before this one.
    pub earlier: usize,
    /// What it is answered with; none where it is not answered.
    status: Option<u16>,
}

impl Push {
    fn find(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter().filter(|(n, _)| n == name);
        let found = all.next().map(|(_, value)| value.as_str());
        assert!(all.next().is_none(), "header {name} is doubled: {:?}", self.headers);
        found
    }

    pub fn header(&self, name: &str) -> &str {
        self.find(name).unwrap_or_else(|| panic!("no header {name} in {:?}", self.headers))
    }

    pub fn key(&self) -> &str {
        self.header("idempotency-key")
    }

    pub fn rev(&self) -> u64 {
        self.header("seriatim-rev").parse().expect("a rev")
    }

    pub fn is_resent(&self) -> bool {
        match self.header("seriatim-resent") {
            "true" => true,
            "false" => false,
            other => panic!("seriatim-resent: {other}"),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a body of JSON")
    }

    fn is_taken(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}

/// What becomes of a request, beside being recorded.
#[derive(Debug, Clone)]
pub enum Answer {
    Status(u16),
    /// A status and one header.
    With(u16, &'static str, String),
    /// 200, after a while.
    After(Duration),
    /// No answer, and the connection stays.
    Hang,
    /// No answer, and the connection ends.
    Drop,
}

impl Answer {
    fn status(&self) -> Option<u16> {
        match self {
            Self::Status(status) | Self::With(status, ..) => Some(*status),
            Self::After(_) => Some(200),
            Self::Hang | Self::Drop => None,
        }
    }
}

type Behaviour = Arc<dyn Fn(&Push) -> Answer + Send + Sync>;

struct Shared {
    pushes: Mutex<Vec<Push>>,
    behaviour: Mutex<Behaviour>,
}

struct Listening {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Bound as long as the receiver lives, but not listening: nobody else is given the port, and while nothing listens
    /// connections are refused.
    _port: TcpSocket,
    listening: Option<Listening>,
    /// Threads of its own: it answers while the test waits.
    runtime: Runtime,
}

impl Receiver {
    /// Listens at a free port, and takes everything.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let behaviour: Behaviour = Arc::new(|_| Answer::Status(200));
        let shared = Shared { pushes: Mutex::default(), behaviour: Mutex::new(behaviour) };
        let port = bind(([127, 0, 0, 1], 0).into());
        let address = port.local_addr().expect("an address");
        let runtime = runtime.expect("a runtime");
        let mut receiver = Self { address, shared: Arc::new(shared), _port: port, listening: None, runtime };
        receiver.up();
        receiver
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// From now on requests are answered so.
    pub fn answer(&self, behaviour: impl Fn(&Push) -> Answer + Send + Sync + 'static) {
        *self.shared.behaviour.lock().expect("no panic") = Arc::new(behaviour);
    }

    /// Stops listening, and cuts all connections; nobody else gets the port.
    pub fn down(&mut self) {
        let Listening { stop, task } = self.listening.take().expect("it is up");
        let _ = stop.send(());
        self.runtime.block_on(task).expect("it ends well");
    }

    /// Listens again, at the same port.
    pub fn up(&mut self) {
        assert!(self.listening.is_none(), "it is up already");
        let _context = self.runtime.enter();
        let listener = bind(self.address).listen(1024).expect("it listens");
        let (stop, stopped) = oneshot::channel();
        let task = self.runtime.spawn(serve(listener, self.shared.clone(), stopped));
        self.listening = Some(Listening { stop, task });
    }

    fn all(&self) -> Vec<Push> {
        self.shared.pushes.lock().expect("no panic").clone()
    }

    /// Everything that was received at a path, in its order.
    pub fn pushes(&self, path: &str) -> Vec<Push> {
        self.all().into_iter().filter(|push| push.path == path).collect()
    }

    /// Keys of what was received at a path, however it was answered.
    pub fn keys(&self, path: &str) -> BTreeSet<String> {
        self.pushes(path).iter().map(|push| push.key().to_owned()).collect()
    }

    /// Keys of what was answered with success at a path.
    pub fn taken(&self, path: &str) -> BTreeSet<String> {
        self.pushes(path).iter().filter(|push| push.is_taken()).map(|push| push.key().to_owned()).collect()
    }

    /// Of each object the effects came, each for the first time, in the order of their revs.
    pub fn check_order(&self) {
        let mut last: HashMap<(String, String), u64> = HashMap::new();
        for push in self.all().iter().filter(|push| push.earlier == 0) {
            let (object, _) = push.key().rsplit_once('/').expect("tenant/source/object/event");
            let before = last.insert((push.path.clone(), object.to_owned()), push.rev());
            assert!(before.is_none_or(|rev| rev < push.rev()), "{}: rev {} after {before:?}", push.key(), push.rev());
        }
    }

    /// What came a second time says so.
    pub fn check_marks(&self) {
        for push in self.all().iter().filter(|push| push.earlier > 0) {
            assert!(push.is_resent(), "{} came {} times before, and is not marked", push.key(), push.earlier);
        }
    }
}

/// Shares the port with other sockets of ours that ask for it by its number, and with nobody who asks for any port.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of TCP");
    socket.set_reuseport(true).expect("an option of TCP");
    socket.bind(address).expect("the port is free");
    socket
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(answer_all(stream, shared.clone()));
                }
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Answers the requests of one connection, until it ends.
async fn answer_all(stream: TcpStream, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    while let Some(push) = read(&mut stream).await {
        let answer = match shared.record(push) {
            Answer::Status(status) => text(status, ""),
            Answer::With(status, name, value) => text(status, &format!("{name}: {value}\r\n")),
            Answer::After(wait) => {
                tokio::time::sleep(wait).await;
                text(200, "")
            }
            Answer::Hang => std::future::pending().await,
            Answer::Drop => return,
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn text(status: u16, header: &str) -> String {
    format!("HTTP/1.1 {status} so\r\n{header}content-length: 0\r\n\r\n")
}

/// The next request of a connection, if a whole one comes.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Push> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        let header = line.strip_suffix("\r\n")?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':')?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").map_or("0", |(_, value)| value);
    let mut body = vec![0; length.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(Push { path, headers, body, at: Instant::now(), earlier: 0, status: None })
}

impl Shared {
    /// Decides on a request, and records both.
    fn record(&self, mut push: Push) -> Answer {
        let behaviour = self.behaviour.lock().expect("no panic").clone();
        let mut pushes = self.pushes.lock().expect("no panic");
        let is_same = |other: &&Push| other.path == push.path && other.key() == push.key();
        push.earlier = pushes.iter().filter(is_same).count();
        let answer = behaviour(&push);
        push.status = answer.status();
        pushes.push(push);
        answer
    }
}
