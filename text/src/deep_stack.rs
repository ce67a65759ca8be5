//! A thread with a deep stack, for code whose recursion depth depends on data.

use std::io;
use std::panic::resume_unwind;
use std::thread;

/// Stack size: address space, of which only the used part takes memory.
pub const STACK_BYTES: usize = 256 * 1024 * 1024;

/// Runs `work` on its own thread and waits for it.
///
/// # Errors
/// If the system cannot start the thread.
pub fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let named = thread::Builder::new().name("chat-template".to_owned());
        let running = named.stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
        Ok(running.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
