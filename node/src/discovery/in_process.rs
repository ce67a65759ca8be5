//! Members announced by this process itself, for example by a supervisor for its children.

use tokio::sync::mpsc;

use super::{CHANGES_IN_FLIGHT, Change};

/// A source within this process: the holder of the sender announces joins and leaves.
pub fn in_process() -> (mpsc::Sender<Change>, mpsc::Receiver<Change>) {
    mpsc::channel(CHANGES_IN_FLIGHT)
}
