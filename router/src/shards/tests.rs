//! Shards alone, and a server whose connections are on two of them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::app::App;
use crate::config::RouterConfig;
use crate::serve::serve;
use crate::testing::{self, Say, Script, delta};

#[tokio::test]
async fn connections_are_spread_evenly_and_ended_ones_make_room() {
    let shards = Shards::start(3).unwrap();
    let mut open = JoinSet::new();
    let (tell, mut told) = mpsc::channel(30);
    for _ in 0..30 {
        let tell = tell.clone();
        shards.spawn(&mut open, async move {
            let _ = tell.send(shard::current()).await;
            std::future::pending().await
        });
    }
    let mut by_shard = HashMap::new();
    for _ in 0..30 {
        *by_shard.entry(told.recv().await.unwrap()).or_insert(0) += 1;
    }
    assert_eq!(by_shard, HashMap::from([(1, 10), (2, 10), (3, 10)]));
    open.shutdown().await;
    let held = shards.loops.all.iter().map(Loop::load);
    assert_eq!(held.sum::<usize>(), 0);
    // A shard with a long-lived connection gets the next one last.
    let (tell, told) = oneshot::channel();
    shards.spawn(&mut open, async move {
        let _ = tell.send(shard::current());
        std::future::pending().await
    });
    let busy = told.await.unwrap();
    for _ in 0..2 {
        let (tell, told) = oneshot::channel();
        shards.spawn(&mut open, async move {
            let _ = tell.send(shard::current());
            std::future::pending().await
        });
        assert_ne!(told.await.unwrap(), busy);
    }
}

#[tokio::test]
async fn requests_of_one_http2_connection_are_spread_once_they_are_many() {
    let shards = Shards::start(2).unwrap();
    let (mut open, executor) = (JoinSet::new(), shards.executor());
    let (tell, mut told) = mpsc::channel(100);
    shards.spawn(&mut open, async move {
        for _ in 0..100 {
            let tell = tell.clone();
            executor.execute(async move {
                let _ = tell.send(shard::current()).await;
                std::future::pending::<()>().await;
            });
        }
        std::future::pending().await
    });
    let mut by_shard = [0_usize; 3];
    for _ in 0..100 {
        by_shard[told.recv().await.unwrap()] += 1;
    }
    let difference = by_shard[1].abs_diff(by_shard[2]);
    assert!(by_shard[0] == 0 && difference > 0 && difference <= MOVES_FROM, "{by_shard:?}");
}

#[tokio::test]
async fn the_end_drops_what_runs_there_and_no_shards_means_here() {
    let shards = Shards::start(1).unwrap();
    let held = Arc::new(());
    let (inner, mut open) = (held.clone(), JoinSet::new());
    shards.spawn(&mut open, async move {
        tokio::spawn(async move {
            let _inner = inner;
            std::future::pending::<()>().await;
        });
    });
    open.join_next().await.unwrap().unwrap();
    assert_eq!(Arc::strong_count(&held), 2);
    shards.end().await;
    assert_eq!(Arc::strong_count(&held), 1);

    let (tell, told) = oneshot::channel();
    Shards::start(0).unwrap().spawn(&mut open, async move {
        let _ = tell.send(shard::current());
    });
    assert_eq!(told.await.unwrap(), 0);
}

/// The server, how to end it, and its end.
struct Server {
    app: App,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<io::Result<()>>,
}

async fn start(say: Vec<Say>, config: RouterConfig) -> Server {
    let script = Script { say, ..Script::default() };
    let config = RouterConfig { shards: 2, ..config };
    let app = App::new(Arc::new(testing::model_text()), Arc::new(script), config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(serve(listener, app.clone(), async {
        let _ = stopped.await;
    }));
    Server { app, address, stop, served }
}

async fn send(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads until the server closes the connection or `end` arrives.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(end) {
        match stream.read(&mut buffer).await.unwrap() {
            0 => break,
            count => text.push_str(&String::from_utf8_lossy(&buffer[..count])),
        }
    }
    text
}

const STREAM: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 28\r\n\r\n{\"prompt\":\"a\",\"stream\":true}";

#[tokio::test]
async fn one_drain_ends_the_streams_of_all_shards() {
    let endless = vec![Say::Delta(delta(0, "a")), Say::Hang];
    let shutdown_timeout = Duration::from_millis(200);
    let server = start(endless, RouterConfig { shutdown_timeout, ..testing::config() }).await;
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = send(server.address, STREAM).await;
        assert!(read_until(&mut stream, "\"text\":\"a\"").await.starts_with("HTTP/1.1 200"));
        streams.push(stream);
    }
    assert_eq!(server.app.drain.running(), 6);
    server.stop.send(()).unwrap();
    server.app.drain.began().await;
    for _ in 0..2 {
        let mut late = send(server.address, "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(read_until(&mut late, "draining").await.starts_with("HTTP/1.1 503"));
    }
    for stream in &mut streams {
        let rest = read_until(stream, "never").await;
        assert!(rest.contains(r#""code":"draining""#), "{rest}");
    }
    server.served.await.unwrap().unwrap();
    assert_eq!(server.app.drain.running(), 0);
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn limits_of_connections_hold_over_all_shards() {
    let config = RouterConfig { max_connections_per_ip: Some(3), ..testing::config() };
    let server = start(Vec::new(), config).await;
    let live = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = send(server.address, live).await;
        assert!(read_until(&mut stream, "ok").await.starts_with("HTTP/1.1 200"));
        held.push(stream);
    }
    let closed = async |server: &Server| {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // Closed before or after it could be written.
        let _ = stream.write_all(live.as_bytes()).await;
        stream.read(&mut [0; 64]).await.unwrap_or(0) == 0
    };
    for _ in 0..4 {
        assert!(closed(&server).await, "three of one address, not three a shard");
    }
    held.pop();
    while closed(&server).await {}
}
