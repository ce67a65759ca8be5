//! Connections of threads that block, over loopback.

#![allow(clippy::disallowed_methods)] // limits of waits for the network, in real time

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use skein_tls::{ClientFiles, ClientTls, ClusterFiles, ClusterTls, IdentityFiles, TlsSocket};

use super::pki::{Dates, Pair, Pki};

const LONG: Duration = Duration::from_secs(20);
/// More than the buffers of both sockets hold.
const MANY: usize = 16 << 20;

fn node(pki: &Pki, pair: &Pair) -> ClusterTls {
    let identity = IdentityFiles { cert: pair.cert.clone(), key: pair.key.clone() };
    ClusterTls::read(&ClusterFiles { ca: pki.ca(), identity }).unwrap()
}

fn sockets() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [one, listener.accept().unwrap().0]
}

/// Both ends of an encrypted connection between two nodes: the one that connected, and the other.
fn connection(pki: &Pki) -> [TlsSocket; 2] {
    let [from, to] = sockets();
    let mut accepted = node(pki, &pki.node("b")).accept_blocking(to).unwrap();
    let dialling = node(pki, &pki.node("a"));
    let dialled = thread::spawn(move || {
        let mut dialled = dialling.connect_blocking(from, LONG).unwrap();
        dialled.write_all(b"!").unwrap();
        dialled.flush().unwrap();
        dialled
    });
    accepted.read_exact(&mut [0]).unwrap();
    [dialled.join().unwrap(), accepted]
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..MANY).map(|at| (at * seed % 251) as u8).collect()
}

#[test]
fn both_ends_write_and_read_at_the_same_time_whole_and_in_order() {
    let pki = Pki::new();
    let ends = connection(&pki);
    let threads: Vec<_> = ends
        .into_iter()
        .zip([(7, 11), (11, 7)])
        .flat_map(|(end, (sends, expects))| {
            let (mut writer, mut reader) = (end.clone(), end);
            let write = thread::spawn(move || {
                pattern(sends).chunks(100_003).for_each(|chunk| writer.write_all(chunk).unwrap());
                writer.flush().unwrap();
            });
            let read = thread::spawn(move || {
                let mut got = vec![0; MANY];
                reader.read_exact(&mut got).unwrap();
                assert!(got == pattern(expects));
            });
            [write, read]
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_connection_that_does_not_block_takes_what_fits_and_shakes_hands_within_reads() {
    let pki = Pki::new();
    let [from, to] = sockets();
    to.set_nonblocking(true).unwrap();
    let mut accepted = node(&pki, &pki.node("b")).accept_blocking(to).unwrap();
    let nothing = accepted.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock, "the other end has said nothing yet");
    let dialling = node(&pki, &pki.node("a"));
    let dialled = thread::spawn(move || {
        let mut dialled = dialling.connect_blocking(from, LONG).unwrap();
        dialled.write_all(b"hello").unwrap();
        dialled.flush().unwrap();
        dialled
    });
    let (began, mut got) = (Instant::now(), Vec::new());
    while got.len() < 5 {
        assert!(began.elapsed() < LONG);
        let mut room = [0; 64];
        match accepted.read(&mut room) {
            Ok(read) => got.extend_from_slice(&room[..read]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert_eq!(got, b"hello");
    let mut reader = dialled.join().unwrap();
    // Nobody reads: at some point the socket is full, and no byte is taken twice or lost.
    let (sent, mut taken) = (pattern(7), 0);
    loop {
        match accepted.write(&sent[taken..]) {
            Ok(more) => taken += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(taken < MANY);
    let reading = thread::spawn(move || {
        let mut got = vec![0; taken];
        reader.read_exact(&mut got).unwrap();
        got
    });
    while accepted.flush().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        thread::yield_now();
    }
    assert!(reading.join().unwrap() == sent[..taken]);
}

#[test]
fn only_nodes_of_the_cluster_are_heard() {
    let (pki, other) = (Pki::new(), Pki::new());
    let served = node(&pki, &pki.node("b"));
    // What the accepting end reads from a client.
    let heard = |speak: &(dyn Fn(TcpStream) + Sync)| {
        let [from, to] = sockets();
        thread::scope(|scope| {
            scope.spawn(|| speak(from));
            let mut got = Vec::new();
            let mut accepted = served.accept_blocking(to).unwrap();
            accepted.read_to_end(&mut got).map(|_| got).map_err(|error| error.to_string())
        })
    };
    let as_node = |client: &ClusterTls, from| {
        if let Ok(mut dialled) = client.connect_blocking(from, LONG) {
            let _ = dialled.write_all(b"hello").and_then(|()| dialled.flush());
            let _ = dialled.read(&mut [0; 8]);
        }
    };
    let friend = node(&pki, &pki.node("a"));
    assert_eq!(
        heard(&|from| {
            let mut dialled = friend.connect_blocking(from, LONG).unwrap();
            dialled.write_all(b"hello").and_then(|()| dialled.flush()).unwrap();
        }),
        Ok(b"hello".to_vec())
    );
    let stranger = node(&other, &other.node("c"));
    assert!(heard(&|from| as_node(&stranger, from)).is_err());
    // Its client trusts the cluster, but its own certificate is another CA's.
    let pair = other.node("d");
    let identity = IdentityFiles { cert: pair.cert, key: pair.key };
    let mixed = ClientTls::read(&ClientFiles { ca: Some(pki.ca()), identity: Some(identity) }).unwrap();
    let mixed = ClusterTls { client: mixed, ..friend.clone() };
    let why = heard(&|from| as_node(&mixed, from)).unwrap_err();
    assert!(why.contains("invalid peer certificate"), "{why}");
    let nameless = pki.issue("e", &["localhost"], Dates::Always);
    let identity = IdentityFiles { cert: nameless.cert, key: nameless.key };
    let shown = ClientTls::read(&ClientFiles { ca: Some(pki.ca()), identity: Some(identity) }).unwrap();
    let named_otherwise = ClusterTls { client: shown, ..friend.clone() };
    let why = heard(&|from| as_node(&named_otherwise, from)).unwrap_err();
    assert!(why.contains("not valid for name"), "{why}");
    let bare = ClusterTls {
        client: ClientTls::read(&ClientFiles { ca: Some(pki.ca()), identity: None }).unwrap(),
        ..friend.clone()
    };
    assert!(heard(&|from| as_node(&bare, from)).is_err());
    assert!(heard(&|mut from| from.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap()).is_err());
}

#[test]
fn a_node_does_not_speak_to_a_server_of_another_cluster_or_one_that_is_silent() {
    let (pki, other) = (Pki::new(), Pki::new());
    let client = node(&pki, &pki.node("a"));
    let [from, to] = sockets();
    let served = node(&other, &other.node("b"));
    let serving = thread::spawn(move || served.accept_blocking(to).unwrap().read(&mut [0]));
    let why = client.connect_blocking(from, LONG).unwrap_err().to_string();
    assert!(why.contains("no trusted CA has issued the peer's certificate"), "{why}");
    assert!(serving.join().unwrap().is_err());
    let [from, _to] = sockets();
    let began = Instant::now();
    assert!(client.connect_blocking(from, Duration::from_millis(100)).is_err());
    assert!(began.elapsed() < LONG);
}
