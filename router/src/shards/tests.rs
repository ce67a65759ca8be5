//! Shards alone, and a server whose connections are on two of them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::config::RouterConfig;
use crate::testing::server::{Server, endless, read_until, send};
use crate::testing::{self, Script};

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

async fn start(script: Script, config: RouterConfig) -> Server {
    Server::start(script, RouterConfig { shards: 2, ..config }).await
}

const STREAM: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 28\r\n\r\n{\"prompt\":\"a\",\"stream\":true}";

#[tokio::test]
async fn one_drain_ends_the_streams_of_all_shards() {
    let shutdown_timeout = Duration::from_millis(200);
    let server = start(endless(), RouterConfig { shutdown_timeout, ..testing::config() }).await;
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = server.send(STREAM).await;
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
    let server = start(Script::default(), config).await;
    let live = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = server.send(live).await;
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
