//! Simulated time and tasks on one thread. Time stands still while any task can run, and otherwise jumps to
//! the next timer. Nothing else affects the order, so a seed always gives the same run.

use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Once;
use std::time::Duration;

use skein_node::clock;
use tokio::time::Instant;

/// Clock reading at the start. Not zero, so that no code can mistake the start for "never".
const CLOCK_AT_START: Duration = Duration::from_secs(1000);

thread_local! {
    static STARTED: Cell<Option<Instant>> = const { Cell::new(None) };
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `life` to its end in simulated time, then drops all tasks that are left.
pub fn run<T>(life: impl Future<Output = T>) -> T {
    catch_panics_of_tasks();
    let end = End;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without input and output needs nothing of the system");
    let ended = runtime.block_on(async {
        STARTED.set(Some(Instant::now()));
        clock::simulate(Some(since_start));
        life.await
    });
    drop(runtime);
    drop(end);
    ended
}

/// Ends the simulated time when dropped, also by a panic of `life`.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        clock::simulate(None);
        STARTED.set(None);
    }
}

/// Simulated time since the start.
pub fn elapsed() -> Duration {
    STARTED.get().map_or(Duration::ZERO, |started| Instant::now() - started)
}

/// Message of the first panic in any task, if there was one.
pub fn take_panic() -> Option<String> {
    PANICKED.take()
}

/// Whether any task has panicked.
pub fn has_panicked() -> bool {
    PANICKED.with_borrow(Option::is_some)
}

fn since_start() -> Duration {
    CLOCK_AT_START + elapsed()
}

/// A panic normally ends only its task; here it must end the whole run.
fn catch_panics_of_tasks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if STARTED.get().is_none() {
                return usual(info);
            }
            PANICKED.with_borrow_mut(|panicked| {
                panicked.get_or_insert_with(|| info.to_string());
            });
        }));
    });
}
