//! Set of tokens in the form that the sampler reads.

use skein_proto::TokenId;

/// Tokens per word of a mask.
const WORD: usize = 32;

/// Set of allowed tokens: token `t` is allowed if bit `t % 32` of word `t / 32` is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    words: Vec<u32>,
    vocab_size: u32,
}

impl Mask {
    /// Mask that allows no token of `vocab_size`.
    pub fn none(vocab_size: u32) -> Self {
        Self { words: vec![0; (vocab_size as usize).div_ceil(WORD)], vocab_size }
    }

    /// Mask from the first `vocab_size` bits of `words`.
    pub fn from_words(words: &[u32], vocab_size: u32) -> Self {
        let mut mask = Self::none(vocab_size);
        let count = mask.words.len().min(words.len());
        mask.words[..count].copy_from_slice(&words[..count]);
        let rest = vocab_size as usize % WORD;
        if rest > 0
            && let Some(last) = mask.words.last_mut()
        {
            *last &= (1 << rest) - 1;
        }
        mask
    }

    /// Size of the vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Words of the mask, `vocab_size / 32` rounded up.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether `token` may be drawn.
    pub fn allows(&self, token: TokenId) -> bool {
        let word = self.words.get(token as usize / WORD);
        word.is_some_and(|word| word & (1 << (token as usize % WORD)) != 0)
    }

    /// Allows `token` if it is in the vocabulary.
    pub fn allow(&mut self, token: TokenId) {
        if token < self.vocab_size {
            self.words[token as usize / WORD] |= 1 << (token as usize % WORD);
        }
    }

    /// Removes `token` from the set; no effect outside the vocabulary.
    pub fn forbid(&mut self, token: TokenId) {
        if let Some(word) = self.words.get_mut(token as usize / WORD) {
            *word &= !(1 << (token as usize % WORD));
        }
    }

    /// Whether no token is allowed.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Number of allowed tokens.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Allowed tokens, ascending.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        (0..self.vocab_size).filter(|token| self.allows(*token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_the_set_of_its_tokens() {
        let mut mask = Mask::from_words(&[u32::MAX, u32::MAX, u32::MAX], 40);
        assert_eq!((mask.count(), mask.words().len()), (40, 2));
        mask.forbid(39);
        assert!(mask.allows(38) && !mask.allows(39) && !mask.allows(64), "bits past the vocabulary are off");
        let mut mask = Mask::none(40);
        assert!(mask.is_empty());
        [0, 31, 32, 39, 40].into_iter().for_each(|token| mask.allow(token));
        assert_eq!(mask.tokens().collect::<Vec<_>>(), [0, 31, 32, 39]);
    }
}
