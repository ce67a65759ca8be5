//! The path of this program, to start it again.

use std::path::PathBuf;

/// Path of the running executable, valid even if its file has been replaced or removed since.
pub(crate) fn own_path() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { running } else { std::env::current_exe().unwrap_or(running) }
}
