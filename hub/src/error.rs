//! Errors about models, with remedies.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a model cannot be found, downloaded or removed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages document the variants and their fields
pub enum HubError {
    #[error("`{0}` is not the name of a model; names are organisation/model, for example Qwen/Qwen3-0.6B")]
    BadName(String),
    #[error("`{0}` is not a revision; give a branch, a tag or a commit of 40 hexadecimal digits")]
    BadRevision(String),
    #[error("{variable} is `{value}`: {why}")]
    BadVariable { variable: &'static str, value: String, why: String },
    #[error(
        "neither HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME nor HOME is set, so there is no place for models; set HF_HUB_CACHE"
    )]
    NoCache,
    #[error(
        "{endpoint} has no model `{name}`{}; check the spelling",
        if *.has_token { ", or the token's account may not see it" } else { ", or it is private: set HF_TOKEN to a token that may read it" }
    )]
    NoModel { name: String, endpoint: String, has_token: bool },
    #[error("`{name}` has no revision `{revision}` at {endpoint}; give an existing branch, tag or commit")]
    NoRevision { name: String, revision: String, endpoint: String },
    #[error(
        "`{name}` is gated: accept its terms at {endpoint}/{name}{}",
        if *.has_token { " with the account of your HF_TOKEN" } else { ", then set HF_TOKEN to a token of that account" }
    )]
    Gated { name: String, endpoint: String, has_token: bool },
    #[error(
        "{endpoint} rejected the token ({status}); set HF_TOKEN to a valid one, or unset it for public models"
    )]
    Token { endpoint: String, status: u16 },
    #[error("{url} answered {status}{}", if .message.is_empty() { String::new() } else { format!(": {}", .message) })]
    Status { url: String, status: u16, message: String },
    #[error("{url}: {why}; is HF_ENDPOINT a hub?")]
    Protocol { url: String, why: String },
    #[error(
        "the certificate of {server} is not trusted ({why}); SSL_CERT_FILE can name a file with its root"
    )]
    Certificate { server: String, why: String },
    #[error(
        "{url} could not be reached in {attempts} attempts: {why}; check the network, HTTPS_PROXY and HF_ENDPOINT"
    )]
    Unreachable { url: String, attempts: u32, why: String },
    #[error(
        "the name `{host}` cannot be resolved ({why}). Without a network, HF_HUB_OFFLINE=1 serves only models that are \
         on this machine; HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy"
    )]
    Nameless { host: String, why: String },
    #[error(
        "{file} of `{name}` stopped {attempts} times without progress, most recently with: {why}; the part received is kept, so \
         start again to go on"
    )]
    BrokeOff { name: String, file: String, attempts: u32, why: String },
    #[error(
        "{file} of `{name}` arrived {attempts} times with a wrong checksum (expected {expected}); it was deleted. Is a proxy changing it?"
    )]
    Checksum { name: String, file: String, attempts: u32, expected: String },
    #[error("`{name}` has no {missing} at revision {commit}; {advice}")]
    Unsuitable { name: String, commit: String, missing: String, advice: String },
    #[error("`{name}` is not downloaded: {why}")]
    Refused { name: String, why: String },
    #[error("`{name}` is not in {} and HF_HUB_OFFLINE is set; unset it, or put the model there", .cache.display())]
    Offline { name: String, cache: PathBuf },
    #[error("`{name}` is not in {}", .cache.display())]
    NotHere { name: String, cache: PathBuf },
    #[error("another process is downloading `{name}`; try again when it has finished")]
    Busy { name: String },
    #[error("another process holds {} and nothing arrived for {} minutes; if it hangs, end it", .lock.display(), .waited.as_secs() / 60)]
    Locked { lock: PathBuf, waited: Duration },
    #[error("{}: {error}", .path.display())]
    Disk { path: PathBuf, error: io::Error },
}

impl HubError {
    /// Adds the path to a file system error.
    pub(crate) fn disk(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Disk { path: path.to_owned(), error }
    }
}
