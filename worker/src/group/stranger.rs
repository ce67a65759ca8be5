//! Leader's side of one handshake, which never waits: it hears what has arrived.

use std::net::{IpAddr, SocketAddr, TcpStream};

use ring::hmac;
use skein_tls::ClusterTls;

use super::connection::Connection;
use super::hello::{Challenge, Hello, NONCE, parsed, random, signed};
use super::wire::{Incoming, Kind, Outgoing, split};

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

/// A connection that is not known to be a node's.
#[derive(Debug)]
pub struct Stranger {
    /// Where it comes from.
    pub from: SocketAddr,
    own_address: IpAddr,
    incoming: Incoming,
    outgoing: Outgoing,
    claim: Option<Claim>,
}

/// What it says it is, and the nonce of the challenge to prove that.
#[derive(Debug)]
struct Claim {
    hello: Hello,
    nonce: Vec<u8>,
}

impl Stranger {
    /// A new connection, over which the other end must shake hands for `tls` first.
    ///
    /// # Errors
    /// If the socket cannot be configured.
    pub fn new(stream: TcpStream, from: SocketAddr, tls: Option<&ClusterTls>) -> std::io::Result<Self> {
        let own_address = stream.local_addr()?.ip();
        let (incoming, outgoing) = split(Connection::accepted(stream, tls)?)?;
        incoming.set_nonblocking(true)?;
        Ok(Self { from, own_address, incoming, outgoing, claim: None })
    }

    /// Whether it has introduced itself.
    pub fn has_spoken(&self) -> bool {
        self.claim.is_some()
    }

    /// Takes part in the handshake as far as messages have arrived; returns whether it proved that it may
    /// join the group of `own`.
    ///
    /// # Errors
    /// Why it may not.
    pub fn hear(&mut self, own: &Hello, key: &hmac::Key) -> Result<bool, String> {
        while let Some((kind, message)) = self.incoming.arrived().map_err(|error| error.to_string())? {
            match (kind, &self.claim) {
                (Kind::Hello, None) => self.challenge(&message, key)?,
                (Kind::Proof, Some(claim)) => match claim.refusal(&message, own, key) {
                    Some(why) => {
                        // Fails if the node is gone.
                        let _ = self.outgoing.send(Kind::Refused, why.as_bytes());
                        return Err(why);
                    }
                    None => return Ok(true),
                },
                (Kind::Refused, _) => return Err(String::from_utf8_lossy(&message).into_owned()),
                (kind, claim) => {
                    let expected = if claim.is_some() { Kind::Proof } else { Kind::Hello };
                    return Err(format!("it sent {kind:?} instead of {expected:?}"));
                }
            }
        }
        Ok(false)
    }

    fn challenge(&mut self, hello: &[u8], key: &hmac::Key) -> Result<(), String> {
        let hello: Hello = parsed(hello)?;
        let nonce = random::<NONCE>().map_err(|error| error.to_string())?.to_vec();
        let proof = hmac::sign(key, &signed("leader", &hello, &nonce)).as_ref().to_vec();
        let challenge = serde_json::to_vec(&Challenge { nonce: nonce.clone(), proof }).unwrap_or_default();
        self.outgoing.send(Kind::Challenge, &challenge).map_err(|error| error.to_string())?;
        self.claim = Some(Claim { hello, nonce });
        Ok(())
    }

    /// The node that it proved to be.
    ///
    /// # Errors
    /// If it has not, or its connection broke.
    pub fn join(mut self) -> Result<Joined, String> {
        let node = self.claim.ok_or("it did not introduce itself")?.hello.node;
        self.incoming.set_nonblocking(false).map_err(|error| error.to_string())?;
        self.incoming.allow_long_messages();
        let Self { from, own_address, incoming, outgoing, .. } = self;
        Ok(Joined { node, incoming, outgoing, address: from.ip(), own_address })
    }
}

impl Claim {
    /// Why a node with this proof may not join; `None` if it may.
    fn refusal(&self, proof: &[u8], own: &Hello, key: &hmac::Key) -> Option<String> {
        match hmac::verify(key, &signed("node", &self.hello, &self.nonce), proof) {
            Err(_) => Some(format!(
                "node {} has a different --group-secret or cluster secret than node 0",
                self.hello.node
            )),
            Ok(()) => self.hello.refusal(own),
        }
    }
}
