//! SentencePiece models as a tokenizer.json, as transformers 5.24 converts them: `Llama`, `CodeLlama`,
//! `Gemma` and `T5` split text in ways of their own, and all other models as their file says
//! (`SpmConverter.build_tokenizer_from_spm_proto`).

mod model;

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hashbrown::{HashMap, HashSet};
use serde_json::{Value as Json, json};
use skein_gguf::spm::{MAX_MERGES, Merge, all_merges};
use skein_gguf::tokenizer_json::{Bpe, Model, TokenizerJson, Tokens, Unigram, around};

use self::model::{Kind, ModelType, SentencePieceModel};
use crate::class::{Class, with_defaults};
use crate::declared::{Declarations, LISTS, distinct, literal};
use crate::error::VocabError;
use crate::special::AddedTokens;

/// Mark of a space.
const SPACE: &str = "▁";
/// Sentinels of T5 that its file lacks.
const EXTRA_IDS: u64 = 100;
/// Most of them.
const MAX_EXTRA_IDS: u64 = 10_000;

/// Builds a tokenizer.json from the model `bytes`, which are those of `path`. Completes
/// `declarations.config`.
///
/// # Errors
/// If the file is malformed or not supported.
pub fn tokenizer_json(
    bytes: &[u8],
    path: &Path,
    class: Class,
    declarations: &mut Declarations,
) -> Result<Vec<u8>, VocabError> {
    let model = SentencePieceModel::parse(bytes, path)?;
    let kind = model.model_type().map_err(|what| VocabError::unsupported(path, what))?;
    // The classes below know one algorithm. A file of the other one encodes as it says.
    let class = match (class, kind) {
        (Class::Llama | Class::CodeLlama | Class::Gemma, ModelType::Bpe) => class,
        (Class::T5, ModelType::Unigram) => class,
        _ => Class::Generic,
    };
    declarations.config = match class {
        Class::Generic => with_defaults(&declarations.config, own_special(&model)),
        class => class.with_defaults(&declarations.config),
    };
    let conversion = Conversion { model: &model, path, class, declarations };
    let built = match (class, kind) {
        (Class::T5, _) => conversion.t5(),
        (_, ModelType::Unigram) => conversion.unigram(),
        (Class::Generic, ModelType::Bpe) => conversion.generic(),
        (_, ModelType::Bpe) => conversion.bpe(),
    };
    built?.map_err(|error| VocabError::malformed(path, error.to_string()))
}

/// Special tokens that the file names.
fn own_special(model: &SentencePieceModel) -> impl Iterator<Item = (&'static str, Json)> {
    let trainer = &model.trainer;
    let or = |piece: &str, default: &str| json!(if piece.is_empty() { default } else { piece });
    [
        ("bos_token", trainer.bos_id(), or(trainer.bos_piece(), "<s>")),
        ("eos_token", trainer.eos_id(), or(trainer.eos_piece(), "</s>")),
        ("unk_token", trainer.unk_id(), or(trainer.unk_piece(), "<unk>")),
    ]
    .into_iter()
    .filter(|(_, id, _)| *id >= 0)
    .map(|(name, _, piece)| (name, piece))
}

struct Conversion<'a> {
    model: &'a SentencePieceModel,
    path: &'a Path,
    class: Class,
    declarations: &'a Declarations,
}

type Built = Result<serde_json::Result<Vec<u8>>, VocabError>;

