//! The wire between one processor and the store: it is whole, cut, silent, slow, or loses the answers of conditional
//! batches, of which nobody then knows whether they were applied.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Whole,
    /// Connections end, and new ones too.
    Cut,
    /// Nothing passes, and connections stay; what was held passes afterwards.
    Silent,
    /// All takes so much longer, each way.
    Slow(Duration),
    /// Of the answers to conditional batches every other one is lost.
    Forgetful,
}

/// Bytes that are carried together.
const CHUNK: usize = 64 * 1024;
/// Chunks under way, each way.
const UNDER_WAY_MAX: usize = 1024;
/// CQL: a header of 9 bytes, whose last 4 are the length of what follows.
const HEADER: usize = 9;
/// Only the result of a conditional statement has a column of that name.
const APPLIED: &[u8] = b"[applied]";

pub struct Wire {
    address: SocketAddr,
    state: watch::Sender<State>,
    _runtime: Runtime,
}

impl Wire {
    /// To `store`, HOST:PORT.
    pub fn to(store: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (state, watched) = watch::channel(State::Whole);
        runtime.spawn(accept(listener, store.to_owned(), watched));
        Self { address, state, _runtime: runtime }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn set(&self, state: State) {
        self.state.send_replace(state);
    }
}

async fn accept(listener: TcpListener, store: String, state: watch::Receiver<State>) {
    loop {
        let Ok((near, _)) = listener.accept().await else { continue };
        tokio::spawn(connect(near, store.clone(), state.clone()));
    }
}

/// Carries both ways until one end is gone, or the wire is cut.
async fn connect(near: TcpStream, store: String, mut state: watch::Receiver<State>) {
    let watched = state.clone();
    let carried = async {
        let Ok(far) = TcpStream::connect(store).await else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::select! {
            () = carry(near_in, far_out, watched.clone(), false) => {}
            () = carry(far_in, near_out, watched.clone(), true) => {}
        }
    };
    tokio::select! {
        () = carried => {}
        _ = state.wait_for(|state| *state == State::Cut) => {}
    }
}

/// `is_answers`: from the store.
async fn carry(from: OwnedReadHalf, to: OwnedWriteHalf, state: watch::Receiver<State>, is_answers: bool) {
    let (queue, queued) = mpsc::channel(UNDER_WAY_MAX);
    tokio::select! {
        () = take(from, queue, state.clone(), is_answers) => {}
        () = give(queued, to, state) => {}
    }
}

async fn take(
    from: OwnedReadHalf,
    queue: mpsc::Sender<(Instant, Vec<u8>)>,
    state: watch::Receiver<State>,
    is_answers: bool,
) {
    let mut from = BufReader::with_capacity(CHUNK, from);
    let mut conditional = 0_u32;
    while let Some(bytes) = if is_answers { frame(&mut from).await } else { chunk(&mut from).await } {
        let state = *state.borrow();
        if is_answers && bytes.windows(APPLIED.len()).any(|part| part == APPLIED) {
            conditional += 1;
            if state == State::Forgetful && conditional.is_multiple_of(2) {
                continue;
            }
        }
        let wait = if let State::Slow(wait) = state { wait } else { Duration::ZERO };
        if queue.send((Instant::now() + wait, bytes)).await.is_err() {
            return;
        }
    }
}

async fn give(
    mut queued: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
) {
    while let Some((due, bytes)) = queued.recv().await {
        tokio::time::sleep_until(due).await;
        let _ = state.wait_for(|state| *state != State::Silent).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn chunk(from: &mut BufReader<OwnedReadHalf>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; CHUNK];
    let read = from.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
    bytes.truncate(read);
    Some(bytes)
}

/// One whole answer.
async fn frame(from: &mut BufReader<OwnedReadHalf>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    from.read_exact(&mut bytes).await.ok()?;
    let length = u32::from_be_bytes(bytes[HEADER - 4..].try_into().expect("four bytes"));
    bytes.resize(HEADER + length as usize, 0);
    from.read_exact(&mut bytes[HEADER..]).await.ok()?;
    Some(bytes)
}
