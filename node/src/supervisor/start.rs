//! How a worker process is started, and what it is given.

use std::io::{BufRead, Error, ErrorKind};

use tokio::process::Command;

/// Longest settings that a worker reads, in bytes.
const MAX_SETTINGS_BYTES: u64 = 4 << 20;

/// The start of a worker process.
#[derive(Debug)]
pub struct WorkerStart {
    /// Its command line.
    pub command: Command,
    /// Its settings, one line, which it reads with [`settings_from_supervisor`]; empty = none.
    pub settings: String,
}

impl From<Command> for WorkerStart {
    fn from(command: Command) -> Self {
        Self { command, settings: String::new() }
    }
}

/// Reads the settings that the supervisor wrote to standard input. Call it after
/// [`Secret::from_supervisor`](super::Secret::from_supervisor) and before
/// [`end_with_supervisor`](super::end_with_supervisor), which reads the rest of the input.
///
/// # Errors
/// If standard input ends within them, or if they are too long.
pub fn settings_from_supervisor() -> std::io::Result<String> {
    read(std::io::stdin().lock())
}

fn read(input: impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    input.take(MAX_SETTINGS_BYTES).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(Error::new(
            ErrorKind::InvalidData,
            format!(
                "the supervisor's settings end after {} bytes; at most {MAX_SETTINGS_BYTES} are read",
                line.len()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_a_whole_line() {
        assert_eq!(read(&b"{\"threads\":2}\nnext"[..]).expect("a line"), "{\"threads\":2}");
        assert_eq!(read(&b"\n"[..]).expect("an empty line"), "");
        for cut in [&b""[..], b"{\"threads\""] {
            assert!(read(cut).unwrap_err().to_string().contains("end after"));
        }
    }
}
