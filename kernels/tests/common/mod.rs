//! Tests whose ranks are processes: each starts the test binary once per rank.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What each of `ranks` processes prints behind `said: `, or all that it prints. `prepare` sets the variables
/// of a rank, whose test is `a_rank`.
///
/// # Panics
/// If all of them together take longer than `within`.
pub fn said(ranks: usize, within: Duration, prepare: impl Fn(usize, &mut Command)) -> Vec<String> {
    let began = now();
    let start = |rank: usize| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_rank", "--ignored", "--nocapture"]);
        prepare(rank, &mut command);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let said = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find_map(|line| line.split_once("said: ")).map_or(text.clone(), |(_, it)| it.to_owned())
    });
    let said: Vec<String> = said.collect();
    assert!(began.elapsed() < within, "{ranks} ranks took {:?}: {said:?}", began.elapsed());
    said
}

#[allow(clippy::disallowed_methods)] // how long a test takes
pub fn now() -> Instant {
    Instant::now()
}
