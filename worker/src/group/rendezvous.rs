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
//! If the nodes have certificates of the cluster, all of it happens within mutual TLS, and so does what
//! follows. Without them traffic is not encrypted: such groups belong on trusted networks.

use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use ring::hmac;
use skein_node::clock;
use skein_tls::ClusterTls;

use super::connection::Connection;
use super::doorway::Doorway;
use super::hello::{Challenge, Hello, parsed, signed};
use super::stranger::{Joined, Stranger};
use super::wire::{Incoming, Kind, Outgoing, WireError, split};
use crate::config::GroupSecret;

/// How long the leader waits for all nodes, and a node for its leader.
pub const NODES_TIMEOUT: Duration = Duration::from_secs(600);
/// Limit for a whole handshake, at the leader.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(4);
/// Interval between two looks at all handshakes.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Most connections accepted between two looks.
const MAX_ACCEPTED: usize = 64;
/// Limit for each message that a node waits for.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two log lines about missing nodes.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Waits until all nodes except the leader have joined; returns them in order. All handshakes run at once.
///
/// # Errors
/// If the address is unusable, or nodes are missing for too long.
pub fn gather(listener: &TcpListener, own: &Hello, lock: &Lock) -> Result<Vec<Joined>, String> {
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let (began, mut said) = (clock::now(), clock::now());
    let mut door = Door::new(lock);
    let mut joined: Vec<Option<Joined>> = (1..own.nodes).map(|_| None).collect();
    while let Some(missing) = joined.iter().position(Option::is_none) {
        door.accept(listener);
        for node in door.nodes(own) {
            let index = node.node - 1;
            joined[index] = Some(node); // an earlier one has lost its connection
        }
        std::thread::sleep(LOOK_INTERVAL);
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

/// What proves that a process is a node of this group.
#[derive(Debug, Clone, Default)]
pub struct Lock {
    /// Secret of the group; may be empty if there is `tls`.
    pub secret: GroupSecret,
    /// This node's certificate.
    pub tls: Option<ClusterTls>,
}

impl Lock {
    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.secret.0.as_bytes())
    }
}

/// The leader's open handshakes.
struct Door<'a> {
    lock: &'a Lock,
    key: hmac::Key,
    strangers: Doorway<Stranger>,
}

impl<'a> Door<'a> {
    fn new(lock: &'a Lock) -> Self {
        Self { lock, key: lock.key(), strangers: Doorway::new(HANDSHAKE_TIMEOUT) }
    }

    /// Takes new connections.
    fn accept(&mut self, listener: &TcpListener) {
        for _ in 0..MAX_ACCEPTED {
            let Ok((stream, from)) = listener.accept() else { break };
            let stranger = Stranger::new(stream, from, self.lock.tls.as_ref());
            let left = stranger.map(|new| self.strangers.enter(new, clock::now()));
            if let Ok(Some(stranger)) = left {
                tracing::debug!(from = %stranger.from, "closed the handshake that has waited longest");
            }
        }
    }

    /// Nodes whose handshakes have succeeded.
    fn nodes(&mut self, own: &Hello) -> Vec<Joined> {
        let key = &self.key;
        let hear = |stranger: &mut Stranger| match stranger.hear(own, key) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(why) => Some(Err(why)),
        };
        let late = || Err(format!("it took longer than {} s", HANDSHAKE_TIMEOUT.as_secs()));
        let heard = self.strangers.hear(clock::now(), hear, late);
        heard.into_iter().filter_map(|(stranger, verdict)| admitted(stranger, verdict)).collect()
    }
}

