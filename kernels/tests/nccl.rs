//! Exchanges between processes over the emulated NCCL, with every kind of fault. Each test starts this binary
//! once per rank.

#![allow(clippy::unwrap_used)] // helpers of tests panic like tests

mod common;

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use skein_kernels::cuda::nccl::{ID_BYTES, UniqueId};
use skein_kernels::cuda::{Communicator, CudaError, CudaEvent, Device, DeviceBuffer, Graph, Nccl, Stream};

use common::now;

/// Settings of a rank in the environment: the job, rank, number of ranks, and id.
const TOLD: &str = "TEST_NCCL_RANK";
/// Time limit of waits for working ranks.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit of waits that never end.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
/// Time limit of a test.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

/// Output of each rank for `job`, with `variables` set.
fn run(job: &str, ranks: usize, variables: &[(&str, &str)]) -> Option<Vec<String>> {
    if !skein_cuda_emulation::load() {
        return None;
    }
    let id = Nccl::open().unwrap().unique_id().unwrap().0;
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(common::said(ranks, ENDS_WITHIN, |rank, command| {
        command.env(TOLD, format!("{job} {rank} {ranks} {id}")).env("EMU_DEVICES", "8");
        command.envs(variables.iter().copied());
    }))
}

/// Checks that the output of every rank contains all of `words`.
fn all_say(job: &str, ranks: usize, variables: &[(&str, &str)], words: &[&str]) {
    for said in run(job, ranks, variables).into_iter().flatten() {
        words
            .iter()
            .for_each(|word| assert!(said.contains(word), "{job} {variables:?}: {said:?} has no {word:?}"));
    }
}

#[test]
#[ignore = "a rank of another test"]
fn a_rank() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let told: Vec<&str> = told.split(' ').collect();
    let (rank, ranks) = (told[1].parse().unwrap(), told[2].parse().unwrap());
    let mut id = [0; ID_BYTES];
    for (byte, text) in id.iter_mut().zip(told[3].as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(text).unwrap(), 16).unwrap();
    }
    assert!(skein_cuda_emulation::load());
    std::thread::spawn(|| {
        std::thread::sleep(ENDS_WITHIN);
        std::process::exit(3);
    });
    let said = match work(told[0], (rank, ranks), UniqueId(id)) {
        Ok(said) => said,
        Err(error) => error.to_string(),
    };
    println!("said: {said}");
    // Does not wait for hanging work.
    std::process::exit(0);
}

fn work(job: &str, (rank, ranks): (usize, usize), id: UniqueId) -> Result<String, CudaError> {
    let ordinal = if job == "device" { 0 } else { rank };
    let device = Device::open(ordinal as u32).map_err(|error| CudaError::invalid(error.to_string()))?;
    let nccl = Nccl::open()?;
    let timeout = if job == "join" || job == "device" { SHORT_TIMEOUT } else { TIMEOUT };
    device.limit_waits(if job == "gather" { TIMEOUT } else { SHORT_TIMEOUT });
    let joined = Arc::new(Communicator::join(&nccl, &device, &id, (rank, ranks), timeout)?);
    let of_waits = Arc::clone(&joined);
    device.check_during_waits(Box::new(move || of_waits.check()));
    let stream = Stream::new(&device)?;
    let rank = Rank { joined, device, stream };
    match job {
        "gather" => rank.gather_many(),
        "lengths" => rank.gather(5 + rank.joined.rank()),
        "graph" if rank.joined.rank() == 0 => {
            rank.capture(5)?.launch(&rank.stream)?;
            rank.stream.synchronize()
        }
        "two" => return rank.two_communicators(&nccl),
        _ => (0..8).try_for_each(|_| rank.gather(5)),
    }?;
    Ok("done".into())
}

struct Rank {
    joined: Arc<Communicator>,
    device: Arc<Device>,
    stream: Stream,
}

impl Rank {
    fn value(rank: usize, length: usize, i: usize) -> u32 {
        (rank * 1_000_003 + length * 31 + i) as u32
    }

    fn buffers(&self, length: usize) -> Result<(DeviceBuffer<u32>, DeviceBuffer<u32>), CudaError> {
        let rank = self.joined.rank();
        let mine: Vec<u32> = (0..length).map(|i| Self::value(rank, length, i)).collect();
        let all = DeviceBuffer::new(&self.device, self.joined.ranks() * length)?;
        Ok((DeviceBuffer::from_slice(&self.device, &self.stream, &mine)?, all))
    }

    fn check(&self, all: &DeviceBuffer<u32>, length: usize) -> Result<(), CudaError> {
        let ranks = 0..self.joined.ranks();
        let values = |rank| (0..length).map(move |i| Self::value(rank, length, i));
        let expected: Vec<u32> = ranks.flat_map(values).collect();
        let same = all.read(&self.stream)? == expected;
        if same { Ok(()) } else { Err(CudaError::invalid(format!("{length} words arrived wrong"))) }
    }

    fn gather(&self, length: usize) -> Result<(), CudaError> {
        let (own, all) = self.buffers(length)?;
        self.joined.gather(&self.stream, *own, *all)?;
        self.check(&all, length)
    }

    /// Captures a graph of one exchange, whose memory is kept.
    fn capture(&self, length: usize) -> Result<Graph, CudaError> {
        let (own, all) = self.buffers(length)?;
        self.stream.synchronize()?;
        let capturing = Stream::new(&self.device)?;
        let graph = Graph::capture(&capturing, || self.joined.gather(&capturing, *own, *all))?;
        std::mem::forget((own, all));
        Ok(graph)
    }

