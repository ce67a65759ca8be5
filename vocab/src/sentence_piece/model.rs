//! The fields of a SentencePiece model that tokenization needs: `ModelProto` of sentencepiece_model.proto
//! (sentencepiece 0.2.3), with its numbers and defaults.

use std::path::Path;

use hashbrown::HashSet;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};
use skein_gguf::MAX_TOKENS;

use crate::error::{VocabError, shown};

/// Number of `pieces` in the message.
const PIECES: u32 = 1;

/// A trained model.
#[derive(Clone, PartialEq, Message)]
pub struct SentencePieceModel {
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<Piece>,
    #[prost(message, required, tag = "2")]
    pub trainer: Trainer,
    #[prost(message, required, tag = "3")]
    pub normalizer: Normalizer,
}

/// A piece; its place is its id.
#[derive(Clone, PartialEq, Message)]
pub struct Piece {
    #[prost(string, required, tag = "1")]
    pub piece: String,
    #[prost(float, required, tag = "2")]
    pub score: f32,
    #[prost(enumeration = "Kind", optional, tag = "3", default = "Normal")]
    pub kind: Option<i32>,
}

/// `SentencePiece.Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    Unset = 0,
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// `TrainerSpec`.
#[derive(Clone, PartialEq, Message)]
pub struct Trainer {
    #[prost(int32, optional, tag = "3", default = "1")]
    pub model_type: Option<i32>,
    #[prost(bool, optional, tag = "24", default = "false")]
    pub treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35", default = "false")]
    pub byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "40", default = "0")]
    pub unk_id: Option<i32>,
    #[prost(int32, optional, tag = "41", default = "1")]
    pub bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42", default = "2")]
    pub eos_id: Option<i32>,
    #[prost(string, optional, tag = "45", default = "<unk>")]
    pub unk_piece: Option<String>,
    #[prost(string, optional, tag = "46", default = "<s>")]
    pub bos_piece: Option<String>,
    #[prost(string, optional, tag = "47", default = "</s>")]
    pub eos_piece: Option<String>,
}

/// `NormalizerSpec`.
#[derive(Clone, PartialEq, Message)]
pub struct Normalizer {
    #[prost(bytes = "vec", required, tag = "2")]
    pub precompiled_charsmap: Vec<u8>,
    #[prost(bool, optional, tag = "3", default = "true")]
    pub add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4", default = "true")]
    pub remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5", default = "true")]
    pub escape_whitespaces: Option<bool>,
}

/// How a model was trained, and so how it encodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelType {
    Unigram,
    Bpe,
}

impl SentencePieceModel {
    /// Parses the content of the file at `path`.
    ///
    /// # Errors
    /// If it is no such model, or one that has no or too many pieces, a piece twice or a score that is not
    /// finite.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, VocabError> {
        let damaged = |reason: prost::DecodeError| {
            VocabError::malformed(path, format!("it is no SentencePiece model: {reason}; download it again"))
        };
        let pieces = count_pieces(bytes).map_err(damaged)?;
        if pieces > MAX_TOKENS {
            return Err(VocabError::malformed(path, format!("it has {pieces} pieces; at most {MAX_TOKENS}")));
        }
        let model = Self::decode(bytes).map_err(damaged)?;
        model.check().map_err(|reason| VocabError::malformed(path, reason))?;
        Ok(model)
    }

    fn check(&self) -> Result<(), String> {
        if self.pieces.is_empty() {
            return Err("it has no pieces".into());
        }
        let mut seen = HashSet::with_capacity(self.pieces.len());
        for (id, Piece { piece, score, .. }) in self.pieces.iter().enumerate() {
            if piece.is_empty() {
                return Err(format!("piece {id} is empty"));
            }
            if !seen.insert(piece.as_str()) {
                return Err(format!("piece {id}, {}, occurs twice", shown(piece)));
            }
            if !score.is_finite() {
                return Err(format!("the score of piece {id}, {}, is {score}", shown(piece)));
            }
        }
        check_map(&self.normalizer.precompiled_charsmap)?;
        if usize::try_from(self.trainer.unk_id()).is_ok_and(|unknown| unknown < self.pieces.len()) {
            return Ok(());
        }
        Err(format!("unk_id is {}, and it has {} pieces", self.trainer.unk_id(), self.pieces.len()))
    }

    /// # Errors
    /// Number of a type that is not supported, with its name.
    pub fn model_type(&self) -> Result<ModelType, String> {
        match self.trainer.model_type() {
            1 => Ok(ModelType::Unigram),
            2 => Ok(ModelType::Bpe),
            3 => Err("its model_type is WORD; supported: UNIGRAM, BPE".into()),
            4 => Err("its model_type is CHAR; supported: UNIGRAM, BPE".into()),
            other => Err(format!("its model_type is {other}; supported: 1 (UNIGRAM), 2 (BPE)")),
        }
    }
}

/// Checks the sizes in a normalisation map: four bytes with the size of a table, the table, and texts.
fn check_map(map: &[u8]) -> Result<(), String> {
    let Some((size, rest)) = map.split_first_chunk::<4>() else {
        let is_there = !map.is_empty();
        return if is_there { Err(format!("the normalization map has {} bytes", map.len())) } else { Ok(()) };
    };
    let size = u32::from_le_bytes(*size);
    let texts = usize::try_from(size).ok().filter(|size| size % 4 == 0).and_then(|size| rest.get(size..));
    let texts = texts.ok_or_else(|| {
        format!("the normalization map states a table of {size} bytes, and has {}", map.len())
    })?;
    std::str::from_utf8(texts)
        .map_err(|_| "the normalization map has a text that is not UTF-8".to_owned())?;
    Ok(())
}

/// Number of pieces, before any is stored: a piece takes more memory than its two bytes in the file.
fn count_pieces(mut bytes: &[u8]) -> Result<usize, prost::DecodeError> {
    let mut pieces = 0;
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        pieces += usize::from(tag == PIECES && wire_type == WireType::LengthDelimited);
        skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
    }
    Ok(pieces)
}
