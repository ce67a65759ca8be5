//! Standard output. If its reader stops reading (`skein run ... | head`), the process ends quietly, with the
//! exit code that a shell reports for SIGPIPE.

use std::fmt;
use std::io::Write;

use crate::exit::{OTHER, PIPE_CLOSED};

/// Writes and flushes. Ends the process if that fails.
pub fn write(text: fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        let is_closed = error.kind() == std::io::ErrorKind::BrokenPipe;
        if !is_closed {
            // Not `eprintln`, which panics if standard error is full, too.
            let _ = writeln!(std::io::stderr(), "error: cannot write to standard output: {error}");
        }
        std::process::exit(i32::from(if is_closed { PIPE_CLOSED } else { OTHER }));
    }
}

/// `print!` over [`write`].
macro_rules! out {
    ($($text:tt)*) => { $crate::out::write(format_args!($($text)*)) };
}

/// `println!` over [`write`].
macro_rules! outln {
    () => { $crate::out::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::write(format_args!("{}\n", format_args!($($text)*))) };
}
