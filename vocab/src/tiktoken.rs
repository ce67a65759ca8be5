//! Files of tiktoken, a line for each token: its bytes in base64, and its rank. They say neither how text is
//! split nor which special tokens there are. Both are known of Llama 3 and 4 (Meta's llama-models 0.3.0) and
//! of Kimi K2; for all others text is split as by transformers 5.24 (`TikTokenConverter`), which is as in
//! Llama 3, and tokenizer_config.json declares the special tokens.

use std::path::Path;

use hashbrown::HashSet;
use serde_json::{Value as Json, json};
use skein_gguf::tokenizer_json::{Model, TokenizerJson, byte_level_decoder};
use skein_gguf::word_rules::WordRule;

use crate::class::{Said, with_defaults};
use crate::declared::{Declarations, distinct, literal};
use crate::error::{VocabError, shown};
use crate::ranks::Ranks;
use crate::special::AddedTokens;

/// Most places that are filled up to the last declared token.
const MAX_ADDED: u64 = 1 << 16;

/// A model whose files say less than its tokenizer knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Llama3,
    Llama4,
    Kimi,
    Other,
}

impl Family {
    fn of(ranks: &Ranks, path: &Path, Said { model_type, class }: Said<'_>) -> Self {
        let is_kimi = model_type.starts_with("kimi") || class == Some("TikTokenTokenizer");
        match ranks.len() {
            _ if is_kimi && path.ends_with("tiktoken.model") => Self::Kimi,
            128_000 if model_type.is_empty() || model_type.contains("llama") => Self::Llama3,
            200_000 if model_type.is_empty() || model_type.contains("llama4") => Self::Llama4,
            _ => Self::Other,
        }
    }

    /// Name of the rule for words.
    fn rule(self) -> &'static str {
        match self {
            Self::Llama3 | Self::Other => "llama3",
            Self::Llama4 => "llama4",
            Self::Kimi => "kimi-k2",
        }
    }

    /// Special tokens of a model whose files declare none, from the first free id on.
    fn special_tokens(self) -> Vec<String> {
        match self {
            Self::Llama3 => {
                let named = LLAMA3.map(str::to_owned).into_iter();
                named.chain(numbered("", 2, 256 - LLAMA3.len())).collect()
            }
            Self::Llama4 => {
                let first = LLAMA4.map(str::to_owned).into_iter();
                let text = numbered("text_post_train_", 8, 61);
                let vision = LLAMA4_VISION.map(str::to_owned).into_iter().chain(numbered("vision_", 7, 1041));
                let reasoning = numbered("reasoning_", 0, 8).chain(LLAMA4_REASONING.map(str::to_owned));
                let known: Vec<String> = first.chain(text).chain(vision).chain(reasoning).collect();
                let rest = 2048 - known.len();
                known.into_iter().chain(numbered("", 0, rest)).collect()
            }
            Self::Kimi | Self::Other => Vec::new(),
        }
    }

    /// Tokens that a configuration would name.
    fn named(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Llama3 => &[("bos_token", "<|begin_of_text|>"), ("eos_token", "<|end_of_text|>")],
            Self::Llama4 => &[("bos_token", "<|begin_of_text|>"), ("eos_token", "<|end_of_text|>")],
            Self::Kimi | Self::Other => &[],
        }
    }
}

const LLAMA3: [&str; 12] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
];
const LLAMA4: [&str; 19] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|header_start|>",
    "<|header_end|>",
    "<|eom|>",
    "<|eot|>",
    "<|step|>",
    "<|text_post_train_reserved_special_token_0|>",
    "<|text_post_train_reserved_special_token_1|>",
    "<|text_post_train_reserved_special_token_2|>",
    "<|text_post_train_reserved_special_token_3|>",
    "<|text_post_train_reserved_special_token_4|>",
    "<|text_post_train_reserved_special_token_5|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|finetune_right_pad|>",
];
const LLAMA4_VISION: [&str; 13] = [
    "<|image_start|>",
    "<|image_end|>",
    "<|vision_reserved_special_token_0|>",
    "<|vision_reserved_special_token_1|>",
    "<|tile_x_separator|>",
    "<|tile_y_separator|>",
    "<|vision_reserved_special_token_2|>",
    "<|vision_reserved_special_token_3|>",
    "<|vision_reserved_special_token_4|>",
    "<|vision_reserved_special_token_5|>",
    "<|image|>",
    "<|vision_reserved_special_token_6|>",
    "<|patch|>",
];
const LLAMA4_REASONING: [&str; 2] = ["<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"];

fn numbered(kind: &'static str, first: usize, count: usize) -> impl Iterator<Item = String> {
    (first..first + count).map(move |number| format!("<|{kind}reserved_special_token_{number}|>"))
}

/// Whether `bytes` begin with a line of such a file.
pub fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).ok().filter(|line| line.len() < 4096);
    line.is_some_and(|line| parts(line).is_some_and(|(token, _)| token.bytes().all(is_base64)))
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)
}

fn parts(line: &str) -> Option<(&str, usize)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    Some((token, rank.parse().ok()?))
}

