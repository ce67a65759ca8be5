//! The process of a rank.

use super::{cpu_ranks, cuda_ranks};
use crate::config::DeviceKind;
use crate::group::{self, Answer, RankProcess};

/// Runs this process as a rank: joins the group, loads its part, and follows the leader until it stops.
///
/// # Errors
/// Why the rank failed; the leader has received the reason.
pub fn run_rank() -> Result<(), String> {
    let process = group::join()?;
    let outcome = serve_rank(&process);
    if let Err(reason) = &outcome {
        Answer::Failed { reason: reason.clone() }.emit();
    }
    outcome
}

fn serve_rank(process: &RankProcess) -> Result<(), String> {
    match process.welcome.device {
        DeviceKind::Cuda => cuda_ranks::serve_rank(process),
        DeviceKind::Cpu | DeviceKind::Fake => cpu_ranks::serve_on_cpu(process),
    }
}
