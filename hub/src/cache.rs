//! The cache on disk, in the layout of Hugging Face's tools:
//!
//! ```text
//! models--Qwen--Qwen3-0.6B/
//!   blobs/<checksum>                    contents; `.incomplete` during download
//!   snapshots/<commit>/config.json      links to contents
//!   refs/main                           commit of a branch or tag at its last download
//! .locks/models--Qwen--Qwen3-0.6B/      one file per lock
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use skein_sys::regular_file;

use crate::error::HubError;
use crate::files::{self, Need, Weights};
use crate::lock::{Lock, try_lock};
use crate::name::{ModelName, Revision, is_commit};

/// Largest weights index that is read, in bytes.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Longest ref that is read, in bytes: a commit hash.
const MAX_REF_BYTES: u64 = 64;
/// Most path components of a ref: `refs/pr/1` and branches with slashes.
const MAX_REF_DEPTH: usize = 6;

/// Models that this user has downloaded with Skein or Hugging Face's tools.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// Model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// Name at the hub.
    pub name: ModelName,
    /// Size of all revisions on disk, in bytes.
    pub bytes: u64,
    /// Downloaded revisions, complete or not.
    pub revisions: Vec<CachedRevision>,
}

/// Revision of a model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedRevision {
    /// Hash of the commit.
    pub commit: String,
    /// Branches and tags that pointed to this commit when downloaded.
    pub refs: Vec<String>,
    /// Directory of its files.
    pub directory: PathBuf,
    /// Whether all files needed to serve it are present.
    pub is_complete: bool,
}

impl Cache {
    /// Cache in `root`, which need not exist.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Root directory of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Directory of a revision, if it has all files of `need`. Uses no network.
    pub fn find(&self, name: &ModelName, revision: &Revision, need: Need) -> Option<PathBuf> {
        let repository = self.repository(name);
        let snapshot = repository.snapshot(&repository.commit_of(revision)?);
        is_complete(&snapshot, need).then_some(snapshot)
    }

    /// Name of the model whose snapshot is `directory`, in any cache.
    pub fn name_of(directory: &Path) -> Option<ModelName> {
        let mut above = directory.ancestors().map(Path::file_name);
        let (commit, snapshots, model) = (above.next()??, above.next()??, above.next()??);
        let is_snapshot = snapshots == "snapshots" && is_commit(commit.to_str()?);
        ModelName::of_directory(model.to_str()?).filter(|_| is_snapshot)
    }

    /// All models, sorted by name.
    ///
    /// # Errors
    /// If the cache exists but cannot be read.
    pub fn list(&self) -> Result<Vec<Cached>, HubError> {
        let names = directories(&self.root).map_err(HubError::disk(&self.root))?;
        let mut names: Vec<ModelName> =
            names.iter().filter_map(|name| ModelName::of_directory(name.to_str()?)).collect();
        names.sort();
        Ok(names.into_iter().map(|name| self.repository(&name).describe(name)).collect())
    }

    /// Deletes all revisions of `name`; returns the number of bytes freed.
    ///
    /// # Errors
    /// If the model is not cached, is being downloaded by another process, or a file cannot be deleted.
    pub fn remove(&self, name: &ModelName) -> Result<u64, HubError> {
        let repository = self.repository(name);
        if !repository.directory.is_dir() {
            return Err(HubError::NotHere { name: name.to_string(), cache: self.root.clone() });
        }
        let _lock = repository.try_lock()?.ok_or_else(|| HubError::Busy { name: name.to_string() })?;
        let bytes = repository.bytes();
        // Delete contents last: an interruption then leaves unreferenced contents, but no model with missing
        // files.
        for part in ["refs", "snapshots", ""] {
            let directory = repository.directory.join(part);
            match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(HubError::Disk { path: directory, error });
                }
                _ => {}
            }
        }
        Ok(bytes)
    }

    pub(crate) fn repository(&self, name: &ModelName) -> Repository {
        let directory = name.directory();
        Repository { locks: self.root.join(".locks").join(&directory), directory: self.root.join(directory) }
    }
}

/// Part of the cache that belongs to one model.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    directory: PathBuf,
    locks: PathBuf,
}

