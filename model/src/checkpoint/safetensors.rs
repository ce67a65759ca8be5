//! Weights mapped from safetensors files: one `model.safetensors`, or shards with an index.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde_json::Value;
use skein_kernels::cpu::matrix::Storage;
use skein_sys::mapped::{Bytes, MappedFile};

use super::quantised::{Raw, Scheme};

use crate::LoadError;
use crate::fields::read_object;
use crate::sentence_modules::Modules;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Bytes that `sample` takes from the start, middle and end of a tensor. A fine-tuned model differs in nearly
/// all of them, and hashing everything would cost as much as loading.
const SAMPLE_BYTES: usize = 64;
/// What precedes a layer's number.
const LAYERS: &str = "layers.";
/// End of the name of a tensor that old versions of transformers stored beside what it follows from.
const FREQUENCIES: &str = "rotary_emb.inv_freq";
/// Prefixes of the tensors of encoders.
const ENCODERS: [&str; 5] = ["", "bert.", "roberta.", "new.", "gte."];
/// Most shards of a model.
const MAX_FILES: usize = 10_000;

/// The weight files of a model directory.
pub struct Weights {
    dir: PathBuf,
    files: Vec<WeightFile>,
    /// File index of each tensor.
    places: HashMap<String, usize>,
    /// Quantisation scheme of the matrices, if any.
    scheme: Option<Scheme>,
}

struct WeightFile {
    path: PathBuf,
    /// What comes before the names of its tensors among the model's: the path of a module.
    prefix: String,
    map: Arc<MappedFile>,
    header: Metadata,
    /// Offset of the tensor data.
    data: usize,
}

