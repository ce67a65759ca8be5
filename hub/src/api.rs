//! The hub's protocol: resolves a revision to a commit and its files, and a file to a checksum and a size.

use std::time::Duration;

use http::Method;
use serde_json::Value;

use crate::checksum::Checksum;
use crate::client::{Answer, Client, Follow, Trouble, protocol};
use crate::error::HubError;
use crate::name::{ModelName, Revision, is_commit, is_part};

/// Most attempts for a request, or for a file's download without progress.
pub const ATTEMPTS: u32 = 8;
/// Most attempts for a request whose server's name has no address: most often there is no network at all.
const NAME_ATTEMPTS: u32 = 2;
/// Delay after the first failed attempt; doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Longest delay between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// Longest excerpt of a server's error text, in bytes.
const MAX_MESSAGE: usize = 300;

/// Files of a revision, as listed by the hub.
#[derive(Debug)]
pub struct Listing {
    /// Hash of the commit.
    pub commit: String,
    /// Files of the repository at this commit.
    pub files: Vec<Listed>,
}

/// File in a listing.
#[derive(Debug)]
pub struct Listed {
    /// Path in the repository.
    pub name: String,
    /// Checksum and size, if the listing contains them.
    pub blob: Option<Blob>,
}

/// Content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Name in the cache, which is the checksum.
    pub etag: String,
    /// Size in bytes.
    pub size: u64,
}

impl Blob {
    /// Kind of checksum in `etag`.
    pub fn checksum(&self) -> Checksum {
        Checksum::of(&self.etag)
    }
}

/// Resolves `revision` to a commit and lists its files.
pub async fn listing(client: &Client, name: &ModelName, revision: &Revision) -> Result<Listing, HubError> {
    let quoted = revision.as_str().replace('/', "%2F");
    let url = client.url(&format!("api/models/{name}/revision/{quoted}?blobs=true"))?;
    let body = with_retries(url.as_str(), || async {
        let answer = client.send(Method::GET, &url, 0, Follow::All).await?;
        let answer = granted(client, name, revision, answer).await?;
        answer.text().await
    });
    parse_listing(&body.await?).map_err(|why| protocol(&url, why))
}

/// Checksum and size of `file` at `commit`, for hubs whose listing omits them.
pub async fn blob(client: &Client, name: &ModelName, commit: &str, file: &str) -> Result<Blob, HubError> {
    let url = client.url(&resolve(name, commit, file))?;
    let revision = Revision::parse(commit)?;
    let answer = with_retries(url.as_str(), || async {
        let answer = client.send(Method::HEAD, &url, 0, Follow::Hub).await?;
        granted(client, name, &revision, answer).await
    });
    let answer = answer.await?;
    let etag = answer.header("x-linked-etag").or_else(|| answer.header("etag"));
    let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
    let size = answer.header("x-linked-size").or_else(|| answer.header("content-length"));
    match (etag.filter(|etag| is_part(etag)), size.and_then(|size| size.parse().ok())) {
        (Some(etag), Some(size)) => Ok(Blob { etag, size }),
        _ => Err(protocol(&url, "it reports no checksum (ETag) or no size".to_owned())),
    }
}

/// URL path of a file's content.
pub fn resolve(name: &ModelName, commit: &str, file: &str) -> String {
    format!("{name}/resolve/{commit}/{file}")
}

/// Sends a request. Returns success, redirects and 416 (nothing left of the range); anything else is an
/// error.
pub async fn granted(
    client: &Client,
    name: &ModelName,
    revision: &Revision,
    answer: Answer,
) -> Result<Answer, Trouble> {
    if answer.status.is_success() || answer.status.is_redirection() || answer.status == 416 {
        return Ok(answer);
    }
    let code = answer.header("x-error-code").unwrap_or_default().to_owned();
    let message = answer.header("x-error-message").unwrap_or_default();
    let message: String = message.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
    let (status, has_token, endpoint) =
        (answer.status.as_u16(), client.has_token(), client.endpoint().to_owned());
    let name = name.to_string();
    Err(Trouble::Lasting(match (status, code.as_str()) {
        (_, "GatedRepo") => HubError::Gated { name, endpoint, has_token },
        (_, "RevisionNotFound") => HubError::NoRevision { name, revision: revision.to_string(), endpoint },
        (401, "") if has_token => HubError::Token { endpoint, status },
        (401 | 404, _) => HubError::NoModel { name, endpoint, has_token },
        _ => HubError::Status { url: format!("{endpoint}/{name}"), status, message },
    }))
}