impl Repository {
    pub(crate) fn create(&self) -> Result<(), HubError> {
        for part in ["blobs", "snapshots", "refs"] {
            let directory = self.directory.join(part);
            fs::create_dir_all(&directory).map_err(HubError::disk(&directory))?;
        }
        Ok(())
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.directory.join("blobs").join(etag)
    }

    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.directory.join("blobs").join(format!("{etag}.incomplete"))
    }

    pub(crate) fn blob_lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Lock for a whole download. A second download of the same model waits and finds the files present.
    pub(crate) fn pull_lock(&self) -> PathBuf {
        self.locks.join("skein.lock")
    }

    fn try_lock(&self) -> Result<Option<Lock>, HubError> {
        try_lock(&self.pull_lock())
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.directory.join("snapshots").join(commit)
    }

    /// Size of all contents, complete or not, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = fs::read_dir(self.directory.join("blobs")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
    }

    fn commit_of(&self, revision: &Revision) -> Option<String> {
        if revision.is_commit() {
            return Some(revision.as_str().to_owned());
        }
        read_ref(&self.directory.join("refs").join(revision.as_str()))
    }

    /// Links `file` in the snapshot of `commit` to the content `etag`, atomically.
    pub(crate) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), HubError> {
        let place = self.snapshot(commit).join(file);
        let (folder, name) = (place.parent().unwrap_or(&place), Path::new(file).file_name());
        fs::create_dir_all(folder).map_err(HubError::disk(folder))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let target = Path::new(&up).join("blobs").join(etag);
        if fs::read_link(&place).is_ok_and(|there| there == target) {
            return Ok(());
        }
        let name = name.unwrap_or_default().to_string_lossy();
        let temporary = folder.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&temporary);
        std::os::unix::fs::symlink(&target, &temporary).map_err(HubError::disk(&temporary))?;
        fs::rename(&temporary, &place).map_err(HubError::disk(&place))
    }

    /// Records that `revision` currently points to `commit`.
    pub(crate) fn write_ref(&self, revision: &Revision, commit: &str) -> Result<(), HubError> {
        if revision.is_commit() {
            return Ok(());
        }
        let place = self.directory.join("refs").join(revision.as_str());
        let directory = place.parent().unwrap_or(&self.directory);
        fs::create_dir_all(directory).map_err(HubError::disk(directory))?;
        let temporary = directory.join(format!(".ref.{}", std::process::id()));
        fs::write(&temporary, commit).map_err(HubError::disk(&temporary))?;
        fs::rename(&temporary, &place).map_err(HubError::disk(&place))
    }

    fn describe(&self, name: ModelName) -> Cached {
        let mut refs = Vec::new();
        collect_refs(&self.directory.join("refs"), "", MAX_REF_DEPTH, &mut refs);
        refs.sort();
        let commits = directories(&self.directory.join("snapshots")).unwrap_or_default();
        let mut commits: Vec<String> =
            commits.into_iter().filter_map(|commit| commit.into_string().ok()).collect();
        commits.sort();
        let revisions = commits.into_iter().map(|commit| {
            let directory = self.snapshot(&commit);
            let of_commit = refs.iter().filter(|(_, target)| *target == commit);
            CachedRevision {
                refs: of_commit.map(|(name, _)| name.clone()).collect(),
                is_complete: is_complete(&directory, Need::All),
                directory,
                commit,
            }
        });
        Cached { name, bytes: self.bytes(), revisions: revisions.collect() }
    }
}

/// Whether `snapshot` has all files of `need`. Links to missing contents count as missing.
fn is_complete(snapshot: &Path, need: Need) -> bool {
    let is_there = |name: &str| snapshot.join(name).is_file();
    if files::missing(is_there).is_some() {
        return false;
    }
    let there: Vec<&str> = [files::SINGLE, files::INDEX].into_iter().filter(|name| is_there(name)).collect();
    match (need, files::weights(&there)) {
        (Need::Text, _) | (Need::All, Ok(Weights::Single)) => true,
        (Need::All, Err(_)) => false,
        (Need::All, Ok(Weights::Indexed)) => {
            let index = regular_file::read(&snapshot.join(files::INDEX), MAX_INDEX_BYTES);
            index.is_ok_and(|index| {
                files::shards(&index).is_ok_and(|shards| shards.iter().all(|name| is_there(name)))
            })
        }
    }
}

fn read_ref(path: &Path) -> Option<String> {
    let bytes = regular_file::read(path, MAX_REF_BYTES).ok()?;
    let commit = String::from_utf8(bytes).ok()?.trim().to_owned();
    is_commit(&commit).then_some(commit)
}