impl Weights {
    /// Maps the weight files in `dir` and reads their headers.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let (files, places, scheme) = (Vec::new(), HashMap::new(), Scheme::of(dir)?);
        if let Some(Scheme::Gguf(kind)) = scheme {
            return Err(LoadError::NoFiles { dir: dir.to_owned(), form: kind.name() });
        }
        let mut weights = Self { dir: dir.to_owned(), files, places, scheme };
        if dir.join(SINGLE).exists() || !dir.join(INDEX).exists() {
            let file = WeightFile::open(dir.join(SINGLE))?;
            weights.places = file.header.offset_keys().into_iter().map(|name| (name, 0)).collect();
            weights.files.push(file);
        } else {
            weights.open_shards(&dir.join(INDEX))?;
        }
        weights.open_modules()?;
        Ok(weights)
    }

    /// Maps `file` in `dir`, which need not be a model.
    pub(crate) fn open_file(dir: &Path, file: &str) -> Result<Self, LoadError> {
        let file = WeightFile::open(dir.join(file))?;
        let places = file.header.offset_keys().into_iter().map(|name| (name, 0)).collect();
        Ok(Self { dir: dir.to_owned(), files: vec![file], places, scheme: None })
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.places.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    fn open_shards(&mut self, index: &Path) -> Result<(), LoadError> {
        let damaged = |reason: String| LoadError::Damaged { path: index.to_owned(), reason };
        let object = read_object(index)?;
        let map = object.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| damaged("weight_map is not an object".into()))?;
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (tensor, file) in map {
            let file = file.as_str().filter(|file| is_file_name(file));
            let file = file.ok_or_else(|| damaged(format!("{tensor} is not in a file of this directory")))?;
            let number = match numbers.get(file) {
                Some(number) => *number,
                None if self.files.len() == MAX_FILES => {
                    return Err(damaged(format!("more than {MAX_FILES} files")));
                }
                None => {
                    self.files.push(WeightFile::open(self.dir.join(file))?);
                    numbers.insert(file, self.files.len() - 1);
                    self.files.len() - 1
                }
            };
            self.places.insert(tensor.clone(), number);
        }
        Ok(())
    }

    /// Maps the weights of sentence-transformers' modules, whose tensors are called `path/name`.
    fn open_modules(&mut self) -> Result<(), LoadError> {
        let modules = Modules::read(&self.dir)?;
        for module in modules.iter().flat_map(Modules::with_weights) {
            let path = self.dir.join(&module.path).join(SINGLE);
            if !path.exists() {
                continue; // a tensor that is needed is missed by name
            }
            let file = WeightFile { prefix: format!("{}/", module.path), ..WeightFile::open(path)? };
            let names = file.header.offset_keys().into_iter().map(|name| format!("{}{name}", file.prefix));
            self.places.extend(names.map(|name| (name, self.files.len())));
            self.files.push(file);
        }
        Ok(())
    }

    /// Asks the system to read all files ahead; does not wait.
    pub fn will_need(&self) {
        self.files.iter().for_each(|file| file.map.will_need());
    }

    /// Releases the memory of pages read so far; they are read again when needed.
    pub fn release(&self) {
        self.files.iter().for_each(|file| file.map.release());
    }

    /// Feeds `take` with lengths and modification times, which identify these files on this machine. Notices
    /// far more changes than [`Weights::sample`].
    pub(crate) fn stamp(&self, take: &mut dyn FnMut(&[u8])) {
        for file in &self.files {
            let metadata = file.map.file().and_then(|file| file.metadata().ok());
            let written = metadata.and_then(|metadata| metadata.modified().ok());
            take(format!("{} {written:?}\n", file.map.len()).as_bytes());
        }
    }

    /// Feeds `take` with names, types, shapes and a few bytes of all tensors, sorted by name.
    pub(crate) fn sample(&self, take: &mut dyn FnMut(&[u8])) {
        let mut places: Vec<_> = self.places.iter().collect();
        places.sort_unstable();
        for (name, &file) in places {
            let file = &self.files[file];
            let Some(info) = file.info(name) else { continue };
            take(format!("{name} {:?} {:?}", info.dtype, info.shape).as_bytes());
            let (start, end) = info.data_offsets;
            let tensor = &file.map[file.data + start..file.data + end];
            for at in [0, tensor.len() / 2, tensor.len().saturating_sub(SAMPLE_BYTES)] {
                take(&tensor[at..tensor.len().min(at + SAMPLE_BYTES)]);
            }
        }
    }

    /// Quantisation scheme of the matrices, if any.
    pub fn scheme(&self) -> Option<&Scheme> {
        self.scheme.as_ref()
    }

    /// Total size of the files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.map.len() as u64).sum()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A tensor of any type, as stored.
    pub(crate) fn raw(&self, name: &str) -> Option<Raw> {
        let (file, info) = self.place(name)?;
        let (start, end) = info.data_offsets;
        let bytes = Bytes::mapped(Arc::clone(&file.map), file.data + start..file.data + end);
        Some(Raw { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone(), bytes })
    }

    /// Whether two tensors have the same type, shape and bytes.
    pub(crate) fn are_equal(&self, one: &str, other: &str) -> bool {
        self.slice(one).is_some_and(|one| Some(one) == self.slice(other))
    }

    /// Type, shape and bytes of a tensor of any type, as stored.
    pub fn slice(&self, name: &str) -> Option<(Dtype, &[usize], &[u8])> {
        let (file, info) = self.place(name)?;
        let (start, end) = info.data_offsets;
        Some((info.dtype, &info.shape, &file.map[file.data + start..file.data + end]))
    }

    /// Whether the tensor `name` contains 16- or 32-bit numbers. bitsandbytes may declare its codes as such.
    pub(crate) fn has_numbers(&self, name: &str) -> bool {
        let is_number = |dtype| matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32);
        let has_numbers = self.place(name).is_some_and(|(_, info)| is_number(info.dtype));
        has_numbers
            && !(self.scheme == Some(Scheme::BitsAndBytes) && self.contains(&format!("{name}.quant_map")))
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    /// A range of a tensor's rows, mapped without a copy. In a three-dimensional tensor, the rows of all its
    /// matrices count.
    pub fn rows(&self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Storage, LoadError> {
        let missing = || LoadError::MissingTensor {
            tensor: name.to_owned(),
            expected: format!("{shape:?}"),
            dir: self.dir.clone(),
        };
        let (file, info) = self.place(name).ok_or_else(missing)?;
        file.storage(info, shape, rows).ok_or_else(|| LoadError::WrongTensor {
            tensor: name.to_owned(),
            path: file.path.clone(),
            got: format!("{:?} {:?}", info.dtype, info.shape),
            expected: format!("BF16, F16 or F32 {shape:?}"),
        })
    }

    /// Names in the files of tensors that layers have beside those named `used`, sorted.
    pub fn others_of_layers<'a>(&self, used: impl Iterator<Item = &'a str>) -> Vec<&str> {
        let used: HashSet<&str> = used.filter_map(|name| self.stored_name(name)).collect();
        let prefixes: HashSet<&str> =
            used.iter().filter_map(|name| Some(&name[..name.find(LAYERS)?])).collect();
        let is_of_layer = |name: &str| name.find(LAYERS).is_some_and(|at| prefixes.contains(&name[..at]));
        let mut others = self.names();
        others.retain(|name| is_of_layer(name) && !used.contains(name) && !name.ends_with(FREQUENCIES));
        others
    }

    /// File and entry of a tensor.
    fn place(&self, name: &str) -> Option<(&WeightFile, &TensorInfo)> {
        let (name, file) = self.find(name)?;
        let file = &self.files[file];
        Some((file, file.info(name)?))
    }

    /// Name in the files of the tensor `name`.
    pub fn stored_name(&self, name: &str) -> Option<&str> {
        self.find(name).map(|(name, _)| name)
    }

    /// Name in the files and file index of a tensor. Some files omit the prefix `model.` or have another; in
    /// models that also take images, the language model has a further prefix, and transformers saves Kimi
    /// K2.5's layers as blocks (findings/transformers-kimi-k25-blocks.sh). Encoders have the prefix of their
    /// family, or none, and most number their layers as `encoder.layer`.
    fn find(&self, name: &str) -> Option<(&str, usize)> {
        let find = |name: &str| self.places.get_key_value(name).map(|(name, file)| (name.as_str(), *file));
        let short = name.strip_prefix("model.").unwrap_or(name);
        find(name)
            .or_else(|| find(short))
            .or_else(|| find(&format!("language_model.{name}")))
            .or_else(|| find(&format!("language_model.{}", name.replacen(".layers.", ".blocks.", 1))))
            .or_else(|| find(&format!("model.language_model.{short}")))
            .or_else(|| find(&format!("model.text_model.{short}")))
            .or_else(|| find(&format!("backbone.{short}")))
            .or_else(|| {
                let of_encoder = short.replacen(LAYERS, "encoder.layer.", 1);
                let names = [short, &of_encoder].map(|name| ENCODERS.map(|prefix| format!("{prefix}{name}")));
                names.iter().flatten().find_map(|name| find(name))
            })
    }
}

