//! Keys of a file, and what each may do: its tenant, models, priority and limits. `file` reads the text,
//! `keys_file` keeps the entries that count now and reads the file again when it changes. `bucket` and
//! `meter` are pure; `owners` names tenants in directories; `charge` is what one request takes from the
//! limits of its key and of its tenant. `usage_log` writes a line for each request.

mod bucket;
mod charge;
mod date;
mod error;
mod file;
mod key;
mod keys_file;
mod meter;
pub(crate) mod owners;
mod secret;
pub(crate) mod tenant_of;
pub mod usage_log;

pub use charge::Charge;
pub use date::DateTime;
pub use error::KeysError;
pub use file::{KeySet, MAX_FILE_BYTES};
pub use key::{Key, Rights};
pub use keys_file::{Found, KeysFile, Watch};
pub use meter::{Limits, Quota, Quotas};
pub use secret::{Secret, hash_text};
