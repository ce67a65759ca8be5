//! `skein bench startup`: measures the time from exec until a server is ready and until its first token.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use skein_bench::load::client::Server;
use skein_bench::load::metrics::{Record, Summary};
use skein_bench::load::workload::Workload;
use skein_bench::load::{self, Pace};
use skein_client::Client;
use skein_node::clock;
use tokio::process::{Child, Command};

use crate::exit::{Failure, USAGE};

/// How often readiness is polled, which is also the resolution of the measurement.
const POLL: Duration = Duration::from_millis(2);
/// How long a server may take to exit after it was told to.
const END_WITHIN: Duration = Duration::from_secs(30);

/// Flags of `bench startup`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Startup {
    #[arg(
        value_name = "MODEL",
        help = "Model directory, or a name as organisation/model [default: the model that ships with Skein]"
    )]
    model: Option<PathBuf>,
    #[arg(long, default_value_t = 5, value_name = "N", help = "Measured starts")]
    num_iters: usize,
    #[arg(long, default_value_t = 1, value_name = "N", help = "Warm-up starts, to fill the page cache")]
    num_iters_warmup: usize,
    #[arg(long, default_value_t = 600, value_name = "SECONDS", help = "Timeout of a start")]
    timeout: u64,
    #[arg(long, help = "Print JSON instead of the table")]
    json: bool,
    #[arg(last = true, value_name = "FLAGS", help = "Flags of `skein serve`, after --")]
    serve: Vec<String>,
}

/// Times of one start.
struct Start {
    ready: Duration,
    first_token: Duration,
}

/// Runs `bench startup`.
///
/// # Errors
/// A server that does not start or does not answer.
pub async fn run(flags: &Startup) -> Result<(), Failure> {
    if flags.num_iters == 0 {
        return Err(Failure::new(USAGE, "--num-iters is 0; ask for at least one".to_owned()));
    }
    let mut starts = Vec::new();
    for iteration in 0..flags.num_iters_warmup + flags.num_iters {
        let start = once(flags).await?;
        if iteration >= flags.num_iters_warmup {
            starts.push(start);
        }
    }
    let ready = Summary::of(starts.iter().map(|start| start.ready));
    let first_token = Summary::of(starts.iter().map(|start| start.first_token));
    if flags.json {
        let of = |it: &Summary| json!({"p50": it.p50, "max": it.max, "mean": it.mean});
        outln!(
            "{:#}",
            json!({"ready_ms": of(&ready), "first_token_ms": of(&first_token), "starts": starts.len()})
        );
        return Ok(());
    }
    outln!("{} starts, ms from exec     p50       max", starts.len());
    for (name, it) in [("health says ready", ready), ("first token received", first_token)] {
        outln!("{name:<22}{:>10.1}{:>10.1}", it.p50, it.max);
    }
    Ok(())
}

async fn once(flags: &Startup) -> Result<Start, Failure> {
    let port = free_port()?;
    let started = clock::now();
    let mut server = spawn(flags, port)?;
    let outcome = tokio::select! {
        outcome = measure(flags, port, started) => outcome,
        status = server.wait() => Err(Failure::other(match status {
            Ok(status) => format!("the server exited before it answered ({status}); its output is above"),
            Err(error) => format!("cannot wait for the server: {error}"),
        })),
    };
    end(server).await;
    outcome
}

fn spawn(flags: &Startup, port: u16) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe().map_err(Failure::other)?);
    command.arg("serve").args(&flags.model).args(["--port", &port.to_string(), "--workers", "1"]);
    command.args(&flags.serve).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    command.spawn().map_err(Failure::other)
}

async fn measure(flags: &Startup, port: u16, started: clock::Timestamp) -> Result<Start, Failure> {
    let base_url = format!("http://127.0.0.1:{port}");
    let timeout = Duration::from_secs(flags.timeout);
    let elapsed = || clock::now().since(started);
    let http = Client::new(None, Server::limits(timeout));
    while !Server::is_healthy(&http, &base_url).await {
        if elapsed() > timeout {
            return Err(Failure::other(format!("not ready after {} s; see --timeout", timeout.as_secs())));
        }
        tokio::time::sleep(POLL).await;
    }
    let ready = elapsed();
    let server = Server::connect(http, &base_url, None, None, json!({})).await.map_err(Failure::other)?;
    let workload = Workload::Random { input_len: 8, output_len: 2, prefix_len: 0, range_ratio: 0.0 };
    let pace =
        Pace { request_rate: None, burstiness: 1.0, max_concurrency: Some(1), seed: 0, held_back: None };
    let sent = elapsed();
    let records = load::run(&server, workload.sessions(1, 1000, 0), pace, |_| {}).await;
    if let Some(failure) = records.iter().find_map(Record::failure) {
        return Err(Failure::other(failure));
    }
    let first = records.first().and_then(|record| record.first_token);
    let first = first.ok_or_else(|| Failure::other("the server answered without a token"))?;
    Ok(Start { ready, first_token: sent + first })
}

/// Stops `server`, which this command started, as Ctrl-C would.
async fn end(mut server: Child) {
    if let Some(id) = server.id() {
        // Ignore the error of a server that has already exited.
        let _ = Command::new("kill").args(["-INT", &id.to_string()]).status().await;
    }
    if tokio::time::timeout(END_WITHIN, server.wait()).await.is_err() {
        let _ = server.kill().await;
    }
}

fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(Failure::other)?;
    Ok(listener.local_addr().map_err(Failure::other)?.port())
}
