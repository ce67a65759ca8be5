//! Standard output and standard error. If the reader of standard output stops reading (`skein run | head`),
//! the process ends quietly, with the exit code that a shell reports for SIGPIPE. Standard error may be
//! closed or full: what it does not take is lost.

use std::fmt;
use std::io::{self, Write};

use crate::exit::{OTHER, PIPE_CLOSED};

/// `eprintln!` over [`write_error`].
macro_rules! errln {
    ($($text:tt)*) => { $crate::out::write_error(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes and flushes. Ends the process if that fails.
pub fn write(text: fmt::Arguments<'_>) {
    try_write(text).unwrap_or_else(|error| end(&error));
}

/// Writes and flushes.
///
/// # Errors
/// If standard output does not take it.
pub fn try_write(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush())
}

/// Ends the process because standard output failed.
pub fn end(error: &io::Error) -> ! {
    let is_closed = error.kind() == io::ErrorKind::BrokenPipe;
    if !is_closed {
        errln!("error: cannot write to standard output: {error}");
    }
    std::process::exit(i32::from(if is_closed { PIPE_CLOSED } else { OTHER }));
}

/// Writes to standard error, or nowhere: `eprintln!` panics when its reader is gone.
pub fn write_error(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
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
