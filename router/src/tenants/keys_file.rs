//! The keys that count now, and the file from which they are read again when it changes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use skein_node::clock;
use skein_sys::regular_file;
use tokio::task::{AbortHandle, spawn_blocking};

use super::error::KeysError;
use super::file::{KeySet, MAX_FILE_BYTES};
use super::key::{Key, Rights};
use super::secret::{SHORTEST, hash};

/// How often the file is looked at. A change counts once two looks in a row see the same, so that a file that
/// is being written is not read half.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file of keys; clones share what was read. A new file that cannot be used changes nothing.
#[derive(Debug, Clone)]
pub struct KeysFile(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    keys: RwLock<Arc<KeySet>>,
    is_valid: AtomicBool,
    loaded: AtomicU64,
    refused: AtomicU64,
    /// Of the file when it was opened.
    stamp: Option<Stamp>,
}

/// What a key opens.
#[derive(Debug)]
pub enum Found {
    /// Its entry.
    Key(Arc<Key>),
    /// It did until some time ago.
    Expired,
    /// It is in no entry.
    Unknown,
}

/// Reads the file again when it changes, until it is dropped.
#[derive(Debug)]
pub struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What tells a changed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl KeysFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(path: &Path) -> Result<Self, KeysError> {
        // Before it is read: a change in between is seen later.
        let stamp = Stamp::of(path);
        let keys = read(path, &KeySet::default())?;
        Ok(Self(Arc::new(Shared {
            path: path.to_owned(),
            keys: RwLock::new(Arc::new(keys)),
            is_valid: AtomicBool::new(true),
            loaded: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stamp,
        })))
    }

    /// The keys that count now.
    pub fn keys(&self) -> Arc<KeySet> {
        self.0.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks a client's key up. The time that this takes says nothing of the keys in the file: it depends on
    /// the given key's hash, and nobody can choose keys by their hashes' beginnings to approach another one.
    pub fn find(&self, given: &[u8]) -> Found {
        if given.len() < SHORTEST {
            return Found::Unknown;
        }
        let hash = hash(given);
        let guard = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        let Some(key) = guard.find(&hash) else { return Found::Unknown };
        match key.expires {
            Some(expires) if clock::unix_time().as_secs() >= expires.0 => Found::Expired,
            _ => Found::Key(key.clone()),
        }
    }

    /// Whether a key of the file may change the server for all clients.
    pub fn has_admin(&self) -> bool {
        self.0.keys.read().unwrap_or_else(PoisonError::into_inner).has_admin()
    }

    /// The key under which a batch of the tenant runs that `is_owner` recognises by its name; `None` if the
    /// file has no such tenant any more.
    pub fn key_for_batch(
        &self,
        is_owner: impl Fn(&str) -> bool,
        rights: Option<&Rights>,
    ) -> Option<Arc<Key>> {
        let keys = self.keys();
        let tenant = keys.tenants().find(|name| is_owner(name))?;
        let unrestricted =
            || Rights { key: "batch".to_owned(), models: None, priority: 0, highest_priority: 0 };
        Some(Arc::new(Key::for_batch(tenant, rights.cloned().unwrap_or_else(unrestricted))))
    }

    /// Whether the file, as it is now, can be used.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid.load(Ordering::Relaxed)
    }

    /// How often a changed file counted, and how often it could not be used.
    pub fn reloads(&self) -> (u64, u64) {
        (self.0.loaded.load(Ordering::Relaxed), self.0.refused.load(Ordering::Relaxed))
    }

    /// Reads the file again. Running requests keep the key that they began with.
    ///
    /// # Errors
    /// If it cannot be used; the keys before it then still count.
    pub fn reload(&self) -> Result<(), KeysError> {
        let read = read(&self.0.path, &self.keys());
        self.0.is_valid.store(read.is_ok(), Ordering::Relaxed);
        let counter = if read.is_ok() { &self.0.loaded } else { &self.0.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        let keys = Arc::new(read?);
        *self.0.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    /// Reads the file again whenever it changes. Must be called within a tokio runtime.
    pub fn watch(&self) -> Watch {
        let file = self.clone();
        Watch(tokio::spawn(async move { file.follow().await }).abort_handle())
    }

    async fn follow(self) {
        let (mut read, mut seen) = (self.0.stamp, self.0.stamp);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let path = self.0.path.clone();
            let Ok(now) = spawn_blocking(move || Stamp::of(&path)).await else { continue };
            if seen == now && read != now {
                read = now;
                self.changed().await;
            }
            seen = now;
        }
    }

    async fn changed(&self) {
        let before = self.keys().keys().len();
        let file = self.clone();
        match spawn_blocking(move || file.reload()).await {
            Ok(Ok(())) => {
                let (path, keys) = (self.0.path.display(), self.keys().keys().len());
                tracing::info!(%path, keys, before, "the keys file has changed");
            }
            Ok(Err(error)) => tracing::error!(%error, "the keys that were read before still count"),
            Err(error) => tracing::error!(%error, "the keys file was not read"),
        }
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { modified: metadata.modified().ok(), bytes: metadata.len(), inode: metadata.ino() })
    }
}

fn read(path: &Path, before: &KeySet) -> Result<KeySet, KeysError> {
    let failed = |error| KeysError::Io { path: path.to_owned(), error };
    let bytes = regular_file::read(path, MAX_FILE_BYTES).map_err(failed)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not UTF-8")))?;
    KeySet::parse(path, &text, before)
}