fn admitted(stranger: Stranger, verdict: Result<(), String>) -> Option<Joined> {
    let (from, has_spoken) = (stranger.from, stranger.has_spoken());
    match verdict.and_then(|()| stranger.join()) {
        Ok(node) => {
            tracing::info!(node = node.node, %from, "a node joined");
            Some(node)
        }
        Err(why) if has_spoken => {
            tracing::error!(%from, "refused a node: {why}");
            None
        }
        // A port scan is no event.
        Err(why) => {
            tracing::debug!(%from, "closed a connection that is not a node's: {why}");
            None
        }
    }
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
    lock: &Lock,
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
    greet(stream, leader, own, lock)
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
    lock: &Lock,
) -> Result<(Incoming, Outgoing, IpAddr, Vec<u8>), NotJoined> {
    let lost =
        |why: String| NotJoined::Lost(format!("the leader at {leader} did not let this node join: {why}"));
    let io = |error: std::io::Error| lost(error.to_string());
    let own_address = stream.local_addr().map_err(io)?.ip();
    let stream = Connection::dialled(stream, lock.tls.as_ref()).map_err(|error| lost(error.to_string()))?;
    let (mut incoming, mut outgoing) = split(stream).map_err(io)?;
    outgoing.send(Kind::Hello, &serde_json::to_vec(own).unwrap_or_default()).map_err(io)?;
    let challenge: Challenge = parsed(&next(&mut incoming, Kind::Challenge).map_err(lost)?).map_err(lost)?;
    let key = lock.key();
    if hmac::verify(&key, &signed("leader", own, &challenge.nonce), &challenge.proof).is_err() {
        let why = format!(
            "node 0 at {leader} has a different --group-secret or cluster secret than node {}",
            own.node
        );
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
    use std::io::Write;

    use super::*;
    use crate::config::Setting;

    fn hello(node: usize) -> Hello {
        let setting = |name: &str, value: &str| Setting {
            name: name.into(),
            value: value.into(),
            shown: value.into(),
            is_given: true,
        };
        Hello::new(node, 2, 7, vec![setting("block-size", "16"), setting("dtype", "auto")]).unwrap()
    }

    fn lock(secret: &str) -> Lock {
        Lock { secret: GroupSecret(secret.into()), tls: None }
    }

    /// Outcome of a node's handshake and its duration.
    fn joining(node: &Hello, secret: &str) -> (Result<Vec<u8>, NotJoined>, Duration) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // The leader keeps waiting for a valid node; the thread ends with the test.
        std::thread::spawn(move || {
            let mut joined = gather(&listener, &hello(0), &lock("secret")).unwrap();
            joined[0].outgoing.send(Kind::Welcome, b"welcome").unwrap();
            std::thread::sleep(Duration::from_secs(20));
        });
        let began = clock::now();
        let outcome = join(&address, node, &lock(secret)).map(|(_, _, _, welcome)| welcome);
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
            (hello(1), "guess", ["node 0 at", "a different --group-secret or cluster secret than node 1"]),
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
        let (mut incoming, mut outgoing) = split(Connection::Plain(stream)).unwrap();
        outgoing.send(Kind::Hello, &serde_json::to_vec(&hello(1)).unwrap()).unwrap();
        outgoing.send(Kind::Proof, &[0; 32]).unwrap();
        let (stream, from) = listener.accept().unwrap();
        let mut stranger = Stranger::new(stream, from, None).unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
        let refused = loop {
            match stranger.hear(&hello(0), &key) {
                Ok(joined) => assert!(!joined),
                Err(why) => break why,
            }
        };
        assert_eq!(refused, "node 1 has a different --group-secret or cluster secret than node 0");
        assert_eq!(incoming.receive(MESSAGE_TIMEOUT).unwrap().unwrap().0, Kind::Challenge);
        assert_eq!(incoming.receive(MESSAGE_TIMEOUT).unwrap().unwrap().0, Kind::Refused);
    }

    /// Silent connections, and such as stop in the middle of what they say, before, among and after the
    /// node's.
    #[test]
    fn a_node_joins_beside_many_connections_that_say_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let half = |begun: &[u8]| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(begun).unwrap();
            stream
        };
        let begun = [&b""[..], &[1, 0, 0, 0], &[1, 0, 0, 0, 0, 1, 0, 0, b'{']];
        let silent: Vec<_> = (0..90).map(|at| half(begun[at % 3])).collect();
        let node =
            std::thread::spawn(move || join(&address.to_string(), &hello(1), &lock("secret")).map(|it| it.3));
        let mut joined = gather(&listener, &hello(0), &lock("secret")).unwrap();
        joined[0].outgoing.send(Kind::Welcome, b"welcome").unwrap();
        // It would have given up after `MESSAGE_TIMEOUT` without a challenge.
        assert_eq!(node.join().unwrap(), Ok(b"welcome".to_vec()));
        drop(silent);
    }
}
