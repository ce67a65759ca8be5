//! Connects a rank to its peers: through shared memory on its node, and over TCP or TLS to each peer on
//! another node.
//!
//! Every rank listens before it joins. Once all have joined, each receives the addresses of all. Of two
//! peers, the rank with the higher number connects to the other.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_kernels::collective::link::{Inlet, Outlet, RingInlet, RingOutlet, StreamInlet, StreamOutlet};
use skein_kernels::collective::{Closer, Grid, Ranks, Shared, Sockets, Stream};
use skein_node::clock;
use skein_tls::ClusterTls;

use super::connection::Connection;
use super::doorway::Doorway;
use super::memory::GroupMemory;
use super::topology::Topology;
use crate::backend::Connections;

/// Limit for setting up all connections of a rank.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for the greeting on a new connection.
const GREETING_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two checks for new connections.
const POLL: Duration = Duration::from_millis(2);
/// Size of a token, in bytes.
pub const TOKEN_BYTES: usize = 16;

/// Addresses of the ranks, sent to each once all have joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// Address of each rank, in order.
    pub addresses: Vec<SocketAddr>,
    /// Token with which a connection must begin; random per start of the group.
    pub token: [u8; TOKEN_BYTES],
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Steps = 1,
    Reports = 2,
    Link = 3,
}

type Streams = BTreeMap<(usize, Purpose), Connection>;

/// A rank with all its connections.
pub struct Member {
    /// Connections used within steps.
    pub connections: Connections,
    /// Exchange of reports; only in the last stage.
    pub reports: Option<Box<dyn Ranks>>,
    /// Aborts its waits on other nodes.
    pub closer: Closer,
}

/// Listens for ranks on other nodes; `None` if there is only one node.
///
/// # Errors
/// If the system has no free port.
pub fn listen(topology: &Topology, at: IpAddr) -> std::io::Result<Option<TcpListener>> {
    if topology.nodes == 1 {
        return Ok(None);
    }
    let listener = TcpListener::bind((at, 0))?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// Connects `rank` to its peers. `peers` is required if there are several nodes, and `tls` encrypts the
/// connections between them.
///
/// # Errors
/// If a rank cannot be reached or does not connect in time, or if the group ends first.
pub fn connect(
    memory: &GroupMemory,
    rank: usize,
    listener: Option<TcpListener>,
    peers: Option<&Peers>,
    tls: Option<&ClusterTls>,
) -> Result<Member, String> {
    let topology = memory.plan().topology;
    let wanted = wanted(&topology, rank);
    let mut streams = Streams::new();
    if let (Some(listener), Some(peers)) = (&listener, peers) {
        for &(peer, purpose) in wanted.iter().filter(|(peer, _)| *peer < rank) {
            let stream = dial((rank, peer), purpose, peers, tls).map_err(|error| {
                format!("rank {rank} cannot reach rank {peer} at {}: {error}", peers.addresses[peer])
            })?;
            streams.insert((peer, purpose), stream);
        }
        let listening = Listening { rank, memory, listener, peers, tls };
        listening.accept(&wanted, &mut streams)?;
    }
    let member = member(memory, rank, streams);
    member.map_err(|error| format!("rank {rank} cannot use its connections: {error}"))
}

/// Peers of `rank` on other nodes, and the purpose of each connection.
fn wanted(topology: &Topology, rank: usize) -> Vec<(usize, Purpose)> {
    let column = topology.column_of(rank);
    let others = column.into_iter().filter(|other| *other != rank);
    let reports = topology.stage_of(rank) + 1 == topology.stages;
    let exchanges = others.flat_map(|other| {
        [Some((other, Purpose::Steps)), reports.then_some((other, Purpose::Reports))].into_iter().flatten()
    });
    let neighbours = [topology.before(rank), topology.after(rank)].into_iter().flatten();
    let links = neighbours.filter(|other| topology.node_of(*other) != topology.node_of(rank));
    exchanges.chain(links.map(|other| (other, Purpose::Link))).collect()
}

/// Size of a greeting, in bytes: token, rank and purpose.
const GREETING_BYTES: usize = TOKEN_BYTES + 8;

fn dial(
    (rank, peer): (usize, usize),
    purpose: Purpose,
    peers: &Peers,
    tls: Option<&ClusterTls>,
) -> Result<Connection, String> {
    let failed = |error: std::io::Error| error.to_string();
    let socket = TcpStream::connect_timeout(&peers.addresses[peer], CONNECT_TIMEOUT).map_err(failed)?;
    let mut stream = Connection::dialled(socket, tls).map_err(|error| error.to_string())?;
    let mut greeting = [0; GREETING_BYTES];
    greeting[..TOKEN_BYTES].copy_from_slice(&peers.token);
    greeting[TOKEN_BYTES..TOKEN_BYTES + 4].copy_from_slice(&(rank as u32).to_le_bytes());
    greeting[TOKEN_BYTES + 4..].copy_from_slice(&(purpose as u32).to_le_bytes());
    stream.write_all(&greeting).and_then(|()| stream.flush()).map_err(failed)?;
    Ok(stream)
}

/// A rank that waits for its peers' connections.
struct Listening<'a> {
    rank: usize,
    memory: &'a GroupMemory,
    listener: &'a TcpListener,
    peers: &'a Peers,
    tls: Option<&'a ClusterTls>,
}

