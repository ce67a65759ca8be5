//! Handshake between the nodes of a group. Each node connects to the leader, and both prove knowledge of the
//! group's secret. The leader admits a node with the same version, model and settings. A node takes settings
//! missing from its command line from the leader.
//!
//! ```text
//! node   → Hello      its version, model and settings, a nonce
//! leader → Challenge  a nonce, HMAC-SHA256 of the secret over both
//! node   → Proof      HMAC-SHA256 of the secret over both and the hello
//! leader → Welcome, or Refused with the reason
//! ```
//!
//! Traffic is not encrypted: groups belong on trusted networks.

use std::io::Read;
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use ring::hmac;
use serde::{Deserialize, Serialize};
use skein_node::clock;

use super::wire::{Incoming, Kind, Outgoing, WireError, split};
use crate::config::Setting;

/// How long the leader waits for all nodes, and a node for its leader.
pub const NODES_TIMEOUT: Duration = Duration::from_secs(600);
/// Limit for each message of a handshake.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two log lines about missing nodes.
const LOG_INTERVAL: Duration = Duration::from_secs(30);
/// Size of a nonce, in bytes.
const NONCE: usize = 32;

/// Introduction of a node to its leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Number of the node, from 0.
    pub node: usize,
    /// Number of nodes in its settings.
    pub nodes: usize,
    /// Version of the binary.
    pub version: String,
    /// Fingerprint of the model's files.
    pub model: u64,
    /// Settings that must be equal on all nodes.
    pub settings: Vec<Setting>,
    /// Random bytes that make the handshake unrepeatable.
    pub nonce: Vec<u8>,
}

