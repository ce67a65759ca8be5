//! Tokens by rank, as tiktoken has them: merging the pair whose token has the lowest rank, until there is
//! none. In a tokenizer.json these are the merges of all pairs that spell a token, by the token's rank
//! (transformers 5.24, `TikTokenConverter`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hashbrown::{HashMap, HashSet};
use skein_gguf::MAX_TOKENS;
use skein_gguf::spm::{MAX_MERGES, Merge, all_merges};
use skein_gguf::tokenizer_json::{Bpe, Tokens};

use crate::error::shown;

/// Tokens of which each has a rank, in order, as characters of GPT-2's alphabet.
#[derive(Debug)]
pub struct Ranks {
    tokens: Vec<String>,
}

impl Ranks {
    /// From the tokens' bytes in base64, by rank.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn from_base64<'a>(encoded: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let alphabet = alphabet();
        let mut tokens = Vec::new();
        let mut ranks = HashMap::<String, usize>::new();
        for (rank, encoded) in encoded.enumerate() {
            if rank == MAX_TOKENS {
                return Err(format!("it has more than {MAX_TOKENS} tokens"));
            }
            let bytes = STANDARD
                .decode(encoded)
                .map_err(|error| format!("token {rank}, {}, is not base64: {error}", shown(encoded)))?;
            if bytes.is_empty() {
                return Err(format!("token {rank} is empty"));
            }
            let token: String = bytes.iter().map(|byte| alphabet[usize::from(*byte)]).collect();
            if let Some(first) = ranks.insert(token.clone(), rank) {
                return Err(format!("tokens {first} and {rank} are the same, {}", shown(encoded)));
            }
            tokens.push(token);
        }
        let missing = (0..=255).find(|byte: &u8| {
            !ranks.contains_key(alphabet[usize::from(*byte)].encode_utf8(&mut [0; 4]) as &str)
        });
        match missing {
            _ if tokens.is_empty() => Err("it has no tokens".into()),
            Some(byte) => Err(format!("the byte {byte:#04x} has no token; download it again")),
            None => Ok(Self { tokens }),
        }
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The model with ids from `first` on, and `special` tokens with theirs, which replace equal ones.
    ///
    /// # Errors
    /// If there are too many merges.
    pub fn bpe<'a>(&'a self, first: u32, special: &'a [(String, u32)]) -> Result<Bpe<'a>, String> {
        let texts: Vec<&str> = self.tokens.iter().map(String::as_str).collect();
        let merges = all_merges(&texts).ok_or_else(|| format!("it has more than {MAX_MERGES} merges"))?;
        let merges = merges.into_iter().map(|Merge { left, right, .. }| (left, right)).collect();
        let taken: HashSet<&str> = special.iter().map(|(token, _)| token.as_str()).collect();
        let own = texts.into_iter().zip(first..).filter(|(token, _)| !taken.contains(token));
        let special = special.iter().map(|(token, id)| (token.as_str(), *id));
        Ok(Bpe { ignore_merges: true, ..Bpe::new(Tokens(special.chain(own).collect()), merges) })
    }
}

/// GPT-2's character for each byte: printable ones are themselves, the others follow from U+0100 on.
fn alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = 256_u32;
    for byte in 0..=255_u8 {
        alphabet[usize::from(byte)] = match byte {
            33..=126 | 161..=172 | 174..=255 => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or_default()
            }
        };
    }
    alphabet
}
