//! Index of a GGUF file: its metadata and the positions of its tensors. Everything is checked against the
//! file's length before use, and memory grows only with what was read.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::cursor::Cursor;
use crate::metadata::Value;
use crate::tensor_type::TensorType;
use crate::{Fault, metadata};

const MAGIC: [u8; 4] = *b"GGUF";
/// Most metadata entries; published files have dozens.
const MAX_ENTRIES: u64 = 1 << 16;
/// Most tensors in a file.
const MAX_TENSORS: u64 = 1 << 16;
/// Longest key or tensor name, in bytes.
const MAX_NAME: u64 = 65_535;
/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 4;
const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;
const MAX_ALIGNMENT: u64 = 1 << 16;

/// Parsed index of a file.
#[derive(Debug, Clone)]
pub struct Header {
    /// Byte range of each value, including its type.
    entries: HashMap<String, Range<usize>>,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo>,
}

/// Entry of a tensor in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor, unique in the file.
    pub name: String,
    /// Storage type, which fixes the block size.
    pub kind: TensorType,
    /// Dimensions, outermost first as in the rest of Skein. (Files store the innermost first.)
    pub shape: Vec<usize>,
    /// Byte range in the file.
    pub bytes: Range<usize>,
}

impl Header {
    /// Parses the index of a file's bytes.
    ///
    /// # Errors
    /// The first fault found.
    pub fn read(file: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor::new(file);
        if cursor.take(4, "the file").map_err(|_| Fault::Magic)? != MAGIC {
            return Err(Fault::Magic);
        }
        match cursor.u32("the version")? {
            2 | 3 => {}
            version if version.swap_bytes() <= 3 && version > 3 => return Err(Fault::BigEndian),
            version => return Err(Fault::Version(version)),
        }
        let tensors = at_most(cursor.u64("the number of tensors")?, MAX_TENSORS, "tensors")?;
        let entries = at_most(cursor.u64("the number of entries")?, MAX_ENTRIES, "entries of metadata")?;
        let entries = read_entries(&mut cursor, entries)?;
        let mut header = Self { entries, tensors: Vec::new() };
        let alignment = header.alignment(file)?;
        let infos = (0..tensors).map(|_| RawTensor::read(&mut cursor)).collect::<Result<Vec<_>, _>>()?;
        let data = cursor.at().next_multiple_of(alignment);
        let place = |raw: RawTensor<'_>| raw.placed(data, alignment, file.len());
        header.tensors = infos.into_iter().map(place).collect::<Result<_, _>>()?;
        check_apart(&header.tensors)?;
        Ok(header)
    }

    /// Value of a key. `file` must be the parsed file.
    pub fn get<'a>(&self, file: &'a [u8], key: &str) -> Option<Value<'a>> {
        let bytes = file.get(self.entries.get(key)?.clone())?;
        metadata::Value::again(bytes, key)
    }

    /// Keys in alphabetical order, and the byte ranges of their values.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        let mut entries: Vec<_> =
            self.entries.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter()
    }

    fn alignment(&self, file: &[u8]) -> Result<usize, Fault> {
        let Some(value) = self.get(file, ALIGNMENT) else { return Ok(DEFAULT_ALIGNMENT) };
        let is_allowed = |size: &u64| size.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(size);
        let size = value.as_u64().filter(is_allowed);
        size.map(|size| size as usize).ok_or_else(|| Fault::Alignment(value.shown()))
    }
}

fn at_most(count: u64, most: u64, what: &'static str) -> Result<u64, Fault> {
    if count > most { Err(Fault::TooMany { what, count, most }) } else { Ok(count) }
}

fn read_entries(cursor: &mut Cursor<'_>, count: u64) -> Result<HashMap<String, Range<usize>>, Fault> {
    let mut entries = HashMap::new();
    for _ in 0..count {
        let key = cursor.string(MAX_NAME, "a key of metadata")?;
        let start = cursor.at();
        Value::read(cursor, key)?;
        if entries.insert(key.to_owned(), start..cursor.at()).is_some() {
            return Err(Fault::Twice(key.to_owned()));
        }
    }
    Ok(entries)
}

/// Tensor entry as stored in the file.
struct RawTensor<'a> {
    name: &'a str,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl<'a> RawTensor<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Fault> {
        const WHAT: &str = "the list of tensors";
        let name = cursor.string(MAX_NAME, "a tensor's name")?;
        let count = at_most(cursor.u32(WHAT)?.into(), MAX_DIMS.into(), "dimensions of a tensor")?;
        let dims = (0..count).map(|_| cursor.u64(WHAT)).collect::<Result<_, _>>()?;
        Ok(Self { name, dims, kind: cursor.u32(WHAT)?, offset: cursor.u64(WHAT)? })
    }

    /// Resolves the entry in a file of `len` bytes whose tensor data starts at `data`.
    fn placed(self, data: usize, alignment: usize, len: usize) -> Result<TensorInfo, Fault> {
        let Self { name, dims, kind, offset } = self;
        let tensor = name.to_owned();
        let kind = TensorType::of(kind).ok_or(Fault::TensorType { tensor: tensor.clone(), kind })?;
        let Some(bytes) = kind.bytes_of(&dims) else {
            return Err(Fault::Shape { tensor, dims, kind: kind.name });
        };
        if !offset.is_multiple_of(alignment as u64) {
            return Err(Fault::Misaligned { tensor, offset, alignment });
        }
        let start = usize::try_from(offset).ok().and_then(|offset| data.checked_add(offset));
        let end = start.and_then(|start| start.checked_add(bytes)).filter(|end| *end <= len);
        let Some((start, end)) = start.zip(end) else {
            let needed = bytes as u64;
            return Err(Fault::Truncated { what: "a tensor", at: start.unwrap_or(usize::MAX), needed, len });
        };
        // `bytes_of` has checked that every size fits.
        let shape = dims.iter().rev().map(|dim| *dim as usize).collect();
        Ok(TensorInfo { name: tensor, kind, shape, bytes: start..end })
    }
}

/// Refuses tensors with equal names or overlapping bytes.
fn check_apart(tensors: &[TensorInfo]) -> Result<(), Fault> {
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        return Err(Fault::Twice(format!("tensor {}", twice.name)));
    }
    let mut places: Vec<_> = tensors.iter().collect();
    places.sort_unstable_by_key(|tensor| tensor.bytes.start);
    match places.windows(2).find(|pair| pair[0].bytes.end > pair[1].bytes.start) {
        Some(pair) => Err(Fault::Overlap(pair[0].name.clone(), pair[1].name.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
