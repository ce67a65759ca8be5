//! The directory that is written: each file appears whole, and what is finished is not done again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, View};
use serde_json::{Value, json};
use skein_sys::mapped::MappedFile;
use skein_sys::regular_file;

use super::QuantizeError;

/// Directory inside the output for what is in progress; removed at the end.
const WORK: &str = ".skein-quantize";
const PLAN: &str = "plan.json";
const LOCK: &str = "lock";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
/// Endings of files that are copied; the weights and the two above are written.
const COPIED: [&str; 6] = ["json", "jinja", "txt", "model", "tiktoken", "md"];
/// Files that describe an earlier quantisation or other weights.
const NOT_COPIED: [&str; 5] =
    [CONFIG, INDEX, "quantize_config.json", "quant_config.json", "hf_quant_config.json"];

/// The output directory.
pub(super) struct Output {
    dir: PathBuf,
    work: PathBuf,
    /// Number of weight files.
    files: usize,
    /// Locked until it is dropped.
    _lock: File,
}

/// A tensor of a file: type, shape, bytes.
pub(super) type Tensor<'a> = (Dtype, Vec<usize>, &'a [u8]);

struct Viewed<'a>(Tensor<'a>);

impl View for Viewed<'_> {
    fn dtype(&self) -> Dtype {
        self.0.0
    }

    fn shape(&self) -> &[usize] {
        &self.0.1
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.0.2.into()
    }

    fn data_len(&self) -> usize {
        self.0.2.len()
    }
}

impl Output {
    /// Opens `dir` for `plan`, or goes on where an earlier run with the same plan ended.
    pub fn open(dir: &Path, files: usize, plan: &Value) -> Result<Self, QuantizeError> {
        let work = dir.join(WORK);
        let refused = |why: &str| QuantizeError::Refused(format!("{}: {why}", dir.display()));
        let is_used = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if is_used && !work.join(PLAN).exists() && !is_only_work(dir) {
            return Err(refused("this directory is not empty; name a new one for the quantised model"));
        }
        fs::create_dir_all(&work).map_err(|source| at(&work, source))?;
        let lock = File::create(work.join(LOCK)).map_err(|source| at(&work, source))?;
        if lock.try_lock().is_err() {
            return Err(refused("another process is quantising to it"));
        }
        let output = Self { dir: dir.to_owned(), work, files, _lock: lock };
        let (path, plan) = (output.work.join(PLAN), format!("{plan:#}\n"));
        match fs::read_to_string(&path) {
            Ok(begun) if begun == plan => {}
            Ok(_) => {
                return Err(refused(
                    "it was begun from another model, with other options or other calibration text; give the same, or \
                     remove it and begin again",
                ));
            }
            Err(_) => output.put(&path, plan.as_bytes())?,
        }
        Ok(output)
    }

    /// Path of weight file `number`, from 0.
    fn weights(&self, number: usize) -> PathBuf {
        self.dir.join(format!("model-{:05}-of-{:05}.safetensors", number + 1, self.files))
    }

    /// Whether weight file `number` is finished.
    pub fn has(&self, number: usize) -> bool {
        self.weights(number).exists()
    }

    /// Writes weight file `number`.
    pub fn write(&self, number: usize, tensors: BTreeMap<String, Tensor<'_>>) -> Result<(), QuantizeError> {
        let draft = self.work.join("weights");
        let metadata = [("format".to_owned(), "pt".to_owned())].into();
        let tensors = tensors.into_iter().map(|(name, tensor)| (name, Viewed(tensor)));
        safetensors::serialize_to_file(tensors, Some(metadata), &draft)
            .map_err(|error| at(&draft, io::Error::other(error.to_string())))?;
        self.appear(&draft, &self.weights(number))
    }

    /// Path of the rows that enter `layer`.
    pub fn rows(&self, layer: usize) -> PathBuf {
        self.work.join(format!("rows-{layer}"))
    }