/// Builds a tokenizer.json from the file `bytes`. Completes `declarations.config`.
///
/// # Errors
/// If the file is malformed.
pub fn tokenizer_json(
    bytes: &[u8],
    path: &Path,
    said: Said<'_>,
    declarations: &mut Declarations,
) -> Result<Vec<u8>, VocabError> {
    let malformed = |reason: String| VocabError::malformed(path, reason);
    let ranks = ranks(bytes).map_err(malformed)?;
    let family = Family::of(&ranks, path, said);
    let named = family.named().iter().map(|(name, token)| (*name, json!(token)));
    declarations.config = with_defaults(&declarations.config, named);
    let fillers = fillers(&ranks, declarations).map_err(malformed)?;
    let is_declared = !declarations.by_id().is_empty();
    let known = if is_declared { fillers } else { family.special_tokens() };
    let bpe = ranks.bpe(0, &[]).map_err(malformed)?;
    let tokens = bpe.vocab.0.clone();
    let rule = WordRule::named(Some(family.rule())).map_err(malformed)?;
    let adds_bos = matches!(family, Family::Llama3 | Family::Llama4);
    let added = AddedTokens::new(in_order(declarations, known), &tokens);
    let built = TokenizerJson {
        pre_tokenizer: rule.pre_tokenizer(),
        decoder: byte_level_decoder(),
        post_processor: added.post_processor(&declarations.config, adds_bos, &tokens),
        added_tokens: added.0,
        ..TokenizerJson::new(Model::Bpe(bpe))
    };
    built.bytes().map_err(|error| malformed(error.to_string()))
}

/// Tokens in the order of their ids: `known`, as they are declared where they are, and the other declared
/// ones.
fn in_order(declarations: &Declarations, known: Vec<String>) -> Vec<Json> {
    let declared = distinct(declarations.all(), HashSet::new());
    let as_declared = |text: &str| declared.iter().find(|token| token["content"] == text).cloned();
    let first = known.iter().map(|text| as_declared(text).unwrap_or_else(|| literal(text, true)));
    let all = first.chain(declared.iter().cloned()).collect();
    distinct(all, HashSet::new())
}

/// Declared tokens after the ranks, and names for the places between them.
fn fillers(ranks: &Ranks, declarations: &Declarations) -> Result<Vec<String>, String> {
    let declared = declarations.by_id();
    let first = ranks.len() as u64;
    let Some(last) = declared.iter().map(|(id, _)| *id).max().filter(|last| *last >= first) else {
        return Ok(Vec::new());
    };
    if last - first >= MAX_ADDED {
        return Err(format!(
            "tokenizer_config.json declares the id {last}, and the file has {first} tokens; at most {MAX_ADDED} may follow"
        ));
    }
    let named = |id: u64| declared.iter().find(|(at, _)| *at == id).map(|(_, token)| (*token).to_owned());
    Ok((first..=last).map(|id| named(id).unwrap_or_else(|| format!("<|reserved_token_{id}|>"))).collect())
}

fn ranks(bytes: &[u8]) -> Result<Ranks, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("it is not UTF-8: {error}"))?;
    let mut ranked = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let line = parts(line).ok_or_else(|| {
            format!("line {} is {}, not a token in base64 and its rank", number + 1, shown(line))
        })?;
        ranked.push(line);
    }
    ranked.sort_by_key(|(_, rank)| *rank);
    if let Some((place, (_, rank))) = ranked.iter().enumerate().find(|(place, (_, rank))| place != rank) {
        return Err(match place > *rank {
            true => format!("two tokens have the rank {rank}"),
            false => format!("no token has the rank {place}"),
        });
    }
    Ranks::from_base64(ranked.into_iter().map(|(token, _)| token))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of llama-models 0.3.0.
    #[test]
    fn special_tokens_have_the_ids_of_metas_tokenizers() {
        let check = |family: Family, first: usize, count: usize, ids: &[(&str, usize)]| {
            let tokens = family.special_tokens();
            assert_eq!((tokens.len(), tokens.iter().collect::<HashSet<_>>().len()), (count, count));
            for (token, id) in ids {
                assert_eq!(tokens[id - first], *token);
            }
        };
        let three = [
            ("<|begin_of_text|>", 128_000),
            ("<|eot_id|>", 128_009),
            ("<|image|>", 128_011),
            ("<|reserved_special_token_2|>", 128_012),
            ("<|reserved_special_token_245|>", 128_255),
        ];
        check(Family::Llama3, 128_000, 256, &three);
        let four = [
            ("<|begin_of_text|>", 200_000),
            ("<|eot|>", 200_008),
            ("<|python_end|>", 200_017),
            ("<|text_post_train_reserved_special_token_8|>", 200_019),
            ("<|image|>", 200_090),
            ("<|patch|>", 200_092),
            ("<|vision_reserved_special_token_1047|>", 201_133),
            ("<|reasoning_reserved_special_token_7|>", 201_141),
            ("<|reasoning_thinking_end|>", 201_143),
            ("<|reserved_special_token_0|>", 201_144),
            ("<|reserved_special_token_903|>", 202_047),
        ];
        check(Family::Llama4, 200_000, 2048, &four);
    }
}