impl Listening<'_> {
    fn accept(&self, wanted: &[(usize, Purpose)], streams: &mut Streams) -> Result<(), String> {
        let Self { rank, memory, listener, peers, tls } = *self;
        let (began, mut strangers) = (clock::now(), Doorway::new(GREETING_TIMEOUT));
        loop {
            let Some((missing, _)) = wanted.iter().find(|wanted| !streams.contains_key(wanted)) else {
                return Ok(());
            };
            if let Some(lost) = memory.cause() {
                return Err(format!(
                    "rank {lost} ended the group while rank {rank} waited for rank {missing}"
                ));
            }
            if clock::now().since(began) > CONNECT_TIMEOUT {
                return Err(format!(
                    "rank {missing} at {} did not connect to rank {rank} within {} s",
                    peers.addresses[*missing],
                    CONNECT_TIMEOUT.as_secs()
                ));
            }
            match listener.accept().and_then(|(stream, _)| Greeting::new(stream, tls)) {
                Ok(greeting) => drop(strangers.enter(greeting, clock::now())),
                Err(_) => std::thread::sleep(POLL),
            }
            for (greeting, said) in strangers.hear(clock::now(), |it| it.hear(&peers.token), || None) {
                let from = |(other, kind): &&(usize, Purpose)| Some((*other, *kind as u32)) == said;
                match wanted.iter().find(from) {
                    Some(wanted) if greeting.stream.socket().set_nonblocking(false).is_ok() => {
                        streams.insert(*wanted, greeting.stream);
                    }
                    _ => tracing::warn!(rank, "refused a connection that is not from this group"),
                }
            }
        }
    }
}

/// A new connection, of which this much has arrived.
struct Greeting {
    stream: Connection,
    bytes: [u8; GREETING_BYTES],
    arrived: usize,
}

impl Greeting {
    fn new(socket: TcpStream, tls: Option<&ClusterTls>) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let stream = Connection::accepted(socket, tls)?;
        Ok(Self { stream, bytes: [0; GREETING_BYTES], arrived: 0 })
    }

    /// Rank and purpose of the peer once its greeting has arrived; `Some(None)` if it is not one of this
    /// group.
    fn hear(&mut self, token: &[u8; TOKEN_BYTES]) -> Option<Option<(usize, u32)>> {
        while self.arrived < GREETING_BYTES {
            match self.stream.read(&mut self.bytes[self.arrived..]) {
                Ok(read @ 1..) => self.arrived += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return Some(None),
            }
        }
        let (its, rest) = self.bytes.split_at(TOKEN_BYTES);
        let word = |at: usize| rest[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        Some(word(0).zip(word(4)).filter(|_| its == token).map(|(rank, purpose)| (rank as usize, purpose)))
    }
}