    /// A file to be written; [`Output::keep_rows`] gives it its name.
    pub fn draft_of_rows(&self) -> Result<File, QuantizeError> {
        let draft = self.work.join("rows");
        File::create(&draft).map_err(|source| at(&draft, source))
    }

    /// Makes the draft the rows that enter `layer`.
    pub fn keep_rows(&self, layer: usize) -> Result<(), QuantizeError> {
        self.appear(&self.work.join("rows"), &self.rows(layer))
    }

    /// Removes the rows that enter `layer`.
    pub fn forget_rows(&self, layer: usize) {
        // If it stays, it is removed with the directory.
        let _ = fs::remove_file(self.rows(layer));
    }

    /// Writes the index, copies the other files of `source`, and at last writes `config`, without which the
    /// directory is no model.
    pub fn finish(&self, source: &Path, config: &Value) -> Result<(), QuantizeError> {
        let (mut map, mut total) = (BTreeMap::new(), 0u64);
        for number in 0..self.files {
            let path = self.weights(number);
            let file = MappedFile::open(&path).map_err(|source| at(&path, source))?;
            let (_, header) = SafeTensors::read_metadata(&file)
                .map_err(|error| at(&path, io::Error::other(error.to_string())))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for (tensor, info) in header.tensors() {
                total += (info.data_offsets.1 - info.data_offsets.0) as u64;
                map.insert(tensor, name.clone());
            }
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        self.put(&self.dir.join(INDEX), format!("{index:#}\n").as_bytes())?;
        for name in copied(source)? {
            let path = source.join(&name);
            let from = regular_file::open(&path).map_err(|source| at(&path, source))?;
            self.put(&self.dir.join(&name), from)?;
        }
        self.put(&self.dir.join(CONFIG), format!("{config:#}\n").as_bytes())?;
        fs::remove_dir_all(&self.work).map_err(|source| at(&self.work, source))
    }

    /// Total size of the weight files, in bytes.
    pub fn bytes(&self) -> u64 {
        let size = |number| fs::metadata(self.weights(number)).map_or(0, |metadata| metadata.len());
        (0..self.files).map(size).sum()
    }

    /// Writes a whole file.
    fn put(&self, path: &Path, mut content: impl Read) -> Result<(), QuantizeError> {
        let draft = self.work.join("file");
        let written = File::create(&draft).and_then(|mut file| io::copy(&mut content, &mut file));
        written.map_err(|source| at(&draft, source))?;
        self.appear(&draft, path)
    }

    /// Renames a draft, once it is on the disk.
    fn appear(&self, draft: &Path, path: &Path) -> Result<(), QuantizeError> {
        let synced = File::open(draft).and_then(|file| file.sync_all());
        synced.and_then(|()| fs::rename(draft, path)).map_err(|source| at(path, source))
    }
}

fn at(path: &Path, source: io::Error) -> QuantizeError {
    QuantizeError::Write { path: path.to_owned(), source }
}

/// Whether nothing but an unfinished work directory is in `dir`.
fn is_only_work(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.all(|entry| entry.file_name() == WORK)
}

/// Names of the files of `source` to copy.
fn copied(source: &Path) -> Result<Vec<String>, QuantizeError> {
    let entries = fs::read_dir(source).map_err(|error| at(source, error))?;
    let names = entries.flatten().filter(|entry| entry.path().is_file());
    let mut names: Vec<String> =
        names.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_copied).collect();
    names.sort_unstable();
    Ok(names)
}

fn is_copied(name: &String) -> bool {
    let has_ending = Path::new(name).extension().is_some_and(|it| COPIED.iter().any(|known| it == *known));
    let is_notice = ["LICENSE", "NOTICE"].iter().any(|start| name.starts_with(start));
    (has_ending || is_notice) && !NOT_COPIED.contains(&name.as_str()) && name != "README.md"
}
