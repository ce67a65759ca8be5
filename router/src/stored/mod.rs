//! Answers of the Responses API that clients come back to, each tenant to its own. The crate `skein_state`
//! stores them; `running` knows those that are being made in the background.

mod running;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use skein_node::clock;
use skein_state::{Counts, Limits, StateError, Store};

pub use running::{MAX_RUNNING, MAX_WAITING, Place, Running};

pub use skein_state::{Limits as StoreLimits, check_file, lock_file};

use crate::batch::disk::Disk;
use crate::refusal::Refusal;
use crate::request::tenant::Tenant;
use crate::tenants::owners::Owners;

/// Stored answers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StoredResponses(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    /// `None` in memory, where names of tenants are as safe as the tenants.
    owners: Option<Owners>,
    running: Running,
    limits: Limits,
}

impl StoredResponses {
    /// Opens those in `directory`, which is made if need be.
    ///
    /// # Errors
    /// If another process uses it, it is something else, or the disk fails.
    pub fn open(directory: &Path, limits: Limits) -> Result<Self, StateError> {
        let store = Store::open(directory, limits, seconds)?;
        let owners = Owners::open(directory, &Disk::default()).and_then(|owners| match owners.has_key() {
            true => Ok(owners),
            // Under other names nobody would find what is stored from now on.
            false => Err(ErrorKind::StorageFull.into()),
        });
        let owners = owners.map_err(|error| StateError::Io { path: directory.to_owned(), error })?;
        Ok(Self(Arc::new(Inner { store, owners: Some(owners), running: Running::default(), limits })))
    }

    /// Keeps them in memory, until this process ends.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn in_memory(limits: Limits) -> Result<Self, StateError> {
        let store = Store::in_memory(limits, seconds)?;
        Ok(Self(Arc::new(Inner { store, owners: None, running: Running::default(), limits })))
    }

    /// Where they are.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Those that are being made in the background.
    pub fn running(&self) -> &Running {
        &self.0.running
    }

    /// Name of `tenant` in the store.
    pub fn owner(&self, tenant: &Tenant) -> String {
        self.owner_named(tenant.name())
    }

    /// The same by the tenant's name.
    pub fn owner_named(&self, name: &str) -> String {
        self.0.owners.as_ref().map_or_else(|| name.to_owned(), |owners| owners.name(name))
    }

    /// What there is and what was done.
    pub fn counts(&self) -> Counts {
        self.0.store.counts()
    }

    /// Most bytes of all.
    pub fn limit(&self) -> u64 {
        self.0.limits.bytes
    }
}

fn seconds() -> u64 {
    clock::unix_time().as_secs()
}

/// What a client learns of a store that failed. The store itself logs writes that fail.
impl From<StateError> for Refusal {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Unknown(id) => Self::NoPreviousResponse(format!(
                "Previous response with id '{}' not found: it was not stored, has expired, made room for others, or was \
                     deleted; send the whole conversation in input.",
                shortened(&id)
            )),
            StateError::Broken { id, missing } => Self::NoPreviousResponse(format!(
                "Response '{}' continues '{}', which was deleted; send the whole conversation in input.",
                shortened(&id),
                shortened(&missing)
            )),
            StateError::TooLong { .. } => {
                Self::invalid("previous_response_id", format!("The {error}; begin a new conversation."))
            }
            error if error.is_disk_full() => Self::NoRoom,
            StateError::TooLarge { bytes, limit } => Self::Invalid {
                param: None,
                message: format!(
                    "This conversation cannot be stored: it has {bytes} bytes, and all responses may have {limit}; begin a new \
                     one, or answer it in the foreground with store: false."
                ),
            },
            error => {
                tracing::error!(%error, "stored responses");
                Self::Internal
            }
        }
    }
}

/// A client's id as an error repeats it.
pub fn shortened(id: &str) -> String {
    id.escape_default().take(80).collect()
}