impl<'a> Conversion<'a> {
    fn config(&self) -> &'a Json {
        &self.declarations.config
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        // Null is false, as in Python, where it is not the default.
        match &self.config()[name] {
            Json::Null if self.config().get(name).is_none() => default,
            value => value.as_bool().unwrap_or(false),
        }
    }

    fn pieces(&self) -> Vec<&'a str> {
        self.model.pieces.iter().map(|piece| piece.piece.as_str()).collect()
    }

    /// Pieces of this kind.
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = usize> {
        let pieces = self.model.pieces.iter().enumerate();
        pieces.filter(move |(_, piece)| piece.kind() == kind).map(|(id, _)| id)
    }

    fn too_many_merges(&self) -> VocabError {
        VocabError::unsupported(self.path, format!("it has more than {MAX_MERGES} merges"))
    }

    /// Added tokens: the declared ones, and of the file control pieces and those of `own`.
    fn added(&self, own: impl Iterator<Item = usize>) -> Vec<Json> {
        let mut all = self.declarations.all();
        // A list in the configuration replaces the file's, also if it is empty.
        let is_list = |name: &&str| self.config().get(*name).is_some_and(|list| !list.is_object());
        if !LISTS.iter().any(is_list) {
            let mut ids: Vec<usize> = own.chain(self.of_kind(Kind::Control)).collect();
            ids.sort_unstable();
            let piece = |id: usize| &self.model.pieces[id];
            all.extend(
                ids.into_iter().map(|id| literal(&piece(id).piece, piece(id).kind() == Kind::Control)),
            );
        }
        if self.class == Class::CodeLlama {
            let names = ["prefix_token", "middle_token", "suffix_token", "eot_token", "fill_token"];
            all.extend(names.iter().filter_map(|name| Some(literal(self.config()[*name].as_str()?, true))));
        }
        distinct(all, HashSet::new())
    }

    fn unk_piece(&self) -> &'a str {
        let piece = self.model.trainer.unk_piece();
        if piece.is_empty() { "<unk>" } else { piece }
    }

    /// `LlamaTokenizer`, `CodeLlamaTokenizer`, `GemmaTokenizer`.
    fn bpe(&self) -> Built {
        let pieces = self.pieces();
        let mut merges = all_merges(&pieces).ok_or_else(|| self.too_many_merges())?;
        let chars = |text: &str| text.chars().count();
        merges.sort_by_cached_key(|merge| (merge.whole, chars(merge.left), chars(merge.right)));
        let tokens: Vec<(&str, u32)> = pieces.iter().copied().zip(0..).collect();
        let unknown =
            self.config()["unk_token"].as_str().or_else(|| self.config()["unk_token"]["content"].as_str());
        let unknown = unknown.filter(|unknown| self.class != Class::Llama && pieces.contains(unknown));
        let bpe = Bpe {
            unk_token: unknown,
            fuse_unk: true,
            byte_fallback: true,
            ..Bpe::new(Tokens(tokens.clone()), pairs(merges))
        };
        let mut steps = vec![replace(SPACE, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let mut file = TokenizerJson::new(Model::Bpe(bpe));
        if self.class == Class::Gemma {
            file.normalizer = replace(" ", SPACE);
            file.pre_tokenizer = json!({"type": "Split", "pattern": {"String": " "},
                "behavior": "MergedWithPrevious", "invert": false});
        } else {
            let legacy = self.class == Class::Llama && self.flag("legacy", false);
            let has_prefix = self.config()["add_prefix_space"].as_bool().unwrap_or(true);
            let scheme = if !has_prefix {
                "never"
            } else if legacy {
                "always"
            } else {
                "first"
            };
            file.pre_tokenizer = metaspace(scheme, false);
            if has_prefix || self.class == Class::CodeLlama {
                steps.push(strip_first());
            }
        }
        file.decoder = json!({"type": "Sequence", "decoders": steps});
        let adds_bos = self.flag("add_bos_token", self.class == Class::CodeLlama);
        self.finish(file, self.added(self.of_kind(Kind::UserDefined)), &tokens, adds_bos)
    }

    /// Any other BPE model.
    fn generic(&self) -> Built {
        let tokens = self.renamed();
        let names: HashMap<u32, &str> = tokens.iter().map(|(token, id)| (*id, *token)).collect();
        let name = |id: usize| names.get(&(id as u32)).copied();
        // Only normal pieces are merged.
        let normal: Vec<(usize, &str)> =
            self.of_kind(Kind::Normal).filter_map(|id| Some((id, name(id)?))).collect();
        let texts: Vec<&str> = normal.iter().map(|(_, text)| *text).collect();
        let mut merges = all_merges(&texts).ok_or_else(|| self.too_many_merges())?;
        let score = |merge: &Merge<'_>| self.model.pieces[normal[merge.whole].0].score;
        merges.sort_by(|a, b| {
            let rest = |merge: &Merge<'a>| (merge.whole, merge.left, merge.right);
            score(b).total_cmp(&score(a)).then_with(|| rest(a).cmp(&rest(b)))
        });
        let user_defined: Vec<&str> = self.of_kind(Kind::UserDefined).filter_map(name).collect();
        let unknown = tokens.iter().find(|(token, _)| *token == self.unk_piece());
        let bpe = Bpe {
            unk_token: unknown.map(|(token, _)| *token),
            fuse_unk: true,
            byte_fallback: self.model.trainer.byte_fallback(),
            ignore_merges: !user_defined.is_empty(),
            ..Bpe::new(Tokens(tokens.clone()), pairs(merges))
        };
        self.as_the_file_says(TokenizerJson::new(Model::Bpe(bpe)), &tokens, &user_defined)
    }

    /// A unigram model.
    fn unigram(&self) -> Built {
        let pieces: Vec<(&str, f64)> =
            self.model.pieces.iter().map(|piece| (piece.piece.as_str(), f64::from(piece.score))).collect();
        let tokens: Vec<(&str, u32)> = self.pieces().into_iter().zip(0..).collect();
        let unknown = usize::try_from(self.model.trainer.unk_id()).unwrap_or_default();
        let unigram = Unigram::new(pieces, unknown, self.model.trainer.byte_fallback());
        let user_defined: Vec<&str> =
            self.of_kind(Kind::UserDefined).map(|id| self.model.pieces[id].piece.as_str()).collect();
        self.as_the_file_says(TokenizerJson::new(Model::Unigram(unigram)), &tokens, &user_defined)
    }

    /// Adds the steps that the file asks for.
    fn as_the_file_says(
        &self,
        mut file: TokenizerJson<'a>,
        tokens: &[(&str, u32)],
        user_defined: &[&str],
    ) -> Built {
        let spec = &self.model.normalizer;
        let legacy = self.flag("legacy", true);
        let mut normalizers = self.charsmap();
        if spec.remove_extra_whitespaces() {
            // Only spaces count: SentencePiece leaves newlines and others alone.
            normalizers.extend([replace_all(r"\A +| +\z", ""), replace_all(" {2,}", " ")]);
        }
        if spec.escape_whitespaces() {
            normalizers.push(replace(" ", SPACE));
        }
        let mut splits = Vec::new();
        if spec.add_dummy_prefix() {
            if legacy {
                // The step below adds none to a text that begins with the mark, and SentencePiece does.
                normalizers.push(replace_all(r"\A▁", "▁▁"));
            }
            splits.push(metaspace(if legacy { "always" } else { "first" }, false));
        }
        if !user_defined.is_empty() {
            // SentencePiece emits these whole and never merges them.
            let mut longest_first = user_defined.to_vec();
            longest_first.sort_by_key(|piece| std::cmp::Reverse(piece.chars().count()));
            let pattern: Vec<String> = longest_first.into_iter().map(escaped).collect();
            splits.push(json!({"type": "Split", "pattern": {"Regex": pattern.join("|")},
                "behavior": "Isolated", "invert": false}));
        }
        let mut steps = vec![replace(SPACE, " ")];
        let has_bytes = self.model.trainer.byte_fallback();
        steps.extend(has_bytes.then(|| json!({"type": "ByteFallback"})));
        if spec.add_dummy_prefix() {
            steps.extend([json!({"type": "Fuse"}), strip_first()]);
        } else if has_bytes {
            steps.push(json!({"type": "Fuse"}));
        }
        file.normalizer = json!({"type": "Sequence", "normalizers": normalizers});
        if !splits.is_empty() {
            file.pre_tokenizer = json!({"type": "Sequence", "pretokenizers": splits});
        }
        file.decoder = json!({"type": "Sequence", "decoders": steps});
        let mut added = self.added(std::iter::empty());
        if spec.add_dummy_prefix() {
            // Declared tokens are found in the text as it is, so that each part between them gets its prefix.
            let listed: HashSet<&str> =
                self.declarations.by_id().into_iter().map(|(_, token)| token).collect();
            for token in
                added.iter_mut().filter(|token| listed.contains(token["content"].as_str().unwrap_or("")))
            {
                token["normalized"] = false.into();
            }
        }
        self.finish(file, added, tokens, self.flag("add_bos_token", false))
    }

    /// `T5Tokenizer`.
    fn t5(&self) -> Built {
        let extra = self.config()["extra_ids"].as_u64().unwrap_or(EXTRA_IDS);
        if extra > MAX_EXTRA_IDS {
            let reason = format!("extra_ids in tokenizer_config.json is {extra}; at most {MAX_EXTRA_IDS}");
            return Err(VocabError::unsupported(self.path, reason));
        }
        let extra: Vec<String> = (0..extra).map(|at| format!("<extra_id_{at}>")).collect();
        let pieces = self.model.pieces.iter().map(|piece| (piece.piece.as_str(), f64::from(piece.score)));
        let pieces: Vec<(&str, f64)> =
            pieces.chain(extra.iter().rev().map(|token| (token.as_str(), 0.0))).collect();
        let tokens: Vec<(&str, u32)> = pieces.iter().map(|(piece, _)| *piece).zip(0..).collect();
        let mut file = TokenizerJson::new(Model::Unigram(Unigram::new(pieces.clone(), 2, false)));
        file.normalizer = self.charsmap().pop().unwrap_or_default();
        file.pre_tokenizer = json!({"type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always", true)]});
        file.decoder = metaspace("always", true);
        let mut added = self.added(self.of_kind(Kind::UserDefined));
        added.extend(extra.iter().map(|token| literal(token, true)));
        let added = AddedTokens::new(distinct(added, HashSet::new()), &tokens);
        file.post_processor = around(None, added.id_of("</s>", &tokens).map(|id| ("</s>", id)));
        file.added_tokens = added.0;
        Ok(file.bytes())
    }

    fn finish(
        &self,
        mut file: TokenizerJson<'_>,
        added: Vec<Json>,
        tokens: &[(&str, u32)],
        adds_bos: bool,
    ) -> Built {
        let added = AddedTokens::new(added, tokens);
        file.post_processor = added.post_processor(self.config(), adds_bos, tokens);
        file.added_tokens = added.0;
        Ok(file.bytes())
    }

    /// Pieces with their ids, renamed as `added_tokens_decoder` says. A name of a piece that keeps its own is
    /// not given to another.
    fn renamed(&self) -> Vec<(&'a str, u32)> {
        let names: HashMap<u64, &str> = self.declarations.by_id().into_iter().collect();
        let kept: HashSet<&str> = (self.pieces().into_iter().enumerate())
            .filter_map(|(id, piece)| (!names.contains_key(&(id as u64))).then_some(piece))
            .collect();
        let name = |id: u32, piece| {
            names.get(&u64::from(id)).filter(|name| !kept.contains(**name)).copied().unwrap_or(piece)
        };
        self.pieces().into_iter().zip(0..).map(|(piece, id)| (name(id, piece), id)).collect()
    }

    fn charsmap(&self) -> Vec<Json> {
        let map = &self.model.normalizer.precompiled_charsmap;
        let step = || json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map)});
        if map.is_empty() { Vec::new() } else { vec![step()] }
    }
}

fn pairs(merges: Vec<Merge<'_>>) -> Vec<(&str, &str)> {
    merges.into_iter().map(|Merge { left, right, .. }| (left, right)).collect()
}

fn replace(from: &str, to: &str) -> Json {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

fn replace_all(regex: &str, to: &str) -> Json {
    json!({"type": "Replace", "pattern": {"Regex": regex}, "content": to})
}

fn metaspace(scheme: &str, split: bool) -> Json {
    json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split})
}

fn strip_first() -> Json {
    json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})
}

/// Regular expression of exactly `text`.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}
