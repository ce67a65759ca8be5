//! The leader's side of a group: starts the other ranks, on this machine and on others, and loads its own
//! part.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use skein_kernels::collective::Ranks;
use skein_model::fingerprint::fingerprint;
use skein_model::spec::Spec;
use skein_tls::ClusterTls;

use super::shards::threads;
use super::terms::terms;
use crate::backend::cpu::CpuOptions;
use crate::backend::cuda::{CudaLoadError, Fits};
use crate::backend::{Backend, BackendError, Connections};
use crate::config::{DeviceKind, NodesConfig, RankCommand, WorkerConfig};
use crate::error::WorkerError;
use crate::group::{
    self, GroupEnd, GroupMemory, Hello, Joined, Kind, Leader, Lock, Member, NodePlan, NodeSettings, Nodes,
    Peers, Processes, RankAdapters, TOKEN_BYTES, Topology, Welcome,
};

/// Delay between the end of a group and the next attempt to join one.
const JOIN_AGAIN: Duration = Duration::from_millis(250);

/// Settings of all ranks, sent by the leader.
pub(super) struct Work {
    /// Describes everything except the model that affects the bits of logits.
    pub arithmetic: String,
    /// CPU options. Ranks on GPUs use the number of threads, to read weights, and the rows of the largest
    /// step, for the links between stages.
    pub cpu: CpuOptions,
    /// Device of all ranks.
    pub device: DeviceKind,
}

/// A group whose ranks have joined and are loading their parts.
pub(super) struct Group {
    memory: GroupMemory,
    epoch: u64,
    processes: Processes,
    nodes: Option<Arc<Nodes>>,
    connections: Connections,
    reports: Box<dyn Ranks>,
}

/// Starts the other ranks of the model of `config`, and connects this process with them.
pub(super) fn lead(
    config: &WorkerConfig,
    spec: &Spec,
    topology: Topology,
    work: Work,
) -> Result<Group, WorkerError> {
    let command = rank_command(config)?;
    let lock = lock(config)?;
    if lock.tls.is_some() && work.device == DeviceKind::Cuda {
        tracing::warn!(
            "certificates encrypt what nodes exchange through this process; NCCL's connections between GPUs on different nodes \
             stay in the clear, so keep them on a network of their own (NCCL_SOCKET_IFNAME)"
        );
    }
    let others = gather_nodes(config, &topology, &lock)?;
    let cannot = |error: std::io::Error| stopped(format!("cannot start {} ranks: {error}", topology.ranks()));
    let step_bytes = work.cpu.max_rows as usize * spec.hidden_size * size_of::<f32>();
    let plan = |node| NodePlan::new(topology, node, step_bytes);
    let memory = GroupMemory::create(plan(0), config.cuda.step_timeout).map_err(cannot)?;
    let address = others.first().map_or(IpAddr::from([127, 0, 0, 1]), |node| node.own_address);
    let welcome = welcome(config, work, &memory, address)?;
    let mut processes = Processes::start(&memory, command, &welcome).map_err(cannot)?;
    let nodes = start_nodes(others, &processes, &welcome, plan);
    let nodes = nodes.map_err(|why| stopped(processes.fail(why)))?;
    let Member { connections, reports, closer } =
        connect(&memory, &mut processes, nodes.as_deref(), &welcome, lock.tls.as_ref())?;
    processes.watch().also(move |_, _| closer.close());
    let reports = reports.unwrap_or_else(|| unreachable!("the leader is in the last stage"));
    Ok(Group { memory, epoch: welcome.epoch, processes, nodes, connections, reports })
}

/// Command that starts a rank.
fn rank_command(config: &WorkerConfig) -> Result<&RankCommand, WorkerError> {
    config.ranks.command.as_ref().ok_or_else(|| {
        WorkerError::Unsuitable(
            "--tensor-parallel-size and --pipeline-parallel-size need processes, which this command does not start; use \
             skein worker or skein serve"
                .into(),
        )
    })
}