fn collect_refs(directory: &Path, prefix: &str, depth: usize, refs: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(file) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{file}");
        if entry.path().is_dir() && depth > 0 {
            collect_refs(&entry.path(), &format!("{name}/"), depth - 1, refs);
        } else if let Some(commit) = read_ref(&entry.path()) {
            refs.push((name, commit));
        }
    }
}

/// Names of the subdirectories of `directory`; none if it does not exist.
fn directories(directory: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(entries) => {
            let entries = entries.flatten().filter(|entry| entry.path().is_dir());
            Ok(entries.map(|entry| entry.file_name()).filter(|name| name != OsStr::new(".locks")).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// Cache with one model, as Python's huggingface_hub creates it.
    fn made(root: &Path, files: &[(&str, &str)]) -> (Cache, ModelName) {
        let name = ModelName::parse("org/model").unwrap();
        let snapshot = root.join("models--org--model/snapshots").join(COMMIT);
        let blobs = root.join("models--org--model/blobs");
        let refs = root.join("models--org--model/refs/refs/pr");
        [&snapshot, &blobs, &refs].into_iter().for_each(|directory| fs::create_dir_all(directory).unwrap());
        for (index, (file, content)) in files.iter().enumerate() {
            fs::write(blobs.join(index.to_string()), content).unwrap();
            let target = Path::new("../../blobs").join(index.to_string());
            std::os::unix::fs::symlink(target, snapshot.join(file)).unwrap();
        }
        fs::write(root.join("models--org--model/refs/main"), COMMIT).unwrap();
        fs::write(refs.join("1"), COMMIT).unwrap();
        (Cache::new(root), name)
    }

    #[test]
    fn models_of_other_tools_are_found_if_they_are_whole() {
        let root = tempfile::tempdir().unwrap();
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        let text = [("config.json", "{}"), ("tokenizer.json", "{}"), (files::INDEX, index)];
        let (cache, name) = made(root.path(), &[&text[..], &[("model-1.safetensors", "x")]].concat());
        let find = |revision: &str, need| cache.find(&name, &Revision::parse(revision).unwrap(), need);
        assert_eq!(find("main", Need::All), None, "a shard is missing");
        let snapshot = cache.repository(&name).snapshot(COMMIT);
        assert_eq!(find("main", Need::Text), Some(snapshot.clone()));
        std::os::unix::fs::symlink("../../blobs/9", snapshot.join("model-2.safetensors")).unwrap();
        assert_eq!(find("main", Need::All), None, "a link to nothing");
        fs::write(root.path().join("models--org--model/blobs/9"), "y").unwrap();
        for revision in ["main", "refs/pr/1", COMMIT] {
            assert_eq!(find(revision, Need::All), Some(snapshot.clone()), "{revision}");
        }
        fs::rename(snapshot.join("tokenizer.json"), snapshot.join("tokenizer.model")).unwrap();
        assert_eq!(find("main", Need::All), Some(snapshot.clone()), "another tokenizer");
        fs::remove_file(snapshot.join("tokenizer.model")).unwrap();
        assert_eq!(find("main", Need::Text), None, "no tokenizer");
        assert_eq!(find("other", Need::Text), None);
        assert_eq!(Cache::name_of(&snapshot), Some(name));
        assert_eq!(Cache::name_of(root.path()), None);
    }

    #[test]
    fn a_list_shows_cached_models_and_removal_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let files = [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "12345678")];
        let (cache, name) = made(root.path(), &files);
        fs::create_dir_all(root.path().join("datasets--a--b")).unwrap();
        let listed = cache.list().unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!((listed[0].bytes, listed[0].revisions.len()), (12, 1));
        let revision = &listed[0].revisions[0];
        assert_eq!(
            (revision.refs.as_slice(), revision.is_complete),
            (["main".to_owned(), "refs/pr/1".to_owned()].as_slice(), true)
        );
        let held = cache.repository(&name).try_lock().unwrap().expect("it is free");
        assert!(matches!(cache.remove(&name), Err(HubError::Busy { .. })));
        drop(held);
        assert_eq!(cache.remove(&name).unwrap(), 12);
        assert!(cache.list().unwrap().is_empty());
        assert!(matches!(cache.remove(&name), Err(HubError::NotHere { .. })));
        assert!(Cache::new(&root.path().join("nowhere")).list().unwrap().is_empty());
    }
}