impl WeightFile {
    fn open(path: PathBuf) -> Result<Self, LoadError> {
        let map = match MappedFile::open(&path) {
            Ok(map) => Arc::new(map),
            Err(source) => return Err(LoadError::Read { path, source }),
        };
        // The library checks that the header fits the file, that tensors are contiguous, and that shapes,
        // types and lengths agree.
        match SafeTensors::read_metadata(&map) {
            Ok((header_bytes, header)) => {
                let data = size_of::<u64>() + header_bytes;
                Ok(Self { path, prefix: String::new(), data, map, header })
            }
            Err(error) => {
                let reason = format!("{error} (the file has {} bytes)", map.len());
                Err(LoadError::Damaged { path, reason })
            }
        }
    }

    /// Entry of a tensor of the model that is in this file.
    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name.strip_prefix(&self.prefix)?)
    }

    /// Bytes of a range of a tensor's rows, if type, shape and range are supported.
    fn storage(&self, info: &TensorInfo, shape: &[usize], rows: Range<usize>) -> Option<Storage> {
        let (start, end) = info.data_offsets;
        let outer = if shape.len() > 1 { &shape[..shape.len() - 1] } else { shape };
        let all: usize = outer.iter().product();
        if info.shape != shape || rows.end > all || all == 0 {
            return None;
        }
        let row_bytes = (end - start) / all;
        let from = self.data + start;
        let bytes = || {
            Bytes::mapped(Arc::clone(&self.map), from + rows.start * row_bytes..from + rows.end * row_bytes)
        };
        match info.dtype {
            Dtype::BF16 => Some(Storage::Bf16(bytes())),
            Dtype::F16 => Some(Storage::F16(bytes())),
            Dtype::F32 => Some(Storage::F32(bytes())),
            _ => None,
        }
    }
}

