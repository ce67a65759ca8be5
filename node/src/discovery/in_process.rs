//! Members that this process knows of itself: a supervisor and its children.

use tokio::sync::mpsc;

use super::{CHANGES_IN_FLIGHT, Change};

/// A source in this process: whoever holds the sender says who joins and leaves.
pub fn in_process() -> (mpsc::Sender<Change>, mpsc::Receiver<Change>) {
    mpsc::channel(CHANGES_IN_FLIGHT)
}
