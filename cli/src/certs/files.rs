//! Files of certificates and keys: new ones never replace others, keys are readable by their owner only.

use std::fmt::Write as _;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::error::CertsError;

/// Permissions of a new directory.
const DIRECTORY_MODE: u32 = 0o755;
/// Permissions of a key or secret.
const SECRET_MODE: u32 = 0o600;
/// Permissions of a certificate.
const PUBLIC_MODE: u32 = 0o644;
/// Longest file that is read: a few certificates.
const MAX_BYTES: u64 = 1 << 20;

/// Text of a file.
///
/// # Errors
/// If it cannot be read, or is far too long for a certificate.
pub fn read(path: &Path) -> Result<String, CertsError> {
    let failed = |error: std::io::Error| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match error.kind() {
            ErrorKind::NotFound if name.starts_with("ca.") => CertsError::NoAuthority(path.into()),
            ErrorKind::NotFound => CertsError::NothingToRenew(path.into()),
            _ => CertsError::File { path: path.into(), doing: "read", error },
        }
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// # Errors
/// If the file exists.
pub fn must_be_new(path: &Path) -> Result<(), CertsError> {
    if path.symlink_metadata().is_ok() { Err(exists(path)) } else { Ok(()) }
}

fn exists(path: &Path) -> CertsError {
    let is_authority = path.file_stem().is_some_and(|name| name == "ca");
    let hint = if is_authority { "" } else { "; --renew replaces a node's certificate" };
    CertsError::Exists { path: path.into(), hint }
}

/// Writes a file that must not exist; its directory is made if necessary.
///
/// # Errors
/// If it exists or cannot be written.
pub fn write_new(path: &Path, text: &str, secret: bool) -> Result<(), CertsError> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => CertsError::File { path: path.into(), doing: "written", error },
    };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory).map_err(failed)?;
    }
    let mode = if secret { SECRET_MODE } else { PUBLIC_MODE };
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = file.map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// Replaces a public file in one step: a reader sees the old one or the new one.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, text: &str) -> Result<(), CertsError> {
    let beside = path.with_extension(format!("crt.{}", std::process::id()));
    write_new(&beside, text, false)?;
    std::fs::rename(&beside, path).map_err(|error| {
        // The old certificate is still in place.
        let _ = std::fs::remove_file(&beside);
        CertsError::File { path: path.into(), doing: "replaced", error }
    })
}

/// Random bytes of the system, in hexadecimal.
///
/// # Errors
/// If the system has none.
pub fn random_hex(bytes: usize) -> Result<String, CertsError> {
    let source = Path::new("/dev/urandom");
    let failed = |error| CertsError::File { path: source.into(), doing: "read", error };
    let mut random = vec![0; bytes];
    std::fs::File::open(source).and_then(|mut file| file.read_exact(&mut random)).map_err(failed)?;
    Ok(random.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
