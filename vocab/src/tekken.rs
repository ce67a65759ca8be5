//! tekken.json, Mistral's file of tokens by rank, as transformers 5.24 converts it (`MistralConverter`) and
//! mistral-common 1.13 reads it: special tokens have the first ids, and a text begins with BOS.

use std::collections::BTreeMap;
use std::path::Path;

use hashbrown::HashSet;
use serde_json::{Value as Json, json};
use skein_gguf::tokenizer_json::{Model, TokenizerJson, byte_level_decoder};

use crate::byte_level::split;
use crate::class::with_defaults;
use crate::declared::{Declarations, distinct, literal};
use crate::error::{VocabError, shown};
use crate::ranks::Ranks;
use crate::special::AddedTokens;

/// Most special tokens; published files have 1,000.
const MAX_SPECIAL: u64 = 1 << 16;
/// Special tokens of files that list none, which are of version v7 or older.
const OLD_SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
/// Names of those that a configuration would name.
const NAMED: [(&str, &str); 4] =
    [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];

/// Builds a tokenizer.json from the tekken file `bytes`. Completes `declarations.config`.
///
/// # Errors
/// If the file is malformed.
pub fn tokenizer_json(
    bytes: &[u8],
    path: &Path,
    declarations: &mut Declarations,
) -> Result<Vec<u8>, VocabError> {
    let malformed = |reason: String| VocabError::malformed(path, reason);
    let file: Json = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    let pattern =
        file["config"]["pattern"].as_str().ok_or_else(|| malformed("config has no pattern".into()))?;
    let special = special_tokens(&file).map_err(malformed)?;
    let known: HashSet<&str> = special.iter().map(|(token, _)| token.as_str()).collect();
    let named = NAMED.into_iter().filter(|(_, token)| known.contains(token));
    declarations.config =
        with_defaults(&declarations.config, named.map(|(name, token)| (name, json!(token))));
    let ranks = ranks(&file, special.len()).map_err(malformed)?;
    // `MAX_SPECIAL` bounds the number.
    let bpe = ranks.bpe(special.len() as u32, &special).map_err(malformed)?;
    let tokens = bpe.vocab.0.clone();
    let own = special.iter().map(|(token, _)| literal(token, true));
    let added = distinct(declarations.all().into_iter().chain(own).collect(), HashSet::new());
    let added = AddedTokens::new(added, &tokens);
    let built = TokenizerJson {
        pre_tokenizer: split(pattern),
        decoder: byte_level_decoder(),
        post_processor: added.post_processor(&declarations.config, true, &tokens),
        added_tokens: added.0,
        ..TokenizerJson::new(Model::Bpe(bpe))
    };
    built.bytes().map_err(|error| malformed(error.to_string()))
}

/// Special tokens with their ids: those of the file, and fillers up to the number that it wants.
fn special_tokens(file: &Json) -> Result<Vec<(String, u32)>, String> {
    let tokens: Vec<String> = match &file["special_tokens"] {
        Json::Null => OLD_SPECIAL.map(str::to_owned).to_vec(),
        Json::Array(listed) => by_rank(listed)?,
        _ => return Err("special_tokens is not a list".into()),
    };
    let wanted = match &file["config"]["default_num_special_tokens"] {
        Json::Null => tokens.len() as u64,
        number => number.as_u64().ok_or_else(|| format!("default_num_special_tokens is {number}"))?,
    };
    if wanted > MAX_SPECIAL || tokens.len() as u64 > wanted {
        return Err(format!(
            "default_num_special_tokens is {wanted}, and it lists {} special tokens; at most {MAX_SPECIAL}",
            tokens.len()
        ));
    }
    let fillers = (tokens.len() as u64..wanted).map(|id| format!("<SPECIAL_{id}>"));
    let all: Vec<String> = tokens.iter().cloned().chain(fillers).collect();
    let mut seen = HashSet::<&str>::new();
    let twice = all.iter().find(|token| !seen.insert(token)).cloned();
    drop(seen);
    if let Some(twice) = &twice {
        return Err(format!("the special token {} occurs twice", shown(twice)));
    }
    Ok(all.into_iter().zip(0..).collect())
}

fn by_rank(listed: &[Json]) -> Result<Vec<String>, String> {
    let mut tokens = BTreeMap::new();
    for (place, token) in listed.iter().enumerate() {
        let rank = token["rank"].as_u64().zip(token["token_str"].as_str());
        let (rank, text) = rank.ok_or_else(|| format!("special token {place} has no rank and token_str"))?;
        if text.is_empty() || tokens.insert(rank, text.to_owned()).is_some() {
            return Err(format!(
                "special token {place}, {}, is empty or has the rank of another",
                shown(text)
            ));
        }
    }
    if let Some((expected, _)) = (0..).zip(tokens.keys()).find(|(expected, rank)| expected != *rank) {
        return Err(format!("no special token has the rank {expected}; ranks must count from 0"));
    }
    Ok(tokens.into_values().collect())
}

/// The other tokens, as many as the vocabulary has room for.
fn ranks(file: &Json, special: usize) -> Result<Ranks, String> {
    let listed = file["vocab"].as_array().ok_or("it has no vocab")?;
    let most = match &file["config"]["default_vocab_size"] {
        Json::Null => listed.len(),
        size => (size.as_u64().and_then(|size| usize::try_from(size).ok()?.checked_sub(special)))
            .filter(|most| *most <= listed.len())
            .ok_or_else(|| {
                let (tokens, least) = (listed.len(), special);
                format!("default_vocab_size is {size}, with {tokens} tokens and {least} special ones")
            })?,
    };
    let listed = &listed[..most];
    let wrong = listed.iter().enumerate().find(|(place, token)| {
        token["rank"].as_u64() != Some(*place as u64) || !token["token_bytes"].is_string()
    });
    if let Some((place, token)) = wrong {
        let text = shown(&token.to_string());
        return Err(format!(
            "entry {place} of vocab is {text}; it must have the rank {place}, and token_bytes"
        ));
    }
    Ranks::from_base64(listed.iter().filter_map(|token| token["token_bytes"].as_str()))
}
