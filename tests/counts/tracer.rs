//! Counts the system calls of a thread, by strace.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time until strace has attached.
const WITHIN: Duration = Duration::from_secs(20);
/// Pause between looks at the traced thread.
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub struct Tracer(Child);

impl Tracer {
    /// Starts to count the calls of `thread`; `None` if that is impossible here.
    pub fn attach(thread: &str) -> Option<Self> {
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-c", "-U", "calls,name", "-p", thread]).stdin(Stdio::null());
        let mut strace = strace.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().ok()?;
        for _ in 0..WITHIN.as_millis() / LOOK_EVERY.as_millis() {
            let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
            if !status.lines().any(|line| line == "TracerPid:\t0") {
                return Some(Self(strace));
            }
            if strace.try_wait().ok()?.is_some() {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = strace.kill();
        let _ = strace.wait();
        None
    }

    /// Ends the count; returns each call's name and number.
    pub fn detach(mut self) -> Vec<(String, u64)> {
        let id = self.0.id().to_string();
        let asked = Command::new("kill").args(["-INT", &id]).status().expect("kill runs");
        assert!(asked.success(), "strace is asked to end");
        let mut said = String::new();
        self.0.stderr.take().expect("it is piped").read_to_string(&mut said).expect("strace says its counts");
        self.0.wait().expect("strace ends");
        said.lines().filter_map(call).filter(|(name, _)| name != "total").collect()
    }
}

/// A line such as `31586 writev`; headings and rules have no number in front.
fn call(line: &str) -> Option<(String, u64)> {
    let (count, name) = line.trim().split_once(' ')?;
    Some((name.trim().to_owned(), count.parse().ok()?))
}
