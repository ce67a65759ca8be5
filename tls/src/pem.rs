//! PEM files: certificates and keys, bounded in size.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::TlsError;

/// Most bytes of one file. A system's whole bundle of roots has a quarter of it.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The file's bytes.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |why| TlsError::Unreadable { path: path.to_owned(), why };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(TlsError::TooLarge { path: path.to_owned(), limit: MAX_FILE_BYTES });
    }
    Ok(bytes)
}

/// All certificates of a file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|why| not_pem(path, &why))?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

/// The first private key of a file, which may have certificates beside it.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read(path)?;
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) if is_encrypted(&bytes) => {
            Err(TlsError::EncryptedKey { path: path.to_owned() })
        }
        Err(pem::Error::NoItemsFound) => Err(TlsError::NoKey { path: path.to_owned() }),
        Err(why) => Err(not_pem(path, &why)),
    }
}

fn is_encrypted(bytes: &[u8]) -> bool {
    let marks = [&b"BEGIN ENCRYPTED PRIVATE KEY"[..], b"Proc-Type: 4,ENCRYPTED"];
    marks.iter().any(|mark| bytes.windows(mark.len()).any(|window| window == *mark))
}

fn not_pem(path: &Path, why: &pem::Error) -> TlsError {
    TlsError::NotPem { path: path.to_owned(), why: why.to_string() }
}