/// Waits until all ranks have joined, and connects this process to its peers.
fn connect(
    memory: &GroupMemory,
    processes: &mut Processes,
    nodes: Option<&Nodes>,
    welcome: &Welcome,
    tls: Option<&ClusterTls>,
) -> Result<Member, WorkerError> {
    let (topology, watch) = (welcome.plan.topology, processes.watch().clone());
    let fail = |why: String| stopped(watch.fail(why));
    let listener = group::listen(&topology, welcome.address).map_err(|error| fail(error.to_string()))?;
    let ports = processes.joined().map_err(stopped)?;
    let (ranks, threads) = (topology.ranks(), welcome.threads);
    tracing::info!(ranks, nodes = topology.nodes, threads, "{ranks} ranks have joined, loading");
    let own_port = listener.as_ref().and_then(|listener| listener.local_addr().ok()).map(|own| own.port());
    let ports: Vec<Option<u16>> = std::iter::once(own_port).chain(ports).collect();
    let peers = nodes.map(|nodes| introduce(nodes, processes, welcome, &ports));
    let peers = peers.transpose().map_err(fail)?;
    group::connect(memory, 0, listener, peers.as_ref(), tls).map_err(fail)
}

/// Configuration sent to the ranks.
fn welcome(
    config: &WorkerConfig,
    work: Work,
    memory: &GroupMemory,
    address: IpAddr,
) -> Result<Welcome, WorkerError> {
    let Work { arithmetic, cpu, device } = work;
    Ok(Welcome {
        rank: 0,
        plan: memory.plan(),
        address,
        epoch: crate::epoch::draw_epoch(),
        leader: std::process::id(),
        memory: memory.descriptor(),
        timeout: memory.timeout(),
        terms: terms(config, device, &arithmetic)?,
        config: config.for_ranks(),
        device,
        threads: cpu.threads,
        kv_blocks: cpu.kv_blocks,
        window_blocks: cpu.window_blocks,
        state_slots: cpu.state_slots,
        max_rows: cpu.max_rows,
    })
}

impl Group {
    /// Returns why the group has ended; `None` while it runs.
    pub fn ended(&self) -> impl Fn() -> Option<String> + Send + Sync + use<> {
        let watch = self.processes.watch().clone();
        move || watch.failure()
    }

