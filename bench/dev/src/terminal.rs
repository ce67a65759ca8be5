//! Standard output, and progress on standard error.

use std::io::{ErrorKind, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;

/// Writes `text` to standard output and flushes.
///
/// # Errors
/// If it cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Other(format!("cannot write to standard output: {error}")),
    })
}

/// A bar on a terminal, else nothing.
pub fn progress_bar(length: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}
