//! Groups of threads over fake models.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use skein_model::on_cpu::adapter::AdapterWeights;
use skein_model::served_adapter::HeldAdapter;
use skein_node::clock;
use skein_proto::adapter::AdapterId;

use super::wire::tests::connection;
use super::wire::{Incoming, split};
use super::*;
use crate::backend::fake::{FakeBackend, FakeOptions};
use crate::backend::{
    Backend, BackendError, Batch, LoadedAdapter, SampleRow, Sampled, StepHandle, StepOutput, Want,
};

const TIMEOUT: Duration = Duration::from_secs(20);
const EPOCH: u64 = 5;

/// Fake model that reports a wrong token in one step.
struct Lying(FakeBackend, u64);

impl Backend for Lying {
    fn kv_blocks(&self) -> u32 {
        self.0.kv_blocks()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        self.0.launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        let lies = step.0 == self.1;
        let mut output = self.0.collect(step)?;
        if lies
            && let Some(crate::backend::Answer::Sampled(Sampled { token, .. })) = output.answers.first_mut()
        {
            *token ^= 1;
        }
        Ok(output)
    }
}

fn options() -> FakeOptions {
    FakeOptions { kv_blocks: 64, steps_in_flight: 1, ..FakeOptions::default() }
}

/// Memory for `ranks` ranks that share all layers on one node.
fn memory(ranks: usize, timeout: Duration) -> GroupMemory {
    let topology = Topology::new(ranks, 1, 1).unwrap();
    GroupMemory::create(NodePlan::new(topology, 0, 0), timeout).unwrap()
}

type Follower = JoinHandle<Result<(), RankError>>;

/// Group of `ranks` threads; rank 1 draws a wrong token in step `lie`.
fn group(ranks: usize, lie: u64, timeout: Duration) -> (Leader<FakeBackend>, GroupMemory, Vec<Follower>) {
    let memory = memory(ranks, timeout);
    let followers = (1..ranks).map(|rank| {
        let memory = memory.clone();
        let lie = if rank == 1 { lie } else { 0 };
        let start = move || Ok(Lying(FakeBackend::new(options()), lie));
        let reports = Box::new(memory.reports(rank));
        std::thread::spawn(move || {
            follow(memory.reader(rank), Some(reports), (EPOCH, Followed::new(None)), start)
        })
    });
    let followers = followers.collect();
    let watch = Watch::new(memory.clone(), || ());
    let leader = lead(&memory, watch);
    (leader.unwrap(), memory, followers)
}

/// What the ranks were told about adapters: rank, what, identity.
type Told = Arc<Mutex<Vec<(usize, &'static str, u64)>>>;

/// Group of three ranks, whose rank 2 cannot read the adapter 7 and does not have 8 on its machine.
fn group_with_adapters() -> (Leader<FakeBackend>, RankAdapters, Told, Vec<Follower>) {
    let (memory, told) = (memory(3, TIMEOUT), Told::default());
    let (sender, answers) = std::sync::mpsc::sync_channel(16);
    let followers = (1..3).map(|rank| {
        let (memory, reports, sender) = (memory.clone(), Box::new(memory.reports(rank)), sender.clone());
        let tell = |what| {
            let told = told.clone();
            move |id: AdapterId| told.lock().unwrap().push((rank, what, id.0))
        };
        let (reads, checks) = (tell("read"), tell("check"));
        let reader = RankReader {
            read: Box::new(move |id, directory| {
                reads(id);
                let lacks = rank == 2 && id.0 == 7;
                if lacks {
                    return Err(format!("{} is not there", directory.display()));
                }
                Ok(HeldAdapter::Cpu(AdapterWeights::none()))
            }),
            check: Box::new(move |id, directory| {
                checks(id);
                let lacks = rank == 2 && id.0 == 8;
                if lacks { Err(format!("{} is another", directory.display())) } else { Ok(()) }
            }),
            answer: Box::new(move |frame, problem| {
                sender.send((rank, Answer::Adapter { frame, problem })).unwrap();
            }),
        };
        std::thread::spawn(move || {
            let adapters = (EPOCH, Followed::new(Some(reader)));
            let start = || Ok(FakeBackend::new(options()));
            let ended = follow(memory.reader(rank), Some(reports), adapters, start);
            // As when its process ends.
            ended.inspect_err(|_| memory.end_because_of(rank))
        })
    });
    let followers = followers.collect();
    let watch = Watch::new(memory.clone(), || ());
    let leader = lead(&memory, watch.clone()).unwrap();
    // An answer to an order that nobody waits for any more.
    sender.send((1, Answer::Adapter { frame: 1, problem: Some("late".into()) })).unwrap();
    let places = ["rank 0", "rank 1", "rank 2 on node 1"].map(str::to_owned).to_vec();
    let adapters = RankAdapters::new(leader.frames(), watch, places, answers);
    (leader, adapters, told, followers)
}

#[test]
fn ranks_have_an_adapter_before_the_step_that_needs_it_and_keep_it_while_the_leader_does() {
    let (mut leader, adapters, told, followers) = group_with_adapters();
    let told = || {
        let mut told = std::mem::take(&mut *told.lock().unwrap());
        told.sort_unstable();
        told
    };
    let load =
        |id, keeps: &[u64]| adapters.load(AdapterId(id), Path::new("/a"), |held| keeps.contains(&held.0));
    let mut run = |number, id| {
        let mut batch = step(number);
        let adapter = LoadedAdapter::new(AdapterId(id), None, Arc::default());
        batch.sequences[0].adapter = Some(Arc::new(adapter));
        let launched = leader.launch(batch)?;
        leader.collect(launched).map(drop)
    };
    assert_eq!(adapters.examine(AdapterId(5), Path::new("/a")), Ok(()));
    assert_eq!(told(), [(1, "check", 5), (2, "check", 5)]);
    let refused = adapters.examine(AdapterId(8), Path::new("/b"));
    assert_eq!(refused, Err("rank 2 on node 1: /b is another".into()));
    told();
    assert_eq!(load(5, &[5]), Ok(()));
    assert_eq!(told(), [(1, "read", 5), (2, "read", 5)]);
    run(0, 5).unwrap();
    run(1, 5).unwrap();
    assert_eq!(load(6, &[5, 6]), Ok(()));
    assert_eq!(load(7, &[5, 6, 7]), Err("rank 2 on node 1: /a is not there".into()));
    run(2, 5).unwrap();
    run(3, 6).unwrap();
    assert_eq!(load(9, &[6, 9]), Ok(()));
    assert_eq!(
        told(),
        [(1, "read", 6), (1, "read", 7), (1, "read", 9), (2, "read", 6), (2, "read", 7), (2, "read", 9)]
    );
    run(4, 9).unwrap();
    // The leader would not run these: 7 was refused, and 5 was forgotten for 9.
    assert!(run(5, 5).is_err());
    drop(leader);
    for follower in followers {
        let error = follower.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("0000000000000005, which is not here") || error.contains("ended"), "{error}");
    }
    assert!(load(5, &[]).is_err(), "the group has ended");
}

