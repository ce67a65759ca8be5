//! Downloads a model: all files that Skein reads, then the ref to their commit.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use futures::{StreamExt, TryStreamExt, stream};
use skein_sys::regular_file;

use crate::api::{self, Blob, Listing};
use crate::cache::{Cache, Repository};
use crate::client::Client;
use crate::environment::Environment;
use crate::error::HubError;
use crate::fetch::{Wanted, fetch};
use crate::files::{self, Need, Weights};
use crate::lock::lock;
use crate::name::{ModelName, Revision};

/// Most files downloaded concurrently.
const FILES_AT_ONCE: usize = 4;
/// Largest weights index that is read, in bytes.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Progress of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes on disk.
    pub done: u64,
    /// Total bytes of all files known so far.
    pub total: u64,
}

/// Callbacks of a download.
pub struct Watch<'a> {
    /// Called after every change.
    pub progress: &'a (dyn Fn(Progress) + Sync),
    /// Checks the directory before the weights are downloaded. An error cancels the download.
    pub accepts: &'a (dyn Fn(&Path) -> Result<(), String> + Sync),
}

/// Cache and the hub behind it.
#[derive(Debug)]
pub struct Hub {
    cache: Cache,
    environment: Environment,
}

impl Hub {
    /// Cache and hub specified by `environment`.
    pub fn new(environment: Environment) -> Self {
        Self { cache: Cache::new(&environment.cache), environment }
    }

    /// Local cache of models.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Directory of `name`: from the cache if complete, otherwise downloaded.
    ///
    /// # Errors
    /// If it is not cached and cannot be downloaded.
    pub async fn find(
        &self,
        name: &ModelName,
        revision: &Revision,
        need: Need,
        watch: &Watch<'_>,
    ) -> Result<PathBuf, HubError> {
        match self.cache.find(name, revision, need) {
            Some(directory) => Ok(directory),
            None => self.pull(name, revision, need, watch).await,
        }
    }

    /// Downloads the missing files of `name` at `revision` as of now. Returns the directory.
    ///
    /// # Errors
    /// If the hub cannot be reached or refuses, the model lacks a file, or the disk is full.
    pub async fn pull(
        &self,
        name: &ModelName,
        revision: &Revision,
        need: Need,
        watch: &Watch<'_>,
    ) -> Result<PathBuf, HubError> {
        if self.environment.is_offline {
            return Err(HubError::Offline { name: name.to_string(), cache: self.cache.root().to_owned() });
        }
        let client = Client::new(&self.environment);
        let listing = api::listing(&client, name, revision).await?;
        let repository = self.cache.repository(name);
        repository.create()?;
        let _lock = lock(&repository.pull_lock(), || repository.bytes()).await?;
        let pull = Pull { client, name, listing, repository, counted: Counted::new(watch.progress) };
        pull.run(need, watch).await?;
        pull.repository.write_ref(revision, &pull.listing.commit)?;
        Ok(pull.repository.snapshot(&pull.listing.commit))
    }
}

/// State of one download.
struct Pull<'a> {
    client: Client,
    name: &'a ModelName,
    listing: Listing,
    repository: Repository,
    counted: Counted<'a>,
}

impl Pull<'_> {
    async fn run(&self, need: Need, watch: &Watch<'_>) -> Result<(), HubError> {
        let listed: Vec<&str> = self.listing.files.iter().map(|file| file.name.as_str()).collect();
        let lacks =
            |file: &'static str| self.unsuitable(file, "it is not a model that Skein can serve".to_owned());
        let text: Vec<String> = files::text(&listed).map_err(lacks)?.into_iter().map(str::to_owned).collect();
        self.files(&text).await?;
        let directory = self.repository.snapshot(&self.listing.commit);
        (watch.accepts)(&directory).map_err(|why| HubError::Refused { name: self.name.to_string(), why })?;
        if need == Need::Text {
            return Ok(());
        }
        match files::weights(&listed).map_err(|why| self.unsuitable("safetensors weights", why))? {
            Weights::Single => self.files(&[files::SINGLE.to_owned()]).await,
            Weights::Indexed => self.files(&self.shards(&listed).await?).await,
        }
    }

    /// Downloads the index and returns the files that it names.
    async fn shards(&self, listed: &[&str]) -> Result<Vec<String>, HubError> {
        self.files(&[files::INDEX.to_owned()]).await?;
        let place = self.repository.snapshot(&self.listing.commit).join(files::INDEX);
        let index = regular_file::read(&place, MAX_INDEX_BYTES).map_err(HubError::disk(&place))?;
        let bad = |why| Err(self.unsuitable("usable index of weights", format!("{}: {why}", files::INDEX)));
        let shards = match files::shards(&index) {
            Ok(shards) => shards,
            Err(why) => return bad(why),
        };
        match shards.iter().find(|shard| !listed.contains(&shard.as_str())) {
            Some(missing) => bad(format!("it names {missing}, which does not exist")),
            None => Ok(shards.into_iter().collect()),
        }
    }

    async fn files(&self, names: &[String]) -> Result<(), HubError> {
        let blobs =
            stream::iter(names).map(|file| async move { Ok::<_, HubError>((file, self.blob(file).await?)) });
        let blobs: Vec<(&String, Blob)> = blobs.buffered(FILES_AT_ONCE).try_collect().await?;
        self.counted.expect(blobs.iter().map(|(_, blob)| blob.size).sum());
        let fetched = stream::iter(&blobs).map(|(file, blob)| self.file(file, blob));
        fetched.buffer_unordered(FILES_AT_ONCE).try_collect().await
    }

    async fn blob(&self, file: &str) -> Result<Blob, HubError> {
        let listed = self.listing.files.iter().find(|listed| listed.name == file);
        match listed.and_then(|listed| listed.blob.clone()) {
            Some(blob) => Ok(blob),
            None => api::blob(&self.client, self.name, &self.listing.commit, file).await,
        }
    }

    async fn file(&self, file: &str, blob: &Blob) -> Result<(), HubError> {
        let wanted = Wanted { name: self.name, commit: &self.listing.commit, file, blob };
        fetch(&self.client, &self.repository, &wanted, &|bytes| self.counted.add(bytes)).await?;
        self.repository.link(&self.listing.commit, file, &blob.etag)
    }

    fn unsuitable(&self, missing: &str, advice: String) -> HubError {
        let (name, commit) = (self.name.to_string(), self.listing.commit.clone());
        HubError::Unsuitable { name, commit, missing: missing.to_owned(), advice }
    }
}

/// Byte count over several files.
struct Counted<'a> {
    done: AtomicI64,
    total: AtomicU64,
    report: &'a (dyn Fn(Progress) + Sync),
}

impl<'a> Counted<'a> {
    fn new(report: &'a (dyn Fn(Progress) + Sync)) -> Self {
        Self { done: AtomicI64::new(0), total: AtomicU64::new(0), report }
    }

    fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.add(0);
    }

    fn add(&self, bytes: i64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let total = self.total.load(Ordering::Relaxed);
        (self.report)(Progress { done: done.max(0).unsigned_abs(), total });
    }
}
