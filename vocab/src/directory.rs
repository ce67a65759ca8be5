//! The files of a tokenizer in a model's directory: tokenizer.json, or what there is instead.

use std::path::{Path, PathBuf};

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3Default;

use crate::byte_level::{self, Content};
use crate::class::{Class, Said};
use crate::declared::Declarations;
use crate::error::VocabError;
use crate::files::{MAX_VOCABULARY_BYTES, read_if_there, read_json};
use crate::{sentence_piece, tekken, tiktoken};

/// The file that needs no conversion.
pub const TOKENIZER: &str = "tokenizer.json";
/// The others that are read, besides those that declare tokens.
pub const OTHERS: [&str; 6] = [TEKKEN, SENTENCE_PIECE, T5, TIKTOKEN, VOCAB, MERGES];
const TEKKEN: &str = "tekken.json";
/// SentencePiece, or text of tiktoken.
const SENTENCE_PIECE: &str = "tokenizer.model";
const T5: &str = "spiece.model";
const TIKTOKEN: &str = "tiktoken.model";
const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";

/// A vocabulary without a tokenizer.json, read and not yet converted.
#[derive(Debug)]
pub struct Vocabulary {
    files: Vec<WholeFile>,
    declarations: Declarations,
    model_type: String,
    /// Name of the tokenizer's class.
    named: Option<String>,
}

#[derive(Debug)]
struct WholeFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// A vocabulary as a tokenizer.json.
#[derive(Debug)]
pub struct Converted {
    /// Content of the tokenizer.json. Its added tokens include declared ones.
    pub json: Vec<u8>,
    /// tokenizer_config.json with special_tokens_map.json, and with the special tokens of the model's class.
    pub config: Value,
}

impl Vocabulary {
    /// Finds the vocabulary in `directory`; `None` if there is none that is known.
    ///
    /// # Errors
    /// If a file cannot be read, or a small one cannot be parsed.
    pub fn find(directory: &Path) -> Result<Option<Self>, VocabError> {
        let config = read_json(&directory.join("config.json"))?;
        let declarations = Declarations::read(directory)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let field = "tokenizer_class";
        let named = text(&declarations.config[field]).or_else(|| text(&config[field]));
        let model_type = text(&config["model_type"]).unwrap_or_default();
        let is_byte_level = |named: &String| Class::named(named).is_ok_and(Class::is_byte_level);
        let of_type =
            Class::of(Said { model_type: &model_type, class: None }).is_ok_and(Class::is_byte_level);
        let is_byte_level = named.as_ref().map_or(of_type, is_byte_level);
        let pair = &[VOCAB, MERGES][..];
        let single = [&[TEKKEN][..], &[SENTENCE_PIECE], &[T5], &[TIKTOKEN]];
        let sources = if is_byte_level {
            [pair].into_iter().chain(single).collect::<Vec<_>>()
        } else {
            single.into_iter().chain([pair]).collect()
        };
        for names in sources {
            if let Some(files) = read_all(directory, names)? {
                return Ok(Some(Self { files, declarations, model_type, named }));
            }
        }
        Ok(None)
    }

    /// Digest of all that determines the tokens, far cheaper than [`Self::convert`].
    pub fn digest(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        let declared = Value::from(self.declarations.all()).to_string();
        let files = self.files.iter().map(|file| file.bytes.as_slice());
        for part in files.chain([declared.as_bytes()]) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.digest()
    }

