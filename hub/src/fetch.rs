//! Downloads one file: resumes a partial download, verifies the checksum, and moves the file into place.

use std::path::Path;

use http::{Method, StatusCode};

use crate::api::{ATTEMPTS, Blob, granted, resolve, wait_after};
use crate::cache::Repository;
use crate::client::{Answer, Client, Follow, Trouble, protocol};
use crate::error::HubError;
use crate::lock::lock;
use crate::name::{ModelName, Revision};
use crate::partial::Partial;

/// Most downloads of a file with a wrong checksum.
const MAX_CORRUPTED: u32 = 3;
/// Receiving this many bytes resets the attempt count.
const PROGRESS_BYTES: u64 = 64 << 10;

/// File to download.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Model to which the file belongs.
    pub name: &'a ModelName,
    /// Hash of the commit.
    pub commit: &'a str,
    /// Path of the file in the repository.
    pub file: &'a str,
    /// Expected checksum and size.
    pub blob: &'a Blob,
}

/// Downloads the content of `wanted` into `repository`, reporting changes in its size.
pub async fn fetch(
    client: &Client,
    repository: &Repository,
    wanted: &Wanted<'_>,
    report: &(dyn Fn(i64) + Sync),
) -> Result<(), HubError> {
    let place = repository.blob(&wanted.blob.etag);
    if has_size(&place, wanted.blob.size) {
        report(wanted.blob.size as i64);
        return Ok(());
    }
    let _lock = lock(&repository.blob_lock(&wanted.blob.etag), || repository.bytes()).await?;
    // Another process may have downloaded it while this one waited for the lock.
    if has_size(&place, wanted.blob.size) {
        report(wanted.blob.size as i64);
        return Ok(());
    }
    let incomplete = repository.incomplete(&wanted.blob.etag);
    let mut partial = Partial::open(&incomplete, wanted.blob).map_err(HubError::disk(&incomplete))?;
    report(partial.length() as i64);
    complete(client, wanted, &mut partial, report).await?;
    partial.finish(&place).map_err(HubError::disk(&place))
}

fn has_size(path: &Path, size: u64) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.len() == size)
}

/// Downloads until the file is complete and verified.
async fn complete(
    client: &Client,
    wanted: &Wanted<'_>,
    partial: &mut Partial,
    report: &(dyn Fn(i64) + Sync),
) -> Result<(), HubError> {
    let (mut failed, mut idle, mut corrupted) = (0, 0, 0);
    loop {
        if partial.is_right() {
            return Ok(());
        }
        if partial.is_whole() {
            corrupted += 1;
            restart(wanted, partial, report)?;
            if corrupted >= MAX_CORRUPTED {
                return Err(wrong_checksum(wanted, corrupted));
            }
            tracing::warn!(file = wanted.file, "the checksum is wrong; downloading the file again");
        }
        let before = partial.length();
        let (why, retry_after) = match read(client, wanted, partial, report).await {
            Ok(()) => continue,
            Err(Trouble::Lasting(error)) => return Err(error),
            Err(Trouble::Nameless { host, why }) => (format!("`{host}` cannot be resolved: {why}"), None),
            Err(Trouble::Passing { why, retry_after }) => (why, retry_after),
        };
        let gained = partial.length().saturating_sub(before);
        failed = if gained >= PROGRESS_BYTES { 1 } else { failed + 1 };
        if failed >= ATTEMPTS {
            return Err(broke_off(wanted, failed, why));
        }
        // The connection made progress, so retry soon.
        idle = if gained > 0 { 1 } else { idle + 1 };
        wait_after(idle, retry_after, &why).await;
    }
}

/// One attempt: downloads from the end of the partial file.
async fn read(
    client: &Client,
    wanted: &Wanted<'_>,
    partial: &mut Partial,
    report: &(dyn Fn(i64) + Sync),
) -> Result<(), Trouble> {
    let url = client.url(&resolve(wanted.name, wanted.commit, wanted.file))?;
    let answer = client.send(Method::GET, &url, partial.length(), Follow::All).await?;
    let mut answer = granted(client, wanted.name, &Revision::parse(wanted.commit)?, answer).await?;
    match (answer.status, start_of(&answer)) {
        (StatusCode::PARTIAL_CONTENT, Some(start)) if start == partial.length() => {}
        // A server that ignores the range sends the whole file.
        (StatusCode::OK, _) => restart(wanted, partial, report)?,
        (StatusCode::RANGE_NOT_SATISFIABLE, _) => {
            restart(wanted, partial, report)?;
            return Err(Trouble::passing("the server has a shorter file"));
        }
        (status, _) => {
            return Err(protocol(&url, format!("it answered a range request with {status}")).into());
        }
    }
    while let Some(bytes) = answer.chunk().await? {
        if !partial.append(&bytes).map_err(on_disk(wanted))? {
            restart(wanted, partial, report)?;
            return Err(Trouble::passing("the server has a longer file"));
        }
        report(bytes.len() as i64);
    }
    if partial.is_whole() { Ok(()) } else { Err(Trouble::passing("the connection closed early")) }
}

/// First byte position of a partial response.
fn start_of(answer: &Answer) -> Option<u64> {
    answer.header("content-range")?.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

fn restart(
    wanted: &Wanted<'_>,
    partial: &mut Partial,
    report: &(dyn Fn(i64) + Sync),
) -> Result<(), HubError> {
    report(-(partial.length() as i64));
    partial.restart().map_err(on_disk(wanted))
}

fn on_disk(wanted: &Wanted<'_>) -> impl FnOnce(std::io::Error) -> HubError {
    HubError::disk(Path::new(wanted.file))
}

fn wrong_checksum(wanted: &Wanted<'_>, attempts: u32) -> HubError {
    let (name, file) = (wanted.name.to_string(), wanted.file.to_owned());
    HubError::Checksum { name, file, attempts, expected: wanted.blob.etag.clone() }
}

fn broke_off(wanted: &Wanted<'_>, attempts: u32, why: String) -> HubError {
    HubError::BrokeOff { name: wanted.name.to_string(), file: wanted.file.to_owned(), attempts, why }
}
