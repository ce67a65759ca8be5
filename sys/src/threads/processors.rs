//! How many threads compute, and where: the processors that this process may use and the machine's topology.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Linux's description of the machine.
const SYSTEM: &str = "/sys/devices/system";
/// Linux's file with the processors that this thread may use.
const STATUS: &str = "/proc/thread-self/status";

/// How many threads to compute with, and on which processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadPlacement {
    /// Number of threads, at least 1.
    pub threads: usize,
    /// Processors that the threads share, without pinning one to one; `None` = the system places them.
    pub keep_to: Option<Vec<usize>>,
    /// Physical cores that this process may use.
    pub cores: usize,
    /// Memory nodes with processors that this process may use.
    pub nodes: usize,
    /// Processors' worth of time that this process may use: the lesser of its affinity and its control
    /// group's quota.
    pub limit: usize,
}

impl ThreadPlacement {
    /// The placement for this machine. `asked` threads; with 0, one for each physical core that this process
    /// may use on the memory node with the most of them, up to the control group's quota.
    ///
    /// Two threads of a core share its multipliers and its path to memory: the second adds little and makes
    /// the end of each operation uncertain. Another node's memory is far away, so its processors are used
    /// only if `asked` is given.
    pub fn of_this_machine(asked: usize) -> Self {
        let limit = std::thread::available_parallelism().map_or(1, |count| count.get());
        let allowed = read_allowed().unwrap_or_else(|| (0..limit).collect());
        Self::of(Path::new(SYSTEM), &allowed, limit, asked)
    }

    /// As [`Self::of_this_machine`], for a machine described under `system`, with `allowed` processors and a
    /// quota of `limit`.
    fn of(system: &Path, allowed: &BTreeSet<usize>, limit: usize, asked: usize) -> Self {
        let nodes: Vec<Vec<Vec<usize>>> =
            nodes(system, allowed).iter().map(|node| cores(system, node)).collect();
        let all: usize = nodes.iter().map(Vec::len).sum();
        let widest = nodes.iter().rev().max_by_key(|cores| cores.len()); // the first of equals
        let here: Vec<Vec<usize>> = match widest {
            Some(cores) if asked == 0 => cores.clone(),
            _ => nodes.concat(),
        };
        let threads = if asked > 0 { asked } else { here.len().min(limit).max(1) };
        Self {
            threads,
            keep_to: (here.len() < all).then(|| here.concat()),
            cores: all,
            nodes: nodes.len(),
            limit,
        }
    }
}

/// The allowed processors of each memory node that has any; a single set if the system does not say.
fn nodes(system: &Path, allowed: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
    let mut numbers: Vec<usize> = std::fs::read_dir(system.join("node"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let of_node = |number: &usize| {
        let here = read_list(&system.join(format!("node/node{number}/cpulist")))?;
        Some(here.intersection(allowed).copied().collect::<BTreeSet<_>>()).filter(|here| !here.is_empty())
    };
    let nodes: Vec<BTreeSet<usize>> = numbers.iter().filter_map(of_node).collect();
    let covered: usize = nodes.iter().map(BTreeSet::len).sum();
    if covered == allowed.len() { nodes } else { vec![allowed.clone()] }
}

/// Groups processors by physical core.
fn cores(system: &Path, processors: &BTreeSet<usize>) -> Vec<Vec<usize>> {
    let mut cores: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for processor in processors {
        let siblings = read_list(&system.join(format!("cpu/cpu{processor}/topology/thread_siblings_list")));
        let first = siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(*processor);
        cores.entry(first).or_default().push(*processor);
    }
    cores.into_values().collect()
}

fn read_list(path: &Path) -> Option<BTreeSet<usize>> {
    parse_list(&std::fs::read_to_string(path).ok()?)
}

/// Processors that this thread may use; empty if the system does not say.
pub(super) fn allowed() -> Vec<usize> {
    read_allowed().unwrap_or_default().into_iter().collect()
}

fn read_allowed() -> Option<BTreeSet<usize>> {
    allowed_processors(&std::fs::read_to_string(STATUS).ok()?)
}

/// Processor that this thread is running on.
#[cfg(target_os = "linux")]
pub(super) fn current() -> Option<usize> {
    // SAFETY: no arguments; returns a number or -1.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn current() -> Option<usize> {
    None
}

/// Parses the allowed processors out of a `/proc/…/status`.
fn allowed_processors(status: &str) -> Option<BTreeSet<usize>> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    parse_list(line).filter(|list| !list.is_empty())
}

/// Parses a processor list as the kernel writes it: `0-3,8,10-11`.
fn parse_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut list = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (last < MAX_PROCESSORS).then_some(())?;
        list.extend(first..=last);
    }
    Some(list)
}

/// Highest processor number accepted in a list, exclusive; far more than Linux can have (8192).
const MAX_PROCESSORS: usize = 1 << 16;

/// Restricts the calling thread, and threads it starts later, to `processors`.
pub fn keep_to(processors: &[usize]) -> io::Result<()> {
    set_affinity(&Mask::of(processors).all)
}

/// A set of processors, one bit each.
pub(super) struct Mask {
    all: Vec<u64>,
    /// Scratch space for `all` without one processor.
    some: Vec<u64>,
}

impl Mask {
    pub(super) fn of(processors: &[usize]) -> Self {
        let highest = processors.iter().copied().max().unwrap_or(0).min(MAX_PROCESSORS - 1);
        let mut all = vec![0u64; highest / BITS + 1];
        for processor in processors.iter().filter(|processor| **processor <= highest) {
            all[processor / BITS] |= 1 << (processor % BITS);
        }
        Self { some: all.clone(), all }
    }

