//! Duration of an exchange between two processes through shared memory: the overhead of a product that two
//! ranks divide.
//!
//! `cargo bench -p skein-bench --bench exchange [-- ROUNDS]`. The second process runs the same binary.

use std::process::Command;
use std::time::{Duration, Instant};

use skein_kernels::collective::{Ranks, Shared};
use skein_sys::shared_memory::SharedMemory;

const ROUNDS: usize = 100_000;
/// Size of a slot, as in a group of workers, in bytes.
const CAPACITY: usize = 1 << 20;
/// Sizes of 64, 4,096, 16,384 and 1,048,576 values in bytes: rows of different widths, and a prompt's rows.
const SIZES: [usize; 4] = [256, 16 << 10, 64 << 10, 4 << 20];
/// Most bytes exchanged per size, to limit the time for large ones.
const MOST_BYTES: usize = 8 << 30;
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, descriptor, rounds] = &arguments[..]
        && flag == "--second"
    {
        let memory = SharedMemory::inherited(descriptor.parse().expect("a number")).expect("it is inherited");
        measure(memory, 1, rounds.parse().expect("a number"));
        return;
    }
    let rounds = arguments.iter().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS);
    let memory = SharedMemory::create(Shared::bytes(2, CAPACITY)).expect("there is memory");
    let mut second = Command::new(std::env::current_exe().expect("this binary has a path"))
        .args(["--second", &memory.descriptor().to_string(), &rounds.to_string()])
        .spawn()
        .expect("a second process starts");
    measure(memory, 0, rounds);
    second.wait().expect("it ends");
}

#[allow(clippy::disallowed_methods)] // the differences are below a microsecond
fn measure(memory: SharedMemory, rank: usize, rounds: usize) {
    let mut ranks = Shared::new(memory, 0, (rank, 2), CAPACITY, TIMEOUT);
    for size in SIZES {
        let (mine, mut all) = (vec![rank as u8 + 1; size], vec![0; 2 * size]);
        let rounds = rounds.min(MOST_BYTES / size).max(1);
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let began = Instant::now();
            ranks.gather(&mine, &mut all).expect("both run");
            times.push(began.elapsed());
        }
        assert_eq!((all[0], all[2 * size - 1]), (1, 2));
        times.sort_unstable();
        let at = |share: f64| times[((rounds - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        if rank == 0 {
            println!(
                "{size:>8} bytes, {rounds} exchanges: p50 {:.2} us, p99 {:.2} us, p99.9 {:.2} us",
                at(0.5),
                at(0.99),
                at(0.999)
            );
        }
    }
}