    /// Exchanges of all sizes, also in place and in graphs.
    fn gather_many(&self) -> Result<(), CudaError> {
        for length in [1, 2, 3, 1000, 32 << 10, (32 << 10) + 1, 100_000] {
            self.gather(length)?;
        }
        let (rank, ranks, length) = (self.joined.rank(), self.joined.ranks(), 777);
        let (own, all) = self.buffers(length)?;
        let place = all.slice(rank * length..(rank + 1) * length);
        place.write(&self.stream, &own.read(&self.stream)?)?;
        self.joined.gather(&self.stream, place, *all)?;
        self.check(&all, length)?;
        let capturing = Stream::new(&self.device)?;
        let graph = Graph::capture(&capturing, || {
            self.joined.gather(&capturing, *own, *all)?;
            self.joined.gather(&capturing, place, *all)
        })?;
        for _ in 0..3 {
            all.write(&self.stream, &vec![7; ranks * length])?;
            graph.launch(&self.stream)?;
            self.gather(11)?;
            self.check(&all, length)?;
        }
        self.stream.synchronize()
    }

    /// Two communicators, which the ranks use in different orders.
    fn two_communicators(&self, nccl: &Arc<Nccl>) -> Result<String, CudaError> {
        // Any 128 bytes that are equal on both ranks.
        let mut id = [0; ID_BYTES];
        let name = format!("/skein-test-two-{}", std::os::unix::process::parent_id());
        id[..name.len()].copy_from_slice(name.as_bytes());
        let (rank, ranks) = (self.joined.rank(), self.joined.ranks());
        let second = Communicator::join(nccl, &self.device, &UniqueId(id), (rank, ranks), TIMEOUT)?;
        let (own, all) = self.buffers(3)?;
        let other = Stream::new(&self.device)?;
        self.stream.synchronize()?;
        let order = if rank == 0 {
            [(&*self.joined, &self.stream), (&second, &other)]
        } else {
            [(&second, &other), (&*self.joined, &self.stream)]
        };
        let mut ends = Vec::new();
        for (communicator, stream) in order {
            communicator.gather(stream, *own, *all)?;
            ends.push(CudaEvent::untimed(&self.device)?);
            ends[ends.len() - 1].record(stream)?;
        }
        // Both streams make progress, as on a device.
        let began = now();
        while began.elapsed() < SHORT_TIMEOUT {
            for end in &ends {
                end.is_done()?;
            }
            // Freeing memory must not wait for work that is blocked forever.
            let checked = self.joined.check().and_then(|()| second.check());
            checked.inspect_err(|error| self.device.note(error))?;
        }
        Ok("nothing was refused".into())
    }
}

#[test]
fn every_rank_gets_what_all_gave_also_in_graphs() {
    for ranks in [1, 2, 4] {
        all_say("gather", ranks, &[], &["done"]);
    }
    all_say("gather", 2, &[("EMU_SEED", "3")], &["done"]);
}

#[test]
fn what_would_hang_is_refused_and_names_both_ranks() {
    for (job, words) in [
        ("lengths", &["rank 0 gathers 5 values", "rank 1 gathers 6 values", "in call 1"][..]),
        ("graph", &["of a graph", "rank 1 gathers 5 values", "rank 0 gathers 5 values"]),
        ("two", &["uses two communicators at once"]),
        ("device", &["Duplicate GPU detected: rank 0 and rank 1 both on CUDA device 0"]),
    ] {
        all_say(job, 2, &[], words);
    }
}

#[test]
fn hangs_and_errors_end_in_time() {
    let cases: [(&str, &str, &[&str]); 4] = [
        ("work", "hang:1:3", &["did not finish its work within 300ms"]),
        ("work", "hang:0:1", &["did not finish its work within 300ms"]),
        ("join", "absent:1", &["not all of 2 ranks have joined within 300ms"]),
        ("join", "absent:0", &["not all of 2 ranks have joined within 300ms"]),
    ];
    for (job, fault, words) in cases {
        all_say(job, 2, &[("EMU_NCCL_FAULT", fault)], words);
    }
    // The other rank only sees that nothing arrives.
    for (fault, word) in
        [("error:0:2", "an injected error (NCCL status 2)"), ("remote:0:4", "(NCCL status 6)")]
    {
        let Some(said) = run("work", 2, &[("EMU_NCCL_FAULT", fault)]) else { return };
        assert!(said[0].contains(word), "{said:?}");
        assert!(said[1].contains("did not finish its work within 300ms"), "{said:?}");
    }
    // The buffers of a queued exchange that can never end are given up, not freed.
    all_say("work", 2, &[("EMU_NCCL_FAULT", "breaks:0:2")], &["an injected break"]);
    // An abort that never returns blocks no rank.
    all_say("gather", 2, &[("EMU_NCCL_FAULT", "abort:1")], &["done"]);
}

#[test]
fn an_unusable_library_is_named_with_its_version() {
    for (version, said) in
        [("21700", "is version 2.17.0; 2.18 or newer of 2.x is needed"), ("30000", "is version 3.0.0")]
    {
        all_say("gather", 1, &[("EMU_NCCL_VERSION", version)], &["ranks on GPUs need NCCL", said]);
    }
    let Some(libraries) = skein_cuda_emulation::directory() else { return };
    let refused = |path: &OsStr| Nccl::open_at(path).unwrap_err().to_string();
    let old = refused(libraries.join("libnccl-old.so.2").as_os_str());
    assert!(old.contains("of version 2.19.3 has no function ncclCommInitRankConfig"), "{old}");
    let none = refused(OsStr::new("/nowhere/libnccl.so.2"));
    assert!(none.contains("libnccl.so.2 is missing: "), "{none}");
}