/// Repeats a request after transient failures, up to [`ATTEMPTS`] times; without an address, up to
/// [`NAME_ATTEMPTS`] times.
pub async fn with_retries<T, F>(url: &str, mut request: impl FnMut() -> F) -> Result<T, HubError>
where
    F: Future<Output = Result<T, Trouble>>,
{
    let mut attempts = 0;
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(Trouble::Lasting(error)) => return Err(error),
            Err(Trouble::Nameless { host, why }) => {
                attempts += 1;
                if attempts >= NAME_ATTEMPTS {
                    return Err(HubError::Nameless { host, why });
                }
                wait_after(attempts, None, &why).await;
            }
            Err(Trouble::Passing { why, retry_after }) => {
                attempts += 1;
                if attempts >= ATTEMPTS {
                    return Err(HubError::Unreachable { url: url.to_owned(), attempts, why });
                }
                wait_after(attempts, retry_after, &why).await;
            }
        }
    }
}

/// Waits after failed attempt `attempt`, counted from 1.
pub async fn wait_after(attempt: u32, retry_after: Option<Duration>, why: &str) {
    let doubled = FIRST_WAIT * 2_u32.pow(attempt.saturating_sub(1).min(10));
    let wait = retry_after.unwrap_or_default().max(doubled.min(LONGEST_WAIT));
    tracing::warn!(attempt, of = ATTEMPTS, why, ?wait, "a request to the hub failed; retrying");
    tokio::time::sleep(wait).await;
}

pub(crate) fn parse_listing(body: &[u8]) -> Result<Listing, String> {
    let body: Value =
        serde_json::from_slice(body).map_err(|error| format!("the response is not JSON: {error}"))?;
    let commit =
        body["sha"].as_str().filter(|sha| is_commit(sha)).ok_or("the response has no commit (`sha`)")?;
    let files = body["siblings"].as_array().ok_or("the response lists no files (`siblings`)")?;
    let files = files.iter().filter_map(|file| {
        Some(Listed { name: file["rfilename"].as_str()?.to_owned(), blob: parse_blob(file) })
    });
    Ok(Listing { commit: commit.to_owned(), files: files.collect() })
}

/// Reads the `lfs` entry of large files, or else `blobId` and `size`.
fn parse_blob(file: &Value) -> Option<Blob> {
    let lfs = &file["lfs"];
    let (etag, size) =
        if lfs.is_object() { (&lfs["sha256"], &lfs["size"]) } else { (&file["blobId"], &file["size"]) };
    let etag = etag.as_str().filter(|etag| Checksum::of(etag) != Checksum::Unknown)?;
    Some(Blob { etag: etag.to_owned(), size: size.as_u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA1: &str = "ce013625030ba8dba906f756967f9e9ca394464a";
    const SHA256: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

    #[test]
    fn large_files_are_named_by_their_content_and_not_by_their_pointer() {
        let body = format!(
            r#"{{"sha": "{SHA1}", "siblings": [
                {{"rfilename": "config.json", "blobId": "{SHA1}", "size": 6}},
                {{"rfilename": "model.safetensors", "blobId": "{SHA1}", "size": 6,
                  "lfs": {{"sha256": "{SHA256}", "size": 6, "pointerSize": 128}}}},
                {{"rfilename": "bare"}}]}}"#
        );
        let listing = parse_listing(body.as_bytes()).unwrap();
        let etags = listing.files.iter().map(|file| file.blob.as_ref().map(|blob| blob.etag.as_str()));
        assert_eq!(etags.collect::<Vec<_>>(), [Some(SHA1), Some(SHA256), None]);
    }

    #[test]
    fn answers_of_other_servers_are_refused() {
        for bad in
            ["<html>", "{}", r#"{"sha": "main", "siblings": []}"#, r#"{"sha": "../../x", "siblings": []}"#]
        {
            assert!(parse_listing(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
