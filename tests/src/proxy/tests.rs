//! The proxy alone: what a client sees of an echo server behind it.

use std::io::ErrorKind;

use skein_node::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// Long enough that silence is no delay, on a loaded machine too.
const SILENCE: Duration = Duration::from_millis(250);
const TIMEOUT: Duration = Duration::from_secs(20);

/// An echo server behind a proxy.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    Proxy::start(upstream, 1).await
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address).await.unwrap()
}

async fn say(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn hear(stream: &mut TcpStream, text: &str) {
    let mut heard = vec![0; text.len()];
    tokio::time::timeout(TIMEOUT, stream.read_exact(&mut heard)).await.expect("an echo").unwrap();
    assert_eq!(heard, text.as_bytes());
}

async fn hear_nothing(stream: &mut TcpStream) {
    let heard = tokio::time::timeout(SILENCE, stream.read_u8()).await;
    assert!(heard.is_err(), "{heard:?}");
}

async fn exchange(stream: &mut TcpStream, text: &str) {
    say(stream, text).await;
    hear(stream, text).await;
}

#[tokio::test]
async fn without_faults_all_bytes_and_the_end_pass_in_order() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    let text = "0123456789abcdef".repeat(20_000);
    let (mut read, mut write) = stream.split();
    let mut heard = Vec::new();
    let send = async {
        write.write_all(text.as_bytes()).await.unwrap();
        write.shutdown().await.unwrap();
    };
    tokio::join!(send, async { read.read_to_end(&mut heard).await.unwrap() });
    assert!(heard == text.as_bytes());
}

#[tokio::test]
async fn delay_is_paid_once_each_way_and_not_for_each_chunk() {
    let proxy = echo().await;
    let delay = Duration::from_millis(100);
    proxy.set(Network::both(Link { delay, ..Link::GOOD }));
    let mut stream = connect(&proxy).await;
    let start = clock::now();
    for _ in 0..50 {
        say(&mut stream, "x").await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    hear(&mut stream, &"x".repeat(50)).await;
    let took = clock::now().since(start);
    assert!(took >= 2 * delay && took < 25 * delay, "{took:?}");
}

#[tokio::test]
async fn bandwidth_and_losses_take_their_time() {
    let check = async |link: Link, at_least: Duration| {
        let proxy = echo().await;
        proxy.set_direction(Direction::Down, link);
        let mut stream = connect(&proxy).await;
        let start = clock::now();
        exchange(&mut stream, &"x".repeat(10_000)).await;
        assert!(clock::now().since(start) >= at_least);
    };
    check(Link { bandwidth: Some(50_000), ..Link::GOOD }, Duration::from_millis(150)).await;
    check(Link { loss: 1.0, ..Link::GOOD }, Link::GOOD.resend_after).await;
}

#[tokio::test]
async fn what_stalls_arrives_late() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    exchange(&mut stream, "before").await;
    proxy.set(Network::both(Link::STALL));
    say(&mut stream, "late").await;
    hear_nothing(&mut stream).await;
    proxy.heal();
    hear(&mut stream, "late").await;
}

#[tokio::test]
async fn what_is_swallowed_never_arrives_and_the_connection_stays_silent() {
    for direction in [Direction::Up, Direction::Down] {
        let proxy = echo().await;
        let mut stream = connect(&proxy).await;
        exchange(&mut stream, "before").await;
        proxy.set_direction(direction, Link::SWALLOW);
        say(&mut stream, "gone").await;
        hear_nothing(&mut stream).await;
        proxy.heal();
        say(&mut stream, "more").await;
        hear_nothing(&mut stream).await;
        exchange(&mut connect(&proxy).await, "a new connection").await;
    }
}

#[tokio::test]
async fn one_connection_can_be_hurt_alone() {
    let proxy = echo().await;
    let (mut first, mut second) = (connect(&proxy).await, connect(&proxy).await);
    exchange(&mut first, "1").await;
    exchange(&mut second, "2").await;
    let connections = proxy.connections();
    assert_eq!(connections.len(), 2);
    connections[0].set(Network::both(Link::SWALLOW));
    say(&mut first, "gone").await;
    exchange(&mut second, "here").await;
    hear_nothing(&mut first).await;
    connections[1].cut(Cut::Reset);
    assert_eq!(second.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn cuts_are_resets_or_ends_and_refusals_are_resets() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    exchange(&mut stream, "x").await;
    proxy.cut(Cut::Finish);
    assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    let mut stream = connect(&proxy).await;
    exchange(&mut stream, "x").await;
    proxy.cut(Cut::Reset);
    assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.refuse(true);
    let mut stream = connect(&proxy).await;
    assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    proxy.heal();
    exchange(&mut connect(&proxy).await, "again").await;
}

#[tokio::test]
async fn nobody_behind_it_looks_like_a_reset() {
    let proxy = Proxy::start(crate::nodes::lasting_address(), 1).await;
    let mut stream = connect(&proxy).await;
    assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}
