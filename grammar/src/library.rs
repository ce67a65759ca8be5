//! Compiles grammars and matches answers with the llguidance library. Only this file calls it; the rest of
//! the crate deals in sources, masks and matchers.
//!
//! The library works on bytes, so a grammar allows every tokenization of its text. No token is forced: each
//! is drawn from the model's distribution over the allowed tokens.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Logger, ParserFactory};
use skein_proto::TokenId;

use crate::error::{Refused, Stuck};
use crate::limits::{
    COMPILE_FUEL, MASK_FUEL, MASK_ITEMS, MAX_ALTERNATIVES, MAX_GRAMMAR_SYMBOLS, MAX_LEXER_STATES,
};
use crate::mask::Mask;
use crate::source::Source;
use crate::token_bytes::TokenBytes;
use crate::words::plain;

/// Name and version of the library. Versions may allow different tokens, so workers must agree on it. A test
/// compares it with Cargo.lock.
pub const VERSION: &str = "llguidance 1.9.1";

/// Prefix that marks the bytes of control tokens, so that no text matches them.
const CONTROL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// The library with one vocabulary.
pub struct Library {
    factory: ParserFactory,
    /// Vocabulary size of the model; the library has one more token, for the end.
    vocab_size: u32,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl Library {
    /// Library for a model with `vocab_size` tokens, of which `bytes` are known. Takes a second for a large
    /// vocabulary.
    ///
    /// # Errors
    /// [`Refused::Unavailable`] with the library's reason.
    pub fn new(bytes: &TokenBytes, vocab_size: u32) -> Result<Self, Refused> {
        let word = |token: TokenId| match (bytes.is_special(token), bytes.get(token)) {
            (_, []) => Vec::new(),
            (false, bytes) => bytes.to_vec(),
            (true, bytes) => [&[CONTROL], bytes].concat(),
        };
        let mut words: Vec<Vec<u8>> = (0..vocab_size).map(word).collect();
        words.push([&[CONTROL][..], b"<end>"].concat());
        let info = TokRxInfo::new(vocab_size + 1, vocab_size);
        let trie = TokTrie::from(&info, &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|error| Refused::Unavailable { reason: plain(&error.to_string(), false) })?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(Self { factory, vocab_size })
    }

    /// Compiles `source` within the work limits of [`crate::limits`].
    ///
    /// # Errors
    /// [`Refused`] with the fault.
    pub fn compile(&self, source: &Source) -> Result<Compiled, Refused> {
        let refused = |error: String| source.refused(&error);
        let grammar = TopLevelGrammar::from_lark(source.text().to_owned());
        let parser = self.factory.create_parser_from_init_ext(
            llguidance::api::GrammarInit::Serialized(grammar),
            Logger::new(0, 0),
            InferenceCapabilities::default(),
            limits(),
        );
        let parser = parser.map_err(|error| refused(format!("{error:#}")))?;
        let bytes = parser.parser.lexer_stats().num_bytes + source.text().len();
        let mut matcher = llguidance::Matcher::new(Ok(parser));
        // Detects a grammar that allows nothing at all.
        matcher.consume_tokens(&[]).map_err(|error| refused(error.to_string()))?;
        let tokens = self.factory.tok_env().clone();
        Ok(Compiled { pristine: Mutex::new(matcher), tokens, vocab_size: self.vocab_size, bytes })
    }
}

fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: MAX_ALTERNATIVES,
        initial_lexer_fuel: COMPILE_FUEL,
        step_lexer_fuel: MASK_FUEL,
        step_max_items: MASK_ITEMS,
        max_lexer_states: MAX_LEXER_STATES,
        max_grammar_size: MAX_GRAMMAR_SYMBOLS,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Converts `pattern` to Lark's form between slashes.
pub(crate) fn regex_to_lark(pattern: &str) -> String {
    llguidance::regex_to_lark(pattern, "")
}

/// Compiled grammar in its initial state, shared by all answers that use it.
pub struct Compiled {
    pristine: Mutex<llguidance::Matcher>,
    tokens: TokEnv,
    vocab_size: u32,
    bytes: usize,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Compiled {
    /// Matcher for a new answer. It shares no state with others, so its masks and limits depend only on its
    /// own answer.
    pub fn matcher(&self) -> Matcher {
        let pristine = self.pristine.lock().unwrap_or_else(PoisonError::into_inner);
        Matcher { inner: pristine.deep_clone(), tokens: self.tokens.clone(), vocab_size: self.vocab_size }
    }

    /// Size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// State of an answer in its grammar: a function of the grammar and the answer's tokens.
pub struct Matcher {
    inner: llguidance::Matcher,
    tokens: TokEnv,
    vocab_size: u32,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}

impl Matcher {
    /// Consumes one token of the answer.
    ///
    /// # Errors
    /// [`Stuck`] if the token does not match or a limit is exceeded. The matcher is then unusable.
    pub fn advance(&mut self, token: TokenId) -> Result<(), Stuck> {
        self.inner.consume_token(token).map_err(stuck)
    }

    /// Whether the answer is complete and cannot continue.
    pub fn is_done(&self) -> bool {
        self.inner.is_stopped() && !self.inner.is_error()
    }

    /// Tokens that may come next, and whether the answer may end here. The mask is empty if and only if the
    /// answer must end.
    ///
    /// # Errors
    /// [`Stuck`] if no token of the vocabulary continues the answer, or a limit is exceeded.
    pub fn next_tokens(&mut self) -> Result<Next, Stuck> {
        if self.is_done() {
            return Ok(Next { mask: Mask::none(self.vocab_size), may_end: true });
        }
        let set = self.inner.compute_mask().map_err(stuck)?;
        let mask = Mask::from_words(set.as_slice(), self.vocab_size);
        Ok(Next { mask, may_end: set.is_allowed(self.vocab_size) })
    }

    /// Copy that shares no state with this matcher.
    pub fn fork(&self) -> Self {
        Self { inner: self.inner.deep_clone(), tokens: self.tokens.clone(), vocab_size: self.vocab_size }
    }

    /// Tokens of the text that must come next; empty if there is a choice. The grammar allows other
    /// tokenizations of the text, so these are guesses. Consumes the matcher, which is unusable afterwards.
    pub fn into_forced(mut self) -> Vec<TokenId> {
        let bytes = self.inner.compute_ff_bytes();
        if bytes.contains(&CONTROL) { Vec::new() } else { self.tokens.tokenize_bytes(&bytes) }
    }
}

fn stuck(error: impl std::fmt::Display) -> Stuck {
    let reason = plain(&error.to_string(), false);
    // The library's code for an empty mask.
    let reason =
        if reason == "NoExtensionBias" { "no token of the model continues it".into() } else { reason };
    Stuck { reason }
}

/// Options for continuing an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// Tokens that may be drawn next.
    pub mask: Mask,
    /// Whether the answer may end here.
    pub may_end: bool,
}
