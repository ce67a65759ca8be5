//! Maps a model's GGUF files: one, or the parts of a split model.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skein_sys::mapped::{Bytes, MappedFile};
use skein_sys::regular_file;

use crate::header::{Header, TensorInfo};
use crate::metadata::Value;
use crate::{Fault, GgufError};

/// Most parts of a split model.
const MAX_PARTS: u64 = 10_000;

/// Whether `path` is a file with GGUF's magic number or extension.
pub fn is_gguf(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut magic = [0; 4];
    let begins = regular_file::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"GGUF";
    begins || path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// A model's mapped GGUF files.
pub struct GgufModel {
    /// Files in order; the first holds the metadata.
    files: Vec<Part>,
    /// File index and tensor index for each tensor name.
    places: HashMap<String, (usize, usize)>,
}

/// One mapped file of a model.
struct Part {
    path: PathBuf,
    map: Arc<MappedFile>,
    header: Header,
}

impl Part {
    fn open(path: PathBuf) -> Result<Self, GgufError> {
        let map = match MappedFile::open(&path) {
            Ok(map) => Arc::new(map),
            Err(source) => return Err(GgufError::Read { path, source }),
        };
        match Header::read(&map) {
            Ok(header) => Ok(Self { path, map, header }),
            Err(reason) => Err(reason.of_file(path)),
        }
    }

    fn get(&self, key: &str) -> Option<Value<'_>> {
        self.header.get(&self.map, key)
    }

    /// Index of this part, from zero, and the number of parts.
    fn numbers(&self) -> (u64, u64) {
        let number = |key| self.get(key).and_then(Value::as_u64);
        (number("split.no").unwrap_or(0), number("split.count").unwrap_or(1).max(1))
    }

    fn damaged(&self, reason: Fault) -> GgufError {
        reason.of_file(self.path.clone())
    }
}

/// Splits a name like `model-00002-of-00005.gguf` into its prefix and the two numbers.
fn split_name(path: &Path) -> Option<(&str, u64, u64)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(count)).then_some(())?;
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

impl GgufModel {
    /// Maps the file at `path` and, if it is a part of a split model, the other parts in its directory.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let given = Part::open(path.to_owned())?;
        let (_, count) = given.numbers();
        let files = if count > 1 { parts(&given, count)? } else { vec![given] };
        let mut model = Self { files, places: HashMap::new() };
        for (file, part) in model.files.iter().enumerate() {
            for (index, tensor) in part.header.tensors.iter().enumerate() {
                if model.places.insert(tensor.name.clone(), (file, index)).is_some() {
                    return Err(part.damaged(Fault::Twice(format!("tensor {}", tensor.name))));
                }
            }
        }
        Ok(model)
    }

    /// Path of the first file.
    pub fn path(&self) -> &Path {
        &self.files[0].path
    }

    /// Metadata value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.files[0].get(key)
    }

    /// Metadata keys in alphabetical order, and the bytes of their values.
    pub(crate) fn raw_entries(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let first = &self.files[0];
        first.header.entries().map(|(key, bytes)| (key, &first.map[bytes]))
    }

    /// Index entries of all tensors, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.files.iter().flat_map(|part| &part.header.tensors)
    }

    /// Index entry of the tensor `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let (file, index) = *self.places.get(name)?;
        self.files[file].header.tensors.get(index)
    }

    /// Path of the file that contains the tensor `name`.
    pub fn path_of(&self, name: &str) -> Option<&Path> {
        Some(&self.files[self.places.get(name)?.0].path)
    }

    /// Mapped byte range `part` of a tensor.
    pub fn bytes(&self, name: &str, part: std::ops::Range<usize>) -> Option<Bytes> {
        let (file, index) = *self.places.get(name)?;
        let file = &self.files[file];
        let whole = &file.header.tensors.get(index)?.bytes;
        let (start, end) = (whole.start.checked_add(part.start)?, whole.start.checked_add(part.end)?);
        (start <= end && end <= whole.end).then(|| Bytes::mapped(Arc::clone(&file.map), start..end))
    }

    /// Memory maps of all files.
    pub fn maps(&self) -> impl Iterator<Item = &MappedFile> {
        self.files.iter().map(|part| &*part.map)
    }

    /// Error about the metadata key `key`.
    pub(crate) fn wrong(&self, key: &str, allowed: &str) -> GgufError {
        let got = self.get(key).map_or_else(|| "missing".to_owned(), Value::shown);
        self.files[0].damaged(Fault::Field { key: key.to_owned(), got, allowed: allowed.to_owned() })
    }

    /// Error about an unsupported feature.
    pub(crate) fn unsupported(&self, what: String) -> GgufError {
        GgufError::Unsupported { path: self.path().to_owned(), what }
    }
}

/// All parts of the model that contains `given`, in order.
fn parts(given: &Part, count: u64) -> Result<Vec<Part>, GgufError> {
    if count > MAX_PARTS {
        return Err(given.damaged(Fault::TooMany { what: "parts", count, most: MAX_PARTS }));
    }
    let Some((prefix, number, named)) = split_name(&given.path) else {
        let path = given.path.clone();
        let what = format!(
            "it is one of {count} parts, and their names have to end in -00001-of-{count:05}.gguf and so on; rename them"
        );
        return Err(GgufError::Unsupported { path, what });
    };
    let check = |part: &Part, number: u64| {
        let (got, of) = part.numbers();
        if (got + 1, of) == (number, count) && named == count {
            return Ok(());
        }
        let fault = Fault::Part { got: got.saturating_add(1), count: of, expected: number, named };
        Err(part.damaged(fault))
    };
    check(given, number)?;
    let mut all = Vec::new();
    for number in 1..=count {
        let part = Part::open(given.path.with_file_name(format!("{prefix}-{number:05}-of-{named:05}.gguf")))?;
        check(&part, number)?;
        all.push(part);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
