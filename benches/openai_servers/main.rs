//! The router before OpenAI servers: `cargo bench -p skein-bench --bench openai_servers [seconds]`.
//!
//! The router runs on processor 0 alone. Eight mock servers and a client with 64 connections share processor
//! 1 and one thread, and are also measured without the router: that is the most this harness can show. Rounds
//! alternate between the two. The mock answers at once, streams in four parts of 16 tokens.

mod client;
mod mock;

use std::net::SocketAddr;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use skein_front::{UpstreamConfig, Upstreams, WorkerUrl, serve};
use skein_router::config::RouterConfig;

use client::{Load, Measured};

const SERVERS: usize = 8;
const ROUNDS: usize = 3;
const NANOS: f64 = 1e9;

fn main() {
    let seconds = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(4);
    place(1);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    runtime.block_on(measure(Duration::from_secs(seconds)));
}

/// Keeps this thread on one processor, if there are several.
fn place(processor: usize) {
    if let Err(error) = skein_sys::threads::keep_to(&[processor]) {
        println!("not pinned to processor {processor}: {error}");
    }
}

async fn measure(time: Duration) {
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(mock::start().await);
    }
    let router = Router::start(&servers);
    client::wait_until_ready(router.address).await;
    println!("{:<34} {:>10} {:>10} {:>16}", "", "direct/s", "router/s", "CPU s per 1,000");
    for load in [Load::one_token(128), Load::one_token(16 << 10), Load::stream()] {
        let (mut direct, mut through, mut costs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            direct.push(client::run(&load, &servers, time).await.per_second());
            let before = router.busy();
            let measured: Measured = client::run(&load, &[router.address], time).await;
            costs.push((router.busy() - before) / measured.answers as f64 * 1000.0);
            through.push(measured.per_second());
        }
        println!(
            "{:<34} {:>10.0} {:>10.0} {:>16.4}",
            load.name,
            median(direct),
            median(through),
            median(costs)
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The router, on a thread of its own.
struct Router {
    address: SocketAddr,
    /// Directory of the thread in `/proc`.
    thread: String,
}

impl Router {
    fn start(servers: &[SocketAddr]) -> Self {
        let mut router = RouterConfig::new("", Vec::<String>::new());
        // Under a saturated processor checks are late, which is not what is measured.
        router.recovery.worker_timeout = Duration::from_secs(60);
        let urls = servers.iter().map(|server| WorkerUrl::parse(&format!("http://{server}")));
        let urls = urls.collect::<Result<_, _>>().expect("addresses make URLs");
        let config = UpstreamConfig::new(router, urls);
        let (ready, started) = sync_channel(1);
        std::thread::spawn(move || {
            place(0);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
                let thread = std::fs::read_link("/proc/thread-self").unwrap_or_default();
                let address = listener.local_addr().expect("it is bound");
                let told = ready.send((address, format!("/proc/{}", thread.display())));
                told.expect("the main thread waits");
                let served = serve(listener, Upstreams::start(config), std::future::pending()).await;
                served.expect("it serves");
            });
        });
        let (address, thread) = started.recv().expect("the router starts");
        Self { address, thread }
    }

    /// Processor time of the router's thread, in seconds.
    fn busy(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("{}/schedstat", self.thread)).unwrap_or_default();
        stat.split(' ')
            .next()
            .and_then(|nanos| nanos.parse::<f64>().ok())
            .map_or(f64::NAN, |nanos| nanos / NANOS)
    }
}
