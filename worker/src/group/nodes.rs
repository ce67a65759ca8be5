//! Leader's side of a group over several nodes: messages to and from the processes on the other nodes.

use std::net::IpAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_node::clock;

use super::heartbeat::{HEARTBEAT_INTERVAL, Heartbeats};
use super::processes::Answer;
use super::stranger::Joined;
use super::watch::Watch;
use super::wire::{Incoming, Kind, Outgoing};

/// Time to tell all nodes why the group ends.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(100);

/// Connections to the other nodes of a group, in order.
pub struct Nodes {
    nodes: Vec<Node>,
}

struct Node {
    node: usize,
    address: IpAddr,
    outgoing: Mutex<Outgoing>,
}

/// Why the group ends; sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Rank that caused the end.
    pub rank: usize,
    /// Reason, for logs.
    pub why: String,
}

/// Answer of a rank, relayed by its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankAnswer {
    /// Rank that sent the answer.
    pub rank: usize,
    /// Content of the answer.
    pub answer: Answer,
}

impl Nodes {
    /// Receives from the nodes in `joined` and sends them heartbeats, on its own threads, until the group
    /// ends. `each` is the number of ranks per node.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        joined: Vec<Joined>,
        each: usize,
        watch: &Watch,
        answers: &SyncSender<(usize, Answer)>,
    ) -> std::io::Result<Arc<Self>> {
        let (mut nodes, mut incoming) = (Vec::new(), Vec::new());
        for Joined { node, incoming: from, outgoing, address, .. } in joined {
            nodes.push(Node { node, address, outgoing: Mutex::new(outgoing) });
            incoming.push(from);
        }
        let nodes = Arc::new(Self { nodes });
        for (index, incoming) in incoming.into_iter().enumerate() {
            let (watch, answers, nodes) = (watch.clone(), answers.clone(), Arc::clone(&nodes));
            let name = format!("skein-node-{}", nodes.nodes[index].node);
            let listen = move || nodes.nodes[index].listen(incoming, each, &watch, &answers);
            std::thread::Builder::new().name(name).spawn(listen)?;
        }
        let (beating, watched) = (Arc::clone(&nodes), watch.clone());
        let beat = move || {
            while !watched.is_over() {
                beating.nodes.iter().for_each(|node| drop(node.lock().send(Kind::Heartbeat, &[])));
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        };
        std::thread::Builder::new().name("skein-nodes".into()).spawn(beat)?;
        let ending = Arc::clone(&nodes);
        watch.also(move |rank, why| ending.end(rank, why));
        Ok(nodes)
    }

    /// Address of each node, in order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.nodes.iter().map(|node| node.address)
    }

    /// Name of each node, in order.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(Node::name)
    }

    /// Sends a message to `node`.
    ///
    /// # Errors
    /// If the connection fails; names the node.
    pub fn send_to(&self, node: usize, kind: Kind, message: &[u8]) -> Result<(), String> {
        self.nodes[node - 1].send(|outgoing| outgoing.send(kind, message))
    }

    /// Sends a message to every node.
    ///
    /// # Errors
    /// If a connection fails; names the first such node.
    pub fn send(&self, kind: Kind, message: &[u8]) -> Result<(), String> {
        self.nodes.iter().try_for_each(|node| node.send(|outgoing| outgoing.send(kind, message)))
    }

    /// Sends a frame to every node.
    ///
    /// # Errors
    /// If a connection fails; names the first such node.
    pub fn send_words(&self, words: &[u32]) -> Result<(), String> {
        self.nodes.iter().try_for_each(|node| node.send(|outgoing| outgoing.send_words(words)))
    }

    /// Announces the group's end to all nodes, and closes the connections.
    fn end(&self, rank: usize, why: &str) {
        let ending = serde_json::to_vec(&Ending { rank, why: why.to_owned() }).unwrap_or_default();
        let began = clock::now();
        for node in &self.nodes {
            // Another thread sends a heartbeat, or is blocked in a write because the node does not read: then
            // the node gets no notice, and sees its connection close.
            loop {
                if let Ok(mut outgoing) = node.outgoing.try_lock() {
                    outgoing.send_last(Kind::End, &ending);
                    break;
                }
                if clock::now().since(began) > NOTICE_TIMEOUT {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Node {
    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self) -> String {
        format!("node {} at {}", self.node, self.address)
    }

    fn send(&self, send: impl FnOnce(&mut Outgoing) -> std::io::Result<()>) -> Result<(), String> {
        send(&mut self.lock()).map_err(|error| format!("{} cannot be reached: {error}", self.name()))
    }

    fn listen(
        &self,
        mut incoming: Incoming,
        each: usize,
        watch: &Watch,
        answers: &SyncSender<(usize, Answer)>,
    ) {
        let first = self.node * each;
        let (mut heartbeats, mut beats) = (Heartbeats::new(1, clock::now()), 0);
        while !watch.is_over() {
            match incoming.receive(HEARTBEAT_INTERVAL) {
                Ok(Some((Kind::Heartbeat, _))) => beats += 1,
                Ok(Some((Kind::Answer, message))) => match serde_json::from_slice::<RankAnswer>(&message) {
                    Ok(RankAnswer { rank, answer }) => drop(answers.try_send((rank, answer))),
                    Err(error) => drop(watch.fail_because_of(first, format!("{} says {error}", self.name()))),
                },
                Ok(Some((Kind::End, message))) => {
                    let ending = serde_json::from_slice(&message);
                    let Ending { rank, why } =
                        ending.unwrap_or(Ending { rank: first, why: "its ranks ended".into() });
                    watch.fail_because_of(rank, format!("{}: {why}", self.name()));
                }
                Ok(Some((kind, _))) => {
                    tracing::debug!(node = self.node, ?kind, "ignored an unexpected message")
                }
                Ok(None) => {}
                Err(error) => {
                    drop(watch.fail_because_of(first, format!("{} has ended: {error}", self.name())))
                }
            }
            if let Some((_, silent)) = heartbeats.overdue(clock::now(), std::iter::once(beats)) {
                let ms = silent.as_millis();
                watch.fail_because_of(first, format!("{} has been silent for {ms} ms", self.name()));
            }
        }
    }
}