impl Hello {
    /// Introduction with a new nonce.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn new(node: usize, nodes: usize, model: u64, settings: Vec<Setting>) -> std::io::Result<Self> {
        let version = env!("CARGO_PKG_VERSION").into();
        Ok(Self { node, nodes, version, model, settings, nonce: random::<NONCE>()?.to_vec() })
    }

    /// Why this node may not join `leader`, with both values; `None` if it may.
    fn refusal(&self, leader: &Self) -> Option<String> {
        let node = self.node;
        let facts = [
            ("version", self.version.clone(), leader.version.clone()),
            ("number of --nnodes", self.nodes.to_string(), leader.nodes.to_string()),
            ("model", format!("{:016x}", self.model), format!("{:016x}", leader.model)),
        ];
        if let Some((what, its, own)) = facts.into_iter().find(|(_, its, own)| its != own) {
            return Some(format!(
                "node {node} has the {what} {its}, node 0 has {own}; all nodes need the same"
            ));
        }
        if node == 0 || node >= leader.nodes {
            return Some(format!("there is no node {node} for it: --node-rank is 1 to {}", leader.nodes - 1));
        }
        self.settings.iter().filter(|setting| setting.is_given).find_map(|its| {
            let own = leader.settings.iter().find(|own| own.name == its.name)?;
            (own.value != its.value).then(|| {
                format!(
                    "node {node} has --{} {}, node 0 has {}; leave it out on node {node}, or set it equally on all nodes",
                    its.name, its.shown, own.shown
                )
            })
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Challenge {
    nonce: Vec<u8>,
    proof: Vec<u8>,
}

/// Random bytes from the system.
///
/// # Errors
/// If the system has none.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Bytes that a side signs: its role, the hello and the nonces.
fn signed(side: &str, hello: &Hello, nonce: &[u8]) -> Vec<u8> {
    let hello = serde_json::to_vec(hello).unwrap_or_default();
    [side.as_bytes(), nonce, &hello].concat()
}

/// Connection to a node that has joined.
#[derive(Debug)]
pub struct Joined {
    /// Number of the node.
    pub node: usize,
    /// Receiving side of the connection.
    pub incoming: Incoming,
    /// Sending side of the connection.
    pub outgoing: Outgoing,
    /// Address at which other nodes reach it.
    pub address: IpAddr,
    /// This node's address on the connection.
    pub own_address: IpAddr,
}

/// Waits until all nodes except the leader have joined; returns them in order.
///
/// # Errors
/// If the address is unusable, or nodes are missing for too long.
pub fn gather(listener: &TcpListener, own: &Hello, secret: &str) -> Result<Vec<Joined>, String> {
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let (began, mut said) = (clock::now(), clock::now());
    let mut joined: Vec<Option<Joined>> = (1..own.nodes).map(|_| None).collect();
    while let Some(missing) = joined.iter().position(Option::is_none) {
        match listener.accept() {
            Ok((stream, from)) => match meet(stream, own, secret) {
                Ok(node) => {
                    tracing::info!(node = node.node, %from, "a node joined");
                    let index = node.node - 1;
                    joined[index] = Some(node); // an earlier one has lost its connection
                }
                Err(why) => tracing::error!(%from, "refused a node: {why}"),
            },
            Err(_) => std::thread::sleep(RETRY_INTERVAL / 10),
        }
        let node = missing + 1;
        if clock::now().since(began) > NODES_TIMEOUT {
            return Err(format!("node {node} did not join within {} s", NODES_TIMEOUT.as_secs()));
        }
        if clock::now().since(said) > LOG_INTERVAL {
            said = clock::now();
            tracing::warn!(node, "waiting for node {node}: start it with --node-rank {node}");
        }
    }
    Ok(joined.into_iter().flatten().collect())
}

fn next(incoming: &mut Incoming, kind: Kind) -> Result<Vec<u8>, String> {
    match incoming.receive(MESSAGE_TIMEOUT) {
        Ok(Some((got, message))) if got == kind => Ok(message),
        Ok(Some((Kind::Refused, why))) => Err(String::from_utf8_lossy(&why).into_owned()),
        Ok(Some((got, _))) => Err(format!("it sent {got:?} instead of {kind:?}")),
        Ok(None) => Err(format!("it sent nothing for {} s", MESSAGE_TIMEOUT.as_secs())),
        Err(error) => Err(error.to_string()),
    }
}

fn parsed<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(message)
        .map_err(|error| format!("it sent a message that this version cannot read: {error}"))
}

/// Leader's side of a handshake.
fn meet(stream: TcpStream, own: &Hello, secret: &str) -> Result<Joined, String> {
    let own_address = stream.local_addr().map_err(|error| error.to_string())?.ip();
    let (mut incoming, mut outgoing) = split(stream).map_err(|error| error.to_string())?;
    let address = incoming.peer().map_err(|error| error.to_string())?.ip();
    let hello: Hello = parsed(&next(&mut incoming, Kind::Hello)?)?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let nonce = random::<NONCE>().map_err(|error| error.to_string())?.to_vec();
    let proof = hmac::sign(&key, &signed("leader", &hello, &nonce)).as_ref().to_vec();
    let challenge = serde_json::to_vec(&Challenge { nonce: nonce.clone(), proof }).unwrap_or_default();
    outgoing.send(Kind::Challenge, &challenge).map_err(|error| error.to_string())?;
    let proof = next(&mut incoming, Kind::Proof)?;
    let refusal = match hmac::verify(&key, &signed("node", &hello, &nonce), &proof) {
        Err(_) => Some(format!("node {} has a different --group-secret than node 0", hello.node)),
        Ok(()) => hello.refusal(own),
    };
    if let Some(why) = refusal {
        // Fails if the node is gone.
        let _ = outgoing.send(Kind::Refused, why.as_bytes());
        return Err(why);
    }
    incoming.allow_long_messages();
    Ok(Joined { node: hello.node, incoming, outgoing, address, own_address })
}

/// Why a node did not join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotJoined {
    /// The leader refused it; a retry would not help.
    Refused(String),
    /// The leader cannot be reached, or the connection broke.
    Lost(String),
}

/// Connects to the leader and joins its group; returns the connection and the welcome.
///
/// # Errors
/// If the leader refuses, or is unreachable for too long.
pub fn join(
    leader: &str,
    own: &Hello,
    secret: &str,
) -> Result<(Incoming, Outgoing, IpAddr, Vec<u8>), NotJoined> {
    let (began, mut said) = (clock::now(), None);
    let stream = loop {
        let error = match dial(leader) {
            Ok(stream) => break stream,
            Err(error) => error,
        };
        if clock::now().since(began) > NODES_TIMEOUT {
            return Err(NotJoined::Lost(format!("the leader at {leader} cannot be reached: {error}")));
        }
        if said.is_none_or(|said| clock::now().since(said) > LOG_INTERVAL) {
            said = Some(clock::now());
            tracing::warn!("waiting for the leader at {leader}: {error}");
        }
        std::thread::sleep(RETRY_INTERVAL);
    };
    greet(stream, leader, own, secret)
}

fn dial(leader: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in leader.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, MESSAGE_TIMEOUT) {
            // The socket connected to itself: nothing listens there, and the system chose that port for this
            // end.
            Ok(stream) if stream.local_addr()? == address => {}
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Node's side of a handshake.
fn greet(
    stream: TcpStream,
    leader: &str,
    own: &Hello,
    secret: &str,
) -> Result<(Incoming, Outgoing, IpAddr, Vec<u8>), NotJoined> {
    let lost =
        |why: String| NotJoined::Lost(format!("the leader at {leader} did not let this node join: {why}"));
    let io = |error: std::io::Error| lost(error.to_string());
    let own_address = stream.local_addr().map_err(io)?.ip();
    let (mut incoming, mut outgoing) = split(stream).map_err(io)?;
    outgoing.send(Kind::Hello, &serde_json::to_vec(own).unwrap_or_default()).map_err(io)?;
    let challenge: Challenge = parsed(&next(&mut incoming, Kind::Challenge).map_err(lost)?).map_err(lost)?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    if hmac::verify(&key, &signed("leader", own, &challenge.nonce), &challenge.proof).is_err() {
        let why = format!("node 0 at {leader} has a different --group-secret than node {}", own.node);
        let _ = outgoing.send(Kind::Refused, why.as_bytes());
        return Err(NotJoined::Refused(why));
    }
    let proof = hmac::sign(&key, &signed("node", own, &challenge.nonce));
    outgoing.send(Kind::Proof, proof.as_ref()).map_err(io)?;
    incoming.allow_long_messages();
    // The welcome is sent once all nodes have joined.
    let began = clock::now();
    loop {
        match incoming.receive(MESSAGE_TIMEOUT) {
            Ok(Some((Kind::Welcome, welcome))) => return Ok((incoming, outgoing, own_address, welcome)),
            Ok(Some((Kind::Refused, why))) => {
                return Err(NotJoined::Refused(String::from_utf8_lossy(&why).into_owned()));
            }
            Ok(Some((Kind::Heartbeat, _))) => {}
            Ok(Some((kind, _))) => return Err(lost(format!("it sent {kind:?} before its welcome"))),
            Ok(None) if clock::now().since(began) < NODES_TIMEOUT => {}
            Ok(None) => return Err(lost("it sent no welcome".into())),
            Err(WireError::Ended) => return Err(lost("it closed the connection".into())),
            Err(error) => return Err(lost(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: usize) -> Hello {
        let setting = |name: &str, value: &str| Setting {
            name: name.into(),
            value: value.into(),
            shown: value.into(),
            is_given: true,
        };
        Hello::new(node, 2, 7, vec![setting("block-size", "16"), setting("dtype", "auto")]).unwrap()
    }

    /// Outcome of a node's handshake and its duration.
    fn joining(node: &Hello, secret: &str) -> (Result<Vec<u8>, NotJoined>, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // The leader keeps waiting for a valid node; the thread ends with the test.
        std::thread::spawn(move || {
            let mut joined = gather(&listener, &hello(0), "secret").unwrap();
            joined[0].outgoing.send(Kind::Welcome, b"welcome").unwrap();
            std::thread::sleep(Duration::from_secs(20));
        });
        let began = clock::now();
        let outcome = join(&address, node, secret).map(|(_, _, _, welcome)| welcome);
        (outcome, clock::now().since(began))
    }

    #[test]
    fn a_node_with_the_same_secret_version_model_and_settings_joins() {
        assert_eq!(joining(&hello(1), "secret").0, Ok(b"welcome".to_vec()));
        let other_ungiven = Setting {
            name: "dtype".into(),
            value: "float32".into(),
            shown: "float32".into(),
            is_given: false,
        };
        let node = Hello { settings: vec![other_ungiven], ..hello(1) };
        assert_eq!(
            joining(&node, "secret").0,
            Ok(b"welcome".to_vec()),
            "what it was not given does not count"
        );
    }

    #[test]
    fn nodes_that_disagree_are_refused_within_a_second_with_both_named() {
        let given = |name: &str, value: &str| {
            vec![Setting { name: name.into(), value: value.into(), shown: value.into(), is_given: true }]
        };
        for (node, secret, expected) in [
            (
                Hello { version: "0.0.1".into(), ..hello(1) },
                "secret",
                ["node 1 has the version 0.0.1", "node 0 has"],
            ),
            (
                Hello { model: 9, ..hello(1) },
                "secret",
                ["node 1 has the model 0000000000000009", "node 0 has 0000000000000007"],
            ),
            (
                Hello { nodes: 3, ..hello(1) },
                "secret",
                ["node 1 has the number of --nnodes 3", "node 0 has 2"],
            ),
            (hello(5), "secret", ["there is no node 5", "--node-rank is 1 to 1"]),
            (hello(0), "secret", ["there is no node 0", "--node-rank is 1 to 1"]),
            (
                Hello { settings: given("block-size", "32"), ..hello(1) },
                "secret",
                ["node 1 has --block-size 32", "node 0 has 16"],
            ),
            (hello(1), "guess", ["node 0 at", "a different --group-secret than node 1"]),
        ] {
            let (outcome, took) = joining(&node, secret);
            let Err(NotJoined::Refused(why)) = outcome else { panic!("{outcome:?}") };
            assert!(expected.iter().all(|expected| why.contains(expected)), "{why}");
            assert!(took < Duration::from_secs(1), "{took:?}: {why}");
        }
    }

    #[test]
    fn a_node_that_does_not_know_the_secret_cannot_pass_for_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut incoming, mut outgoing) = split(stream).unwrap();
        outgoing.send(Kind::Hello, &serde_json::to_vec(&hello(1)).unwrap()).unwrap();
        outgoing.send(Kind::Proof, &[0; 32]).unwrap();
        let refused = meet(listener.accept().unwrap().0, &hello(0), "secret").unwrap_err();
        assert_eq!(refused, "node 1 has a different --group-secret than node 0");
        assert_eq!(incoming.receive(MESSAGE_TIMEOUT).unwrap().unwrap().0, Kind::Challenge);
        assert_eq!(incoming.receive(MESSAGE_TIMEOUT).unwrap().unwrap().0, Kind::Refused);
    }
}