    /// Name of its file, or of the first.
    pub fn name(&self) -> &'static str {
        let is_first = |name: &&str| self.files.first().is_some_and(|file| file.path.ends_with(name));
        OTHERS.into_iter().find(is_first).unwrap_or(TOKENIZER)
    }

    /// Builds the tokenizer.json.
    ///
    /// # Errors
    /// If the vocabulary is malformed or not supported.
    pub fn convert(self) -> Result<Converted, VocabError> {
        let Self { files, mut declarations, model_type, named } = self;
        let content = |at: usize| files.get(at).map(|WholeFile { path, bytes }| Content { path, bytes });
        let (first, second) = (content(0), content(1));
        let Some(first) = first else { return Ok(Converted { json: Vec::new(), config: Value::Null }) };
        let Content { path, bytes } = first;
        let declared = &mut declarations;
        let said = Said { model_type: &model_type, class: named.as_deref() };
        let json = match second {
            Some(second) => {
                let class = byte_level_class(path, said)?;
                byte_level::tokenizer_json(first, second, class, declared)?
            }
            None if path.ends_with(TEKKEN) => tekken::tokenizer_json(bytes, path, declared)?,
            None if path.ends_with(TIKTOKEN) || tiktoken::is_tiktoken(bytes) => {
                tiktoken::tokenizer_json(bytes, path, said, declared)?
            }
            None => {
                let class = Class::of(said).map_err(|class| {
                    VocabError::unsupported(
                        path,
                        format!("its tokenizer_class is {class}, which is not supported"),
                    )
                })?;
                sentence_piece::tokenizer_json(bytes, path, class, declared)?
            }
        };
        Ok(Converted { json, config: declarations.config })
    }
}

/// The class of vocab.json and merges.txt. A class that the model's type does not want counts if it is the
/// only one that reads such files.
fn byte_level_class(path: &Path, said: Said<'_>) -> Result<Class, VocabError> {
    let classes = [Class::of(said), Class::named(said.class.unwrap_or_default())];
    classes.into_iter().flatten().find(|class| class.is_byte_level()).ok_or_else(|| {
        let class = said.class.map_or("not set".to_owned(), |class| format!("{class:?}"));
        let what = format!(
            "tokenizer_class in tokenizer_config.json is {class}, and it says how text is split; supported: GPT2Tokenizer, \
             Qwen2Tokenizer, Qwen3_5Tokenizer, GPTNeoXTokenizer, CohereTokenizer, RobertaTokenizer, BartTokenizer, \
             CodeGenTokenizer"
        );
        VocabError::unsupported(path, what)
    })
}

/// All files with these names; `None` if one is missing.
fn read_all(directory: &Path, names: &[&str]) -> Result<Option<Vec<WholeFile>>, VocabError> {
    let mut files = Vec::new();
    for name in names {
        let path = directory.join(name);
        match read_if_there(&path, MAX_VOCABULARY_BYTES)? {
            Some(bytes) => files.push(WholeFile { path, bytes }),
            None => return Ok(None),
        }
    }
    Ok(Some(files))
}

/// Content of the tokenizer.json of `directory`, or its equivalent from other files; `None` if there is
/// neither.
///
/// # Errors
/// If files cannot be read or converted.
pub fn tokenizer_json(directory: &Path) -> Result<Option<Vec<u8>>, VocabError> {
    if let Some(json) = read_if_there(&directory.join(TOKENIZER), MAX_VOCABULARY_BYTES)? {
        return Ok(Some(json));
    }
    let Some(vocabulary) = Vocabulary::find(directory)? else { return Ok(None) };
    Ok(Some(vocabulary.convert()?.json))
}

/// What distinguishes the tokenizer of `directory`: the content of tokenizer.json, or a digest of the other
/// files; `None` without any.
///
/// # Errors
/// If files cannot be read.
pub fn identity(directory: &Path) -> Result<Option<Vec<u8>>, VocabError> {
    if let Some(json) = read_if_there(&directory.join(TOKENIZER), MAX_VOCABULARY_BYTES)? {
        return Ok(Some(json));
    }
    let vocabulary = Vocabulary::find(directory)?;
    Ok(vocabulary.map(|vocabulary| vocabulary.digest().to_le_bytes().to_vec()))
}

/// Names in `directory` that look like a vocabulary, for the message that none can be read.
pub fn look_alikes(directory: &Path) -> Vec<String> {
    let is_one = |name: &String| {
        let endings = [".tiktoken", ".model", ".spm", ".bpe", ".vocab"];
        endings.iter().any(|ending| name.ends_with(ending))
            || name.contains(".model.v")
            || ["vocab.", "merges.", "tokenizer.", "tekken", "tokenization_"]
                .iter()
                .any(|start| name.starts_with(start))
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_one).collect();
    names.sort_unstable();
    names.truncate(MAX_NAMES);
    names
}

/// Most entries of a directory that are looked at.
const MAX_ENTRIES: usize = 10_000;
/// Most names in a message.
const MAX_NAMES: usize = 8;