fn lead(memory: &GroupMemory, watch: Watch) -> Result<Leader<FakeBackend>, BackendError> {
    let exchanges = (Box::new(memory.reports(0)) as Box<_>, None);
    Leader::start(memory, (EPOCH, watch), exchanges, || Ok::<_, BackendError>(FakeBackend::new(options())))
}

/// Step `number` of a sequence, which draws one token.
fn step(number: u32) -> Batch {
    let sample = SampleRow {
        row: 0,
        params: Default::default(),
        sample_index: 0,
        position: number + 1,
        forbid_stop: false,
        history: 0..0,
        prompt_len: 0,
        mask: None,
    };
    Batch {
        tokens: vec![number],
        positions: vec![number],
        slots: vec![number],
        sequences: vec![crate::backend::BatchSequence {
            rows: 0..1,
            context_len: number + 1,
            blocks: 0..number / 16 + 1,
            adapter: None,
        }],
        block_tables: (0..=number / 16).map(crate::BlockId).collect(),
        wants: vec![Want::Sample(sample)],
        ..Batch::default()
    }
}

fn run(backend: &mut dyn Backend, number: u32) -> Result<StepOutput, BackendError> {
    let launched = backend.launch(step(number))?;
    backend.collect(launched)
}

#[test]
fn a_group_draws_what_one_rank_draws() {
    let mut alone = FakeBackend::new(options());
    let expected: Vec<_> = (0..40).map(|number| run(&mut alone, number).unwrap().answers).collect();
    for ranks in [2, 3] {
        let (mut leader, _, followers) = group(ranks, 0, TIMEOUT);
        assert_eq!((leader.kv_blocks(), leader.steps_in_flight()), (64, 1));
        for (number, expected) in expected.iter().enumerate() {
            assert_eq!(&run(&mut leader, number as u32).unwrap().answers, expected, "{ranks} ranks");
        }
        leader.health().unwrap();
        drop(leader);
        followers.into_iter().for_each(|follower| follower.join().unwrap().unwrap());
    }
}

#[test]
fn a_differing_token_ends_the_group_before_it_is_used() {
    let (mut leader, memory, followers) = group(3, 3, TIMEOUT);
    (0..2).for_each(|number| drop(run(&mut leader, number).unwrap()));
    let error = run(&mut leader, 2).unwrap_err().to_string();
    assert!(error.contains("rank 1 drew different tokens than rank 0 in step 4"), "{error}");
    assert_eq!(leader.health().unwrap_err().to_string(), error, "it stays failed");
    assert_eq!(memory.cause(), Some(0));
    for follower in followers {
        assert!(follower.join().unwrap().is_err(), "all ranks end");
    }
}

