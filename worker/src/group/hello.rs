//! What the two sides of a handshake say and sign. Pure, but for random bytes.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::config::Setting;

/// Size of a nonce, in bytes.
pub const NONCE: usize = 32;

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
    pub fn refusal(&self, leader: &Self) -> Option<String> {
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

/// The leader's answer to a [`Hello`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Challenge {
    /// Random bytes that make the handshake unrepeatable.
    pub nonce: Vec<u8>,
    /// HMAC-SHA256 of the secret over both nonces and the hello.
    pub proof: Vec<u8>,
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
pub fn signed(side: &str, hello: &Hello, nonce: &[u8]) -> Vec<u8> {
    let hello = serde_json::to_vec(hello).unwrap_or_default();
    [side.as_bytes(), nonce, &hello].concat()
}

/// A message of a handshake.
///
/// # Errors
/// If it is from another version.
pub fn parsed<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(message)
        .map_err(|error| format!("it sent a message that this version cannot read: {error}"))
}
