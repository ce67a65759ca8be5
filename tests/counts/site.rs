//! Workers, a router on a thread of its own, and clients that only write and read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use skein_node::discovery::{self, Change, Member};
use skein_router::app::App;
use skein_router::cluster::Cluster;
use skein_router::config::RouterConfig;
use skein_router::serve::serve;
use skein_sys::allocations::{Counting, tally_this_thread};
use skein_text::model_text::ModelText;
use skein_worker::backend::fake::{FakeBackend, FakeOptions};
use skein_worker::config::{BackendKind, WorkerConfig};
use skein_worker::load::LoadedBackend;
use skein_worker::service::serve_backend;
use tokio::sync::oneshot;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();
/// Allocations of the router's thread.
pub static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

const MODEL: &str = "m";
/// Limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(60);
const VOCAB_SIZE: u32 = 1000;

/// Fake workers, on threads of their own.
pub struct Workers {
    addresses: Vec<SocketAddr>,
    _runtime: tokio::runtime::Runtime,
    _stop: Vec<oneshot::Sender<()>>,
}

impl Workers {
    pub fn start(count: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let (mut addresses, mut stop) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (ready, address) = oneshot::channel();
            let (stopped, until) = oneshot::channel::<()>();
            let config =
                WorkerConfig { backend: BackendKind::Fake, threads: 1, ..WorkerConfig::new("", MODEL) };
            let options = FakeOptions { vocab_size: VOCAB_SIZE, kv_blocks: 2048, ..FakeOptions::default() };
            let load = move || Ok(LoadedBackend::fake(FakeBackend::new(options), VOCAB_SIZE, 4096));
            runtime.spawn(async move {
                let on_ready = |address| ready.send(address).expect("the test waits for it");
                let served = serve_backend(config, load, on_ready, async { drop(until.await) }).await;
                served.expect("the worker serves");
            });
            addresses.push(address.blocking_recv().expect("the worker gets ready"));
            stop.push(stopped);
        }
        Self { addresses, _runtime: runtime, _stop: stop }
    }
}

/// A router that has one thread.
pub struct Router {
    pub address: SocketAddr,
    /// Id of its thread, for a tracer.
    pub thread: String,
    _stop: oneshot::Sender<()>,
}

impl Router {
    /// Starts a router before `workers` and waits until all are ready.
    pub fn start(workers: &Workers) -> Self {
        let addresses = workers.addresses.clone();
        let (ready, address) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let run = move || {
            tally_this_thread(&ALLOCATIONS);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(async move {
                let (changes, receiver) = discovery::in_process();
                let config = RouterConfig::new("", [MODEL]);
                let text = ModelText::load(&skein_golden::shipped(), &[MODEL.to_owned()]).expect("a model");
                let cluster = Cluster::start(&config, receiver, MODEL);
                for (at, address) in addresses.iter().enumerate() {
                    let member = Member { id: format!("w{at}"), address: address.to_string() };
                    changes.send(Change::Join(member)).await.expect("the cluster listens");
                }
                let are_ready = || cluster.snapshot().workers.iter().filter(|it| it.is_ready()).count();
                while are_ready() < addresses.len() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let app = App::new(Arc::new(text), Arc::new(cluster), config);
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                let address = listener.local_addr().expect("it listens");
                ready.send((address, thread_id())).expect("the test waits for it");
                serve(listener, app, async { drop(stopped.await) }).await.expect("it serves");
            });
        };
        std::thread::Builder::new().name("router".to_owned()).spawn(run).expect("a thread");
        let (address, thread) = address.blocking_recv().expect("the router gets ready");
        Self { address, thread, _stop: stop }
    }
}

/// Id of this thread, for a tracer: the link is `PID/task/TID`.
fn thread_id() -> String {
    let link = std::fs::read_link("/proc/thread-self").expect("a mounted /proc");
    link.file_name().map(|id| id.to_string_lossy().into_owned()).expect("a thread's id")
}

/// Connections that are kept.
pub struct Clients(Vec<TcpStream>);

impl Clients {
    pub fn connect(address: SocketAddr, count: usize) -> Self {
        let connect = |_| {
            let stream = TcpStream::connect(address).expect("the router listens");
            stream.set_nodelay(true).expect("a socket takes the option");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a socket takes a timeout");
            stream
        };
        Self((0..count).map(connect).collect())
    }

    /// Sends `requests` in all for `tokens` tokens each, one at a time on each connection.
    pub fn ask(&self, requests: usize, tokens: u32) {
        let share = requests / self.0.len();
        std::thread::scope(|threads| {
            for (at, mut stream) in self.0.iter().enumerate() {
                threads.spawn(move || {
                    let (mut buffer, mut answer) = (vec![0; 64 << 10], Vec::new());
                    for nth in 0..share {
                        let ids: Vec<String> = (0..32)
                            .map(|it| ((it * 7 + nth * 31 + at * 17) % 900 + 10).to_string())
                            .collect();
                        let body = format!(
                            r#"{{"prompt":[{}],"max_tokens":{tokens},"temperature":0,"ignore_eos":true}}"#,
                            ids.join(",")
                        );
                        let head = format!(
                            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                             content-length: {}\r\n\r\n",
                            body.len()
                        );
                        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).expect("it is sent");
                        read_answer(stream, &mut buffer, &mut answer);
                    }
                });
            }
        });
    }
}

/// Reads one answer with a content length.
fn read_answer(mut stream: &TcpStream, buffer: &mut [u8], answer: &mut Vec<u8>) {
    answer.clear();
    loop {
        let count = stream.read(buffer).expect("an answer in time");
        assert!(count > 0, "the router closed the connection");
        answer.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("HTTP/1.1 200"), "{text}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|it| it.parse().ok()).expect("a content length");
        if body.len() == length {
            return;
        }
    }
}
