//! What each tenant stores, against its limits. Pure.

use std::collections::HashMap;

use super::error::StoreError;
use super::record::{FileRecord, Purpose};
use crate::config::BatchLimits;

/// Files and bytes of all tenants, with those of uploads that have not ended.
#[derive(Debug, Default)]
pub(super) struct Usage {
    tenants: HashMap<String, Used>,
    bytes: u64,
}

/// What one tenant stores.
#[derive(Debug, Default)]
struct Used {
    /// Uploaded files. A job's results do not count, so that no accepted job is without room for them.
    files: u64,
    /// Bytes of all files.
    bytes: u64,
}

impl Usage {
    /// Takes a file of `tenant` into account.
    pub fn reserve_file(&mut self, tenant: &str, limits: &BatchLimits) -> Result<(), StoreError> {
        let used = self.tenants.entry(tenant.to_owned()).or_default();
        if used.files >= limits.files_per_key {
            return Err(StoreError::TooManyFiles(limits.files_per_key));
        }
        used.files += 1;
        Ok(())
    }

    /// Takes `bytes` more of an upload of `tenant` into account.
    pub fn reserve_bytes(
        &mut self,
        tenant: &str,
        bytes: u64,
        limits: &BatchLimits,
    ) -> Result<(), StoreError> {
        let used = self.tenants.entry(tenant.to_owned()).or_default();
        if used.bytes + bytes > limits.bytes_per_key {
            return Err(StoreError::TooManyBytes(limits.bytes_per_key));
        }
        if self.bytes + bytes > limits.bytes {
            return Err(StoreError::Full);
        }
        used.bytes += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes back what an upload reserved.
    pub fn release(&mut self, tenant: &str, files: u64, bytes: u64) {
        let Some(used) = self.tenants.get_mut(tenant) else { return };
        used.files = used.files.saturating_sub(files);
        used.bytes = used.bytes.saturating_sub(bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        if used.files == 0 && used.bytes == 0 {
            self.tenants.remove(tenant);
        }
    }

    /// Counts a file that exists, whatever the limits.
    pub fn add(&mut self, file: &FileRecord) {
        let used = self.tenants.entry(file.tenant.clone()).or_default();
        used.files += uploads(file);
        used.bytes += file.bytes;
        self.bytes += file.bytes;
    }

    /// Stops counting a file.
    pub fn remove(&mut self, file: &FileRecord) {
        self.release(&file.tenant, uploads(file), file.bytes);
    }
}

fn uploads(file: &FileRecord) -> u64 {
    u64::from(file.purpose == Purpose::Batch)
}