fn member(memory: &GroupMemory, rank: usize, mut streams: Streams) -> std::io::Result<Member> {
    let (topology, timeout) = (memory.plan().topology, memory.timeout());
    let clones =
        streams.values().map(|stream| stream.socket().try_clone()).collect::<std::io::Result<_>>()?;
    let column = topology.column_of(rank);
    let mut exchange = |within: Shared, purpose| -> std::io::Result<Box<dyn Ranks>> {
        let others = column.iter().filter_map(|other| streams.remove(&(*other, purpose)));
        let others: Vec<Box<dyn Stream>> = others.map(|stream| Box::new(stream) as _).collect();
        let first = rank - topology.slot_of(rank);
        if others.is_empty() {
            return Ok(Box::new(within.numbered_from(first)));
        }
        let part = column.iter().position(|other| *other == rank).unwrap_or_default();
        Ok(Box::new(Grid::new(Sockets::new(part, others, timeout)?, within).numbered_from(first)))
    };
    let ranks = exchange(memory.exchange(rank), Purpose::Steps)?;
    let stage = topology.stage_of(rank);
    let is_last = stage + 1 == topology.stages;
    let reports = is_last.then(|| exchange(memory.reports(rank), Purpose::Reports)).transpose()?;
    // Each earlier stage may first have a step to compute.
    let timeout = timeout.saturating_mul(topology.stages as u32);
    let before = topology.before(rank).map(|peer| -> std::io::Result<Box<dyn Inlet>> {
        Ok(match streams.remove(&(peer, Purpose::Link)) {
            Some(stream) => Box::new(StreamInlet::new(Box::new(stream), peer, timeout)?),
            None => Box::new(RingInlet::new(memory.link_to(rank).reader(0), peer, timeout)),
        })
    });
    let after = topology.after(rank).map(|peer| -> std::io::Result<Box<dyn Outlet>> {
        Ok(match streams.remove(&(peer, Purpose::Link)) {
            Some(stream) => Box::new(StreamOutlet::start(stream, peer, topology.stages, timeout)?),
            None => Box::new(RingOutlet::new(memory.link_to(peer).writer(timeout), peer, timeout)),
        })
    });
    let (before, after) = (before.transpose()?, after.transpose()?);
    let connections = Connections { ranks, stage, stages: topology.stages, before, after };
    Ok(Member { connections, reports, closer: Closer::new(clones) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::memory::NodePlan;

    #[test]
    fn a_rank_that_waits_for_connections_ends_with_its_group() {
        let plan = NodePlan::new(Topology::new(2, 1, 2).unwrap(), 0, 0);
        let memory = GroupMemory::create(plan, Duration::from_secs(5)).unwrap();
        let listener = listen(&plan.topology, IpAddr::from([127, 0, 0, 1])).unwrap();
        let own = listener.as_ref().unwrap().local_addr().unwrap();
        let peers = Peers { addresses: vec![own; 2], token: [7; TOKEN_BYTES] };
        let (began, ending) = (clock::now(), memory.clone());
        let end = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            ending.end_because_of(1);
        });
        let why = connect(&memory, 0, listener, Some(&peers), None).map(drop).unwrap_err();
        assert_eq!(why, "rank 1 ended the group while rank 0 waited for rank 1");
        assert!(clock::now().since(began) < CONNECT_TIMEOUT / 2);
        end.join().unwrap();
    }

    #[test]
    fn a_rank_connects_beside_connections_that_say_nothing() {
        let plan = NodePlan::new(Topology::new(2, 1, 2).unwrap(), 0, 0);
        let memory = GroupMemory::create(plan, Duration::from_secs(5)).unwrap();
        let listener = listen(&plan.topology, IpAddr::from([127, 0, 0, 1])).unwrap();
        let own = listener.as_ref().unwrap().local_addr().unwrap();
        let peers = Peers { addresses: vec![own; 2], token: [7; TOKEN_BYTES] };
        let silent = |begun: usize| {
            let mut stream = TcpStream::connect(own).unwrap();
            stream.write_all(&[7; GREETING_BYTES][..begun]).unwrap();
            stream
        };
        // Heard one after the other, they would take longer than `CONNECT_TIMEOUT`.
        let silent: Vec<_> = (0..60).map(|at| silent(at % 3 * 8)).collect();
        let wanted = wanted(&plan.topology, 0);
        let dialled: Vec<_> =
            wanted.iter().map(|(_, purpose)| dial((1, 0), *purpose, &peers, None).unwrap()).collect();
        let connected = connect(&memory, 0, listener, Some(&peers), None).map(drop);
        assert_eq!(connected, Ok(()));
        drop((silent, dialled));
    }
}
