//! Standard output. Its reader may stop reading (`skein run ... | head`): that ends the process quietly, with
//! the code that a shell reports for it.

use std::fmt;
use std::io::Write;

use crate::exit::{OTHER, PIPE_CLOSED};

/// Writes at once.
pub fn write(text: fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) {
        let is_closed = error.kind() == std::io::ErrorKind::BrokenPipe;
        if !is_closed {
            // Not `eprintln`, which panics where there is no room either.
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
