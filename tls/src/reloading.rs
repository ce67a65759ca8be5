//! A value made of files, which is made again when they have changed.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use ring::digest::{Context, SHA256};

use crate::error::TlsError;
use crate::pem;

/// Contents of all files of a value.
type Fingerprint = [u8; 32];

pub(crate) struct Reloading<T> {
    paths: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, TlsError> + Send + Sync>,
    current: RwLock<(Arc<T>, Fingerprint)>,
}

impl<T> Reloading<T> {
    pub(crate) fn read(
        paths: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        // Before `make`: a file that changes meanwhile is read once more by the next `reload`.
        let fingerprint = fingerprint(&paths)?;
        let current = RwLock::new((Arc::new(make()?), fingerprint));
        Ok(Self { paths, make: Box::new(make), current })
    }

    pub(crate) fn current(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Whether the files had changed and are used now. Files that cannot be used, as while they are being
    /// replaced one after the other, leave the value as it was and are tried again by the next call.
    pub(crate) fn reload(&self) -> Result<bool, TlsError> {
        let found = fingerprint(&self.paths)?;
        if self.current.read().unwrap_or_else(PoisonError::into_inner).1 == found {
            return Ok(false);
        }
        let made = Arc::new((self.make)()?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (made, found);
        Ok(true)
    }
}

fn fingerprint(paths: &[PathBuf]) -> Result<Fingerprint, TlsError> {
    let mut context = Context::new(&SHA256);
    for path in paths {
        let bytes = pem::read(path)?;
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(&bytes);
    }
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(context.finish().as_ref());
    Ok(fingerprint)
}
