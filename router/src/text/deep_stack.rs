//! A thread with room to recurse, for code whose recursion the data decides.

use std::io;
use std::panic::resume_unwind;
use std::thread;

/// Address space, not memory: only what is used of it becomes real.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// Runs `work` on a thread of its own and waits for it.
///
/// # Errors
/// When the system gives no thread.
pub fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let named = thread::Builder::new().name("chat-template".to_owned());
        let running = named.stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
        Ok(running.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
