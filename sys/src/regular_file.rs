//! Reads files that others chose, such as those of a model's directory or of an adapter. Opening a named pipe
//! waits for a writer, which may never come, and a device may have no end: only regular files are opened, and
//! at most a given number of bytes is read.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens the regular file at `path`, or the one to which a link there leads. Never waits for a writer.
///
/// # Errors
/// If it cannot be opened, or is something else.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening some devices has effects, so look before.
    check(std::fs::metadata(path)?.file_type())?;
    // It may have been replaced meanwhile; with this flag even a pipe opens at once.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    check(file.metadata()?.file_type())?;
    Ok(file)
}

/// The content of the regular file at `path`, if it has at most `most` bytes.
///
/// # Errors
/// As [`open`], if it has more bytes, or if it cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > most {
        return Err(too_large(&format!("{bytes} bytes"), most));
    }
    let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
    // Files of the system state no length, and others may grow.
    file.take(most + 1).read_to_end(&mut content)?;
    if content.len() as u64 > most { Err(too_large("more", most)) } else { Ok(content) }
}

/// The same; `None` if there is no such file.
///
/// # Errors
/// As [`read`], if there is something.
pub fn read_if_there(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    match read(path, most) {
        // `NotADirectory`: what should have the file is one itself, such as a model in GGUF.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        other => other.map(Some),
    }
}

fn too_large(has: &str, most: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it has {has}, and at most {most} bytes are read"))
}

fn check(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let name = if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    let message = format!("it is {name}, and only regular files are read");
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn make_pipe(path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a string with an end.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn only_a_regular_file_within_the_bound_is_read() {
        let directory = std::env::temp_dir().join(format!("skein-regular-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("folder")).unwrap();
        let at = |name: &str| directory.join(name);
        std::fs::write(at("file"), b"12345").unwrap();
        make_pipe(&at("pipe"));
        let _socket = UnixListener::bind(at("socket")).unwrap();
        for (link, target) in
            [("to-file", "file"), ("to-pipe", "pipe"), ("to-zero", "/dev/zero"), ("to-none", "none")]
        {
            symlink(target, at(link)).unwrap();
        }
        for (name, most, expected) in [
            ("file", 5, "12345"),
            ("to-file", 5, "12345"),
            ("file", 4, "it has 5 bytes, and at most 4 bytes are read"),
            ("/proc/self/status", 10, "it has more, and at most 10 bytes are read"),
            ("pipe", 5, "it is a named pipe, and only regular files are read"),
            ("to-pipe", 5, "it is a named pipe, and only regular files are read"),
            ("to-zero", 5, "it is a device, and only regular files are read"),
            ("socket", 5, "it is a socket, and only regular files are read"),
            ("folder", 5, "it is a directory, and only regular files are read"),
            ("none", 5, "nothing"),
            ("to-none", 5, "nothing"),
            ("file/below", 5, "nothing"),
        ] {
            let found = match read_if_there(&at(name), most) {
                Ok(bytes) => bytes.map_or("nothing".to_owned(), |bytes| String::from_utf8(bytes).unwrap()),
                Err(error) => error.to_string(),
            };
            assert_eq!(found, expected, "{name}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
