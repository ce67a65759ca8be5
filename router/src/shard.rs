//! The shard that a task runs on: an event loop on a thread of its own that serves a part of the connections.
//! Holds the number of this thread's shard and knows neither runtimes nor requests.

use std::cell::Cell;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The shard of the calling thread: 1 and more on the threads of shards, 0 everywhere else (background work,
/// servers without shards).
pub fn current() -> usize {
    CURRENT.get()
}

/// Makes the calling thread the thread of `shard`, for as long as it lives.
pub fn enter(shard: usize) {
    CURRENT.set(shard);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_number_it_was_given() {
        let given = std::thread::spawn(|| {
            enter(3);
            current()
        });
        assert_eq!((given.join().unwrap(), current()), (3, 0));
    }
}
