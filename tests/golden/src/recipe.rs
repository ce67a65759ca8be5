//! What `weights.json` says, and the files that it gives.

use serde::Deserialize;

use crate::generator;

/// How to make the weight files of a directory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Part of every draw.
    pub seed: u32,
    /// In the order in which they are made: later ones may copy from earlier ones.
    pub files: Vec<File>,
}

/// One weight file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub name: String,
    format: Format,
    /// In hexadecimal.
    pub sha256: String,
    pieces: Vec<Piece>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    /// The pieces are tensors; the header follows from them.
    Safetensors,
    /// The pieces are the file.
    Gguf,
}

/// A run of bytes: a tensor, or a part of a GGUF file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Piece {
    /// Determines what is drawn.
    #[serde(default)]
    name: String,
    /// As safetensors calls it.
    dtype: String,
    shape: Vec<usize>,
    from: Source,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    /// The next bytes of `weights.bin`.
    Literal,
    /// About a normal distribution, by its deviation.
    Normal(f64),
    /// From the first to below the second.
    Uniform([f64; 2]),
    /// Random bits that are kept, and bits that are set, as repeated bytes in hexadecimal.
    Bytes([String; 2]),
    /// Elements of a file from `at` on, in steps of bytes for each dimension of the shape.
    View { file: String, at: usize, steps: Vec<usize> },
    /// Values of blocks of GGUF's type Q8_0 that start at `at`.
    #[serde(rename = "q8_0")]
    Blocks { file: String, at: usize },
}

impl Recipe {
    /// Content of the weight files, by name. `read` gives a file of another directory by its path under
    /// `tests/golden`.
    ///
    /// # Errors
    /// If the recipe asks for what cannot be.
    pub fn build(
        &self,
        mut literals: &[u8],
        read: &dyn Fn(&str) -> Result<Vec<u8>, String>,
    ) -> Result<Vec<(&File, Vec<u8>)>, String> {
        let mut done: Vec<(&File, Vec<u8>)> = Vec::new();
        for file in &self.files {
            let mut content = match file.format {
                Format::Safetensors => header(&file.pieces)?,
                Format::Gguf => Vec::new(),
            };
            for piece in &file.pieces {
                let of = |other: &str| match done.iter().find(|(file, _)| file.name == other) {
                    Some((_, content)) => Ok(content.clone()),
                    None => read(other),
                };
                let bytes = piece.bytes(self.seed, &mut literals, &of)?;
                if bytes.len() != piece.len()? {
                    return Err(format!(
                        "a piece of {} has {} bytes: {}",
                        file.name,
                        bytes.len(),
                        piece.name
                    ));
                }
                content.extend(bytes);
            }
            done.push((file, content));
        }
        if literals.is_empty() {
            Ok(done)
        } else {
            Err(format!("{} literal bytes are left over", literals.len()))
        }
    }
}

impl Piece {
    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    fn len(&self) -> Result<usize, String> {
        Ok(self.count() * size_of(&self.dtype)?)
    }

    fn bytes(
        &self,
        seed: u32,
        literals: &mut &[u8],
        of: &dyn Fn(&str) -> Result<Vec<u8>, String>,
    ) -> Result<Vec<u8>, String> {
        let (name, count) = (&self.name, self.count());
        let stored = |values: &[f64]| {
            generator::stored(values, &self.dtype)
                .ok_or_else(|| format!("{name}: {} is not drawn", self.dtype))
        };
        match &self.from {
            Source::Literal => {
                let (bytes, rest) =
                    literals.split_at_checked(self.len()?).ok_or("literal bytes are missing")?;
                *literals = rest;
                Ok(bytes.to_vec())
            }
            Source::Normal(deviation) => stored(&generator::normal(seed, name, count, *deviation)),
            Source::Uniform(range) => stored(&generator::uniform(seed, name, count, *range)),
            Source::Bytes([kept, fixed]) => {
                Ok(generator::bytes(seed, name, self.len()?, &from_hex(kept)?, &from_hex(fixed)?))
            }
            Source::View { file, at, steps } => {
                let (whole, size, mut bytes) = (of(file)?, size_of(&self.dtype)?, Vec::new());
                let dimensions: Vec<_> = self.shape.iter().copied().zip(steps.iter().copied()).collect();
                view(&whole, size, *at, &dimensions, &mut bytes)
                    .ok_or_else(|| format!("{file} is too short"))?;
                Ok(bytes)
            }
            Source::Blocks { file, at } => {
                let whole = of(file)?;
                let blocks =
                    whole.get(*at..*at + count / 32 * 34).ok_or_else(|| format!("{file} is too short"))?;
                Ok(blocks.as_chunks::<34>().0.iter().flat_map(dequantised).collect())
            }
        }
    }
}

/// Bytes of an element.
fn size_of(dtype: &str) -> Result<usize, String> {
    match dtype {
        "U8" | "I8" | "F8_E4M3" => Ok(1),
        "BF16" | "F16" | "I16" => Ok(2),
        "F32" | "I32" => Ok(4),
        "F64" | "I64" => Ok(8),
        other => Err(format!("no size is known for the type {other}")),
    }
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Option<Vec<u8>> = text.chars().map(|it| it.to_digit(16).map(|digit| digit as u8)).collect();
    let digits =
        digits.filter(|digits| !digits.is_empty()).ok_or_else(|| format!("{text:?} is not hexadecimal"))?;
    Ok(digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Appends the elements of `size` bytes at `at`, in steps of bytes for each dimension. `None` outside
/// `whole`.
fn view(
    whole: &[u8],
    size: usize,
    at: usize,
    dimensions: &[(usize, usize)],
    out: &mut Vec<u8>,
) -> Option<()> {
    match dimensions {
        [] => out.extend(whole.get(at..at + size)?),
        [(count, step), rest @ ..] => {
            (0..*count).try_for_each(|i| view(whole, size, at + i * step, rest, out))?
        }
    }
    Some(())
}

/// Values of a block of Q8_0: a scale in half precision and 32 codes.
fn dequantised(block: &[u8; 34]) -> Vec<u8> {
    let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
    block[2..].iter().flat_map(|code| (scale * f32::from(*code as i8)).to_le_bytes()).collect()
}

/// What the safetensors package writes before the tensors.
fn header(pieces: &[Piece]) -> Result<Vec<u8>, String> {
    let (mut at, mut text) = (0, String::from(r#"{"__metadata__":{"format":"pt"}"#));
    for piece in pieces {
        let end = at + piece.len()?;
        let (name, dtype, shape) = (&piece.name, &piece.dtype, serde_json::json!(piece.shape));
        text += &format!(r#","{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{at},{end}]}}"#);
        at = end;
    }
    text.push('}');
    text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
    Ok([&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws of `weights.py`; `vectors.py` wrote the file.
    #[test]
    fn draws_have_the_bits_of_python() {
        let json: serde_json::Value = serde_json::from_str(include_str!("../draws.json")).expect("JSON");
        let draws = json["vectors"].as_array().expect("a list");
        assert!(draws.len() >= 6);
        for draw in draws {
            let piece: Piece = serde_json::from_value(draw["piece"].clone()).expect("a piece");
            let seed = draw["seed"].as_u64().expect("a number") as u32;
            let bytes = piece.bytes(seed, &mut &[][..], &|_| Err(String::new())).expect("it is drawn");
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(draw["bytes"], hex, "{draw}");
        }
    }
}
