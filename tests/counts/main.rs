//! What a request costs the router's thread in allocations and in system calls. Both are counted, so that the
//! machine's speed does not matter. In a binary of its own, because of its allocator.

mod site;
mod tracer;

use std::sync::atomic::Ordering;

use site::{ALLOCATIONS, Clients, Router, Workers};
use tracer::Tracer;

/// Connections that are busy at once, each with one request at a time.
const CONNECTIONS: usize = 64;
/// Requests before the count: buffers, tables and connections get their size.
const WARM_UP: usize = 6_400;
/// Requests that are counted.
const COUNTED: usize = 6_400;
/// The bounds, for a prompt of 32 token ids and an answer of one token.
const MOST_ALLOCATIONS: f64 = 70.0;
const MOST_SYSTEM_CALLS: f64 = 3.5;

/// One test, because two would share the machine's cores, and then batches differ.
#[test]
fn a_request_of_one_token_costs_a_bounded_number_of_allocations_and_system_calls() {
    let workers = Workers::start(2);
    let router = Router::start(&workers);
    let clients = Clients::connect(router.address, CONNECTIONS);
    clients.ask(WARM_UP, 1);
    let each = |count: u64| count as f64 / COUNTED as f64;

    let before = ALLOCATIONS.load(Ordering::SeqCst);
    clients.ask(COUNTED, 1);
    let allocations = each(ALLOCATIONS.load(Ordering::SeqCst) - before);
    println!("{allocations:.1} allocations a request");
    assert!(allocations <= MOST_ALLOCATIONS, "{allocations} allocations a request");

    let Some(tracer) = Tracer::attach(&router.thread) else {
        println!("SKIPPED: system calls a request, because there is no strace here or it may trace nothing");
        return;
    };
    clients.ask(COUNTED, 1);
    let calls = tracer.detach();
    let all = each(calls.iter().map(|(_, count)| count).sum());
    println!("{all:.2} system calls a request: {calls:?}");
    assert!(all <= MOST_SYSTEM_CALLS, "{all} system calls a request: {calls:?}");
    let futex = calls.iter().find(|(name, _)| name == "futex").map_or(0, |(_, count)| *count);
    assert!(each(futex) <= 0.1, "locks are contended: {calls:?}");
}