    /// Moves the calling thread off `processor`. The thread stays if it has no other, or if the system
    /// refuses.
    pub(super) fn keep_off(&mut self, processor: usize) {
        self.some.copy_from_slice(&self.all);
        if let Some(word) = self.some.get_mut(processor / BITS) {
            *word &= !(1 << (processor % BITS));
        }
        if self.some.iter().any(|word| *word != 0) {
            let _ = set_affinity(&self.some);
        }
    }
}

const BITS: usize = u64::BITS as usize;

#[cfg(target_os = "linux")]
fn set_affinity(mask: &[u64]) -> io::Result<()> {
    // SAFETY: 0 is this thread, and the mask is readable for its length.
    match unsafe { libc::sched_setaffinity(0, size_of_val(mask), mask.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn set_affinity(_mask: &[u64]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake `/sys/devices/system` in a temporary directory, removed on drop.
    struct Machine(std::path::PathBuf);

    impl Machine {
        /// `cores` are sibling lists, `nodes` processor lists.
        fn new(name: &str, cores: &[&str], nodes: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("skein-machine-{}-{name}", std::process::id()));
            let write = |path: String, text: &str| {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, format!("{text}\n")).unwrap();
            };
            for core in cores {
                for processor in parse_list(core).unwrap() {
                    write(format!("cpu/cpu{processor}/topology/thread_siblings_list"), core);
                }
            }
            for (number, processors) in nodes.iter().enumerate() {
                write(format!("node/node{number}/cpulist"), processors);
            }
            Self(root)
        }

        fn check(&self, allowed: &str, limit: usize, asked: usize, threads: usize, keep_to: Option<&str>) {
            let placement = ThreadPlacement::of(&self.0, &parse_list(allowed).unwrap(), limit, asked);
            let expected = (threads, keep_to.map(|list| parse_list(list).unwrap()));
            let got = (placement.threads, placement.keep_to.map(BTreeSet::from_iter));
            assert_eq!(got, expected, "{allowed}, {limit}, {asked}");
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn one_thread_computes_on_a_core_and_as_many_as_the_quota_allows() {
        let laptop = Machine::new("laptop", &["0,4", "1,5", "2,6", "3,7"], &["0-7"]);
        laptop.check("0-7", 8, 0, 4, None);
        laptop.check("0-7", 3, 0, 3, None);
        laptop.check("0,4,1", 3, 0, 2, None);
        laptop.check("4-7", 4, 0, 4, None); // no siblings among them
        laptop.check("0-7", 8, 6, 6, None); // an explicit number wins
        laptop.check("0-7", 2, 6, 6, None);
        let plain = Machine::new("plain", &["0", "1"], &["0-1"]);
        plain.check("0-1", 2, 0, 2, None);
    }

    #[test]
    fn threads_keep_to_one_memory_node_unless_more_are_asked_for() {
        let server = Machine::new(
            "server",
            &["0,8", "1,9", "2,10", "3,11", "4,12", "5,13"],
            &["0-1,8-9", "2-5,10-13"],
        );
        server.check("0-5,8-13", 12, 0, 4, Some("2-5,10-13"));
        server.check("0-5,8-13", 12, 6, 6, None);
        server.check("0-2,8", 4, 0, 2, Some("0-1,8"));
        server.check("3-4", 2, 0, 2, None);
        server.check("0-5,8-13", 1, 0, 1, Some("2-5,10-13"));
    }

    #[test]
    fn a_system_that_tells_nothing_or_contradicts_itself_has_one_node_of_single_threads() {
        let silent = Machine::new("silent", &[], &[]);
        silent.check("0-3", 4, 0, 4, None);
        let partial = Machine::new("partial", &[], &["0-1"]);
        partial.check("0-3", 4, 0, 4, None);
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        let list = |text| parse_list(text).map(|list| list.into_iter().collect::<Vec<_>>());
        assert_eq!(list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!((list(""), list("\n")), (Some(vec![]), Some(vec![])));
        assert_eq!((list("a-3"), list("0-"), list("0-99999999999")), (None, None, None));
        let status = "Name:\tskein\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n";
        assert_eq!(allowed_processors(status), Some([0, 1].into()));
        assert_eq!(allowed_processors("Name:\tskein\n"), None);
    }

    #[test]
    fn a_thread_moves_off_a_processor_unless_it_has_no_other() {
        std::thread::spawn(|| {
            let (allowed, Some(here)) = (allowed(), current()) else {
                return println!("skipped: the system does not tell which processor a thread is on");
            };
            Mask::of(&[here]).keep_off(here);
            assert_eq!(super::allowed(), allowed, "there is no other in the mask: nothing changes");
            if allowed.len() < 2 {
                return println!("skipped: this machine has one processor");
            }
            let mut mask = Mask::of(&allowed);
            for _ in 0..10 {
                let here = current().unwrap();
                mask.keep_off(here);
                assert_ne!(current(), Some(here));
                assert_eq!(super::allowed().len(), allowed.len() - 1, "every other one stays allowed");
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn this_machine_has_a_placement_that_threads_can_be_kept_to() {
        let placement = ThreadPlacement::of_this_machine(0);
        assert!((1..=placement.limit).contains(&placement.threads), "{placement:?}");
        assert!(placement.cores >= 1 && placement.nodes >= 1, "{placement:?}");
        let status = std::fs::read_to_string(STATUS).unwrap_or_default();
        if let Some(allowed) = allowed_processors(&status) {
            let first = [*allowed.first().unwrap()];
            let kept = std::thread::spawn(move || {
                keep_to(&first).map(|()| std::fs::read_to_string(STATUS).unwrap_or_default())
            });
            let status = kept.join().unwrap().unwrap();
            assert_eq!(allowed_processors(&status), Some(first.into()));
        }
    }
}