#[test]
fn a_late_step_ends_the_group_and_names_the_rank() {
    let timeout = Duration::from_millis(100);
    let (mut leader, memory, followers) = group(2, 0, timeout);
    drop(run(&mut leader, 0).unwrap());
    memory.end_because_of(1); // the follower leaves
    assert!(followers.into_iter().all(|follower| follower.join().unwrap().is_err()));
    let error = run(&mut leader, 1).unwrap_err().to_string();
    assert!(error.contains("rank 1"), "{error}");
}

#[test]
fn a_rank_that_never_reports_is_named_within_the_timeout() {
    let timeout = Duration::from_millis(100);
    let memory = memory(2, timeout);
    let watch = Watch::new(memory.clone(), || ());
    let mut leader = lead(&memory, watch).unwrap();
    let began = clock::now();
    let error = run(&mut leader, 0).unwrap_err().to_string();
    assert!(error.contains("rank 1 did not answer in exchange 1 of 16 bytes"), "{error}");
    assert!(clock::now().since(began) < timeout + Duration::from_secs(2));
}

/// Fake model that starts this many more steps, then none.
struct CannotLaunch(FakeBackend, u64);

impl Backend for CannotLaunch {
    fn kv_blocks(&self) -> u32 {
        self.0.kv_blocks()
    }

    fn launch(&mut self, batch: Batch) -> Result<StepHandle, BackendError> {
        if self.1 == 0 {
            return Err(BackendError::Stopped { backend: "fake", reason: "rank 3 has ended".into() });
        }
        self.1 -= 1;
        self.0.launch(batch)
    }

    fn collect(&mut self, step: StepHandle) -> Result<StepOutput, BackendError> {
        self.0.collect(step)
    }
}

/// Messages of a connection until it closes, except heartbeats.
fn messages(mut incoming: Incoming) -> Vec<(Kind, Vec<u8>)> {
    let mut received = Vec::new();
    while let Ok(Some(message)) = incoming.receive(TIMEOUT) {
        if message.0 != Kind::Heartbeat {
            received.push(message);
        }
    }
    received
}

#[test]
fn a_step_that_cannot_start_ends_the_group_everywhere_with_its_reason_and_without_a_stop() {
    let memory = memory(1, TIMEOUT);
    let watch = Watch::new(memory.clone(), || ());
    let [(there, _), (incoming, outgoing)] = connection().map(|end| split(end).unwrap());
    let address = IpAddr::from([127, 0, 0, 1]);
    let joined = vec![Joined { node: 1, incoming, outgoing, address, own_address: address }];
    let (answers, _keep) = std::sync::mpsc::sync_channel(1);
    let nodes = Nodes::start(joined, 1, &watch, &answers).unwrap();
    let exchanges = (Box::new(memory.reports(0)) as Box<_>, Some(nodes));
    let started = || Ok::<_, BackendError>(CannotLaunch(FakeBackend::new(options()), 1));
    let mut leader = Leader::start(&memory, (EPOCH, watch), exchanges, started).unwrap();
    run(&mut leader, 0).unwrap();
    let error = run(&mut leader, 1).unwrap_err().to_string();
    assert!(error.contains("rank 3 has ended"), "{error}");
    assert_eq!((leader.health().unwrap_err().to_string(), memory.cause()), (error, Some(0)));
    drop(leader);
    let received = messages(there);
    let kinds: Vec<Kind> = received.iter().map(|(kind, _)| *kind).collect();
    // The check and both steps, and no stop. On a slow machine the reason may not have been sent in time.
    let (frames, last) = kinds.split_at(3);
    assert_eq!(frames, [Kind::Frame; 3]);
    assert!(last.is_empty() || last == [Kind::End], "{last:?}");
    let why = received.get(3).map(|(_, ending)| String::from_utf8_lossy(ending).into_owned());
    assert!(why.is_none_or(|why| why.contains("rank 3 has ended")), "{received:?}");
}

#[test]
fn silence_fires_the_alarm_once_and_kills_the_ranks() {
    let memory = memory(2, TIMEOUT);
    let (killed, kills) = std::sync::mpsc::sync_channel(4);
    let (alarm, alarms) = std::sync::mpsc::sync_channel(4);
    let watch = Watch::new(memory, move || killed.send(()).unwrap());
    watch.on_failure(Box::new(move || alarm.send(()).unwrap()));
    watch.listen().unwrap(); // rank 1 sends no heartbeats
    let began = clock::now();
    alarms.recv_timeout(HEARTBEAT_TIMEOUT + Duration::from_secs(5)).expect("rank 1 is silent");
    kills.recv_timeout(Duration::from_secs(5)).expect("the ranks are killed first");
    assert!(clock::now().since(began) > HEARTBEAT_TIMEOUT);
    assert!(watch.failure().unwrap().starts_with("rank 1 has been silent for "));
    assert!(watch.fail("a later fault".into()).starts_with("rank 1"), "the first cause stays");
    assert!(alarms.try_recv().is_err() && kills.try_recv().is_err(), "once");
}