    /// Loads the leader's part with `load`, which on GPUs must agree with the other ranks on the KV blocks.
    /// Once all ranks have loaded their parts, they check the model
    /// together; `check` runs the leader's part of the check and returns its backend. Also returns the
    /// adapters of the other ranks.
    pub fn load<M, B: Backend>(
        self,
        load: impl FnOnce(Connections, &mut Agree<'_>) -> Result<M, WorkerError>,
        check: impl FnOnce(M) -> Result<B, WorkerError>,
    ) -> Result<(Leader<B>, RankAdapters), WorkerError> {
        let Self { memory, epoch, mut processes, nodes, connections, reports } = self;
        let mut agree = |own| agree(&mut processes, nodes.as_deref(), own);
        let model = load(connections, &mut agree).map_err(|error| {
            // If another rank failed first, its failure is the cause of this error.
            let own = error.to_string();
            let why = processes.fail(own.clone());
            if why == own { error } else { stopped(why) }
        })?;
        let (watch, answers) = processes.loaded().map_err(stopped)?;
        let places = places(&memory.plan().topology, nodes.as_deref());
        let leader = Leader::start(&memory, (epoch, watch.clone()), (reports, nodes), || check(model));
        let leader = leader.inspect_err(|error| drop(watch.fail(error.to_string())))?;
        let adapters = RankAdapters::new(leader.frames(), watch, places, answers);
        Ok((leader, adapters))
    }
}

/// Where each rank is, for errors.
fn places(topology: &Topology, nodes: Option<&Nodes>) -> Vec<String> {
    let names: Vec<String> = nodes.map(|nodes| nodes.names().collect()).unwrap_or_default();
    let place = |rank| match topology.node_of(rank) {
        0 => format!("rank {rank}"),
        node => format!("rank {rank} on {}", names[node - 1]),
    };
    (0..topology.ranks()).map(place).collect()
}

/// Tells the leader what fits a rank on a GPU; returns the KV blocks on which all ranks agree.
pub(super) type Agree<'a> = dyn FnMut(Fits) -> Result<u32, CudaLoadError> + 'a;

/// The leader's side of the agreement: waits for all ranks and tells each of them.
fn agree(processes: &mut Processes, nodes: Option<&Nodes>, own: Fits) -> Result<u32, CudaLoadError> {
    let blocks = processes.agree(own)?;
    let line = blocks.to_string();
    processes.send_line(&line);
    let sent = nodes.map_or(Ok(()), |nodes| nodes.send(Kind::Line, line.as_bytes()));
    sent.map_err(CudaLoadError::Group)?;
    Ok(blocks)
}

/// Introduction of this node to the leader.
fn hello(config: &WorkerConfig) -> Result<Hello, WorkerError> {
    let NodesConfig { count, rank, settings, .. } = &config.ranks.nodes;
    let hello = Hello::new(*rank as usize, *count as usize, fingerprint(&config.model)?, settings.clone());
    hello.map_err(|error| stopped(format!("cannot read random bytes from the system: {error}")))
}

/// Waits for the other nodes, if any.
fn gather_nodes(config: &WorkerConfig, topology: &Topology, lock: &Lock) -> Result<Vec<Joined>, WorkerError> {
    if topology.nodes == 1 {
        return Ok(Vec::new());
    }
    let NodesConfig { leader, .. } = &config.ranks.nodes;
    let cannot =
        |error| stopped(format!("cannot listen on {leader} for the other nodes: {error}; see --leader"));
    let listener = TcpListener::bind(leader).map_err(cannot)?;
    let encrypted = lock.tls.is_some();
    tracing::info!(%leader, nodes = topology.nodes, encrypted, "waiting for the other nodes");
    group::gather(&listener, &hello(config)?, lock).map_err(stopped)
}

/// What nodes prove to each other. Certificates are read again for each group.
fn lock(config: &WorkerConfig) -> Result<Lock, WorkerError> {
    let NodesConfig { secret, tls, .. } = &config.ranks.nodes;
    let tls = tls.as_ref().map(ClusterTls::read).transpose();
    let tls = tls.map_err(|error| WorkerError::Unsuitable(error.to_string()))?;
    Ok(Lock { secret: secret.clone(), tls })
}

/// Sends the other nodes their ranks' configuration.
fn start_nodes(
    others: Vec<Joined>,
    processes: &Processes,
    welcome: &Welcome,
    plan: impl Fn(usize) -> NodePlan,
) -> Result<Option<Arc<Nodes>>, String> {
    let topology = welcome.plan.topology;
    if others.is_empty() {
        return Ok(None);
    }
    let nodes = Nodes::start(others, topology.on_node(), processes.watch(), processes.answers());
    let nodes = nodes.map_err(|error| error.to_string())?;
    for node in 1..topology.nodes {
        let welcome = Welcome { plan: plan(node), ..welcome.clone() };
        let message = serde_json::to_vec(&welcome).map_err(|error| error.to_string())?;
        nodes.send_to(node, Kind::Welcome, &message)?;
    }
    Ok(Some(nodes))
}

/// Sends every rank the addresses of all ranks.
fn introduce(
    nodes: &Nodes,
    processes: &Processes,
    welcome: &Welcome,
    ports: &[Option<u16>],
) -> Result<Peers, String> {
    let hosts: Vec<IpAddr> = std::iter::once(welcome.address).chain(nodes.addresses()).collect();
    let topology = welcome.plan.topology;
    let address = |(rank, port): (usize, &Option<u16>)| {
        let port = port.ok_or_else(|| format!("rank {rank} does not listen for other nodes"))?;
        Ok(SocketAddr::new(hosts[topology.node_of(rank)], port))
    };
    let addresses = ports.iter().enumerate().map(address).collect::<Result<_, String>>()?;
    let token = group::random::<TOKEN_BYTES>().map_err(|error| error.to_string())?;
    let peers = Peers { addresses, token };
    let line = serde_json::to_string(&peers).map_err(|error| error.to_string())?;
    processes.send_line(&line);
    nodes.send(Kind::Line, line.as_bytes())?;
    Ok(peers)
}

/// Serves the groups of another node's leader, one at a time, until the leader refuses this node.
///
/// # Errors
/// Reason for the refusal.
pub fn follow_leader(config: &WorkerConfig) -> Result<(), WorkerError> {
    let command = config.ranks.command.clone();
    let settings = NodeSettings {
        config: config.clone(),
        hello: hello(config)?,
        command: command.ok_or_else(|| WorkerError::Unsuitable("this command cannot start ranks".into()))?,
        threads: threads(config),
    };
    loop {
        match group::serve_group(&settings, &lock(config)?) {
            GroupEnd::Refused(why) => return Err(WorkerError::Unsuitable(why)),
            GroupEnd::Stopped => tracing::info!("the group stopped; waiting for the next one"),
            GroupEnd::Lost(why) => tracing::warn!("the group ended: {why}; joining again"),
        }
        std::thread::sleep(JOIN_AGAIN);
    }
}

fn stopped(reason: String) -> WorkerError {
    WorkerError::Backend(BackendError::Stopped { backend: "group", reason })
}