/// Whether `name` is a plain file name: an index must not point outside its directory.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A safetensors file with this header and data.
    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    /// `[2, 3]` in bf16 and `[2]` in f32.
    fn good() -> Vec<u8> {
        let header = r#"{"model.a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
            "b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},
            "c":{"dtype":"I32","shape":[1],"data_offsets":[20,24]}}"#;
        file(header, &(0..24).collect::<Vec<u8>>())
    }

    fn with(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Result<Weights, LoadError>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let weights = Weights::open(dir.path());
        (dir, weights)
    }

    /// Checks that a directory with these files is refused, with all of `words` in the message.
    fn check_refused(files: &[(&str, &[u8])], words: &[&str]) {
        let (_dir, weights) = with(files);
        let message = weights.err().unwrap().to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "{message:?} says {word:?}"));
    }

    #[test]
    fn tensors_are_read_and_checked() {
        let (_dir, weights) = with(&[("model.safetensors", &good())]);
        let weights = weights.unwrap();
        let a = weights.rows("model.a", &[2, 3], 0..2).unwrap();
        assert_eq!(a.bytes(), (0..12).collect::<Vec<u8>>());
        assert_eq!(weights.rows("model.a", &[2, 3], 1..2).unwrap().bytes(), (6..12).collect::<Vec<u8>>());
        assert_eq!(weights.rows("model.b", &[2], 0..1).unwrap().bytes(), [12, 13, 14, 15]);
        assert!(weights.rows("model.a", &[2, 3], 1..3).is_err(), "there is no third row");
        let message = weights.rows("model.a", &[3, 2], 0..3).unwrap_err().to_string();
        for word in ["model.a", "model.safetensors", "BF16 [2, 3]", "[3, 2]"] {
            assert!(message.contains(word), "{message}");
        }
        assert!(weights.rows("c", &[1], 0..1).unwrap_err().to_string().contains("I32"));
        assert!(
            weights
                .rows("d", &[1], 0..1)
                .unwrap_err()
                .to_string()
                .contains("tensor d [1] is in no weight file")
        );
    }

    #[test]
    fn blocks_of_a_language_model_are_layers() {
        let header =
            r#"{"language_model.model.blocks.1.a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let (_dir, weights) = with(&[("model.safetensors", &file(header, &[0; 4]))]);
        assert!(weights.unwrap().contains("model.layers.1.a"));
    }

    #[test]
    fn shards_are_found_through_the_index() {
        let index = br#"{"weight_map": {"model.a": "one.safetensors", "b": "one.safetensors", "gone": "one.safetensors"}}"#;
        let (_dir, weights) = with(&[("one.safetensors", &good()), ("model.safetensors.index.json", index)]);
        let weights = weights.unwrap();
        assert!(weights.contains("model.a") && weights.contains("b"));
        assert!(weights.rows("gone", &[2], 0..2).is_err(), "the index promises what the file lacks");
        for (index, word) in [
            (r#"{"weight_map": {"a": "../one.safetensors"}}"#, "directory"),
            (r#"{"weight_map": {"a": "/etc/passwd"}}"#, "directory"),
            (r#"{"weight_map": {"a": ".."}}"#, "directory"),
            (r#"{"weight_map": {"a": "one.safetensors/"}}"#, "directory"),
            (r#"{"weight_map": {"a": ""}}"#, "directory"),
            (r#"{"weight_map": {"a": 3}}"#, "directory"),
            (r#"{"weight_map": {"a": "two.safetensors"}}"#, "two.safetensors"),
            (r#"{"weight_map": 5}"#, "weight_map"),
            (r#"{"#, "JSON"),
        ] {
            check_refused(
                &[("one.safetensors", &good()), ("model.safetensors.index.json", index.as_bytes())],
                &[word],
            );
        }
    }

    #[test]
    fn damaged_files_are_refused_wherever_they_are_cut() {
        check_refused(&[], &["model.safetensors", "cannot read"]);
        let whole = good();
        for cut in 0..whole.len() {
            check_refused(&[("model.safetensors", &whole[..cut])], &["model.safetensors"]);
        }
    }

    #[test]
    fn lying_headers_are_refused() {
        let one = |dtype, shape, offsets| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        for header in [
            one("F32", "[2]", "[0,4]"),
            one("F32", "[1]", "[4,8]"),
            one("F32", "[1]", "[0,18446744073709551615]"),
            one("F32", "[4611686018427387904,4611686018427387904]", "[0,4]"),
            one("F32", "[18446744073709551616]", "[0,4]"),
            one("F99", "[1]", "[0,4]"),
            one("F32", "[-1]", "[0,4]"),
            one("F32", "[1]", "[4,0]"),
            one("F32", "[4611686018427387904]", "[0,0]"),
            one("F32", "[2147483648,2147483648,4]", "[0,0]"),
            // Tensors that share bytes, and bytes of no tensor.
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#
                .to_owned(),
            one("F16", "[1]", "[0,2]"),
            one("F16", "[1]", "[2,4]"),
            "[]".to_owned(),
            "[".repeat(100_000),
            r#"{"a":"#.repeat(100_000),
            String::new(),
        ] {
            check_refused(
                &[("model.safetensors", &file(&header, &[0; 4]))],
                &["model.safetensors", "damaged"],
            );
        }
        for len in [u64::MAX, 1 << 63, u64::MAX - 7, 100_000_001] {
            check_refused(&[("model.safetensors", &len.to_le_bytes())], &["damaged"]);
        }
        check_refused(&[("model.safetensors", &file("\u{fffd}", &[]))], &["damaged"]);
    }
}
