//! Random answers under a constraint, as from a model with random logits.
#![allow(dead_code)] // each test uses a part of it

use std::sync::{Arc, OnceLock};

use skein_grammar::token_bytes::TokenBytes;
use skein_grammar::{Compiled, Library, Matcher, Refused, Source};

/// The shipped model's vocabulary.
pub fn vocabulary() -> &'static (Arc<TokenBytes>, Library) {
    static MODEL: OnceLock<(Arc<TokenBytes>, Library)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        let tree = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let bytes = TokenBytes::from_tokenizer_json(&tree).unwrap();
        let library = Library::new(&bytes, bytes.vocab_size()).unwrap();
        (Arc::new(bytes), library)
    })
}

pub fn compile(source: &Source) -> Result<Compiled, Refused> {
    vocabulary().1.compile(source)
}

/// Outcome of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Walk {
    /// The answer is complete.
    Ended(String),
    /// The answer reached the token limit.
    Cut(String),
}

/// Small random generator whose seed a failure reports.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

/// Generates up to `most` random tokens; wherever the answer may end, it ends with probability one half.
/// `prefers` can choose the next token.
pub fn walk(
    matcher: &mut Matcher,
    random: &mut Random,
    most: usize,
    prefers: impl Fn(&[u8]) -> bool,
) -> Walk {
    let bytes = &vocabulary().0;
    let mut text = Vec::new();
    for _ in 0..most {
        let next = matcher.next_tokens().expect("a random answer meets no limit");
        if next.mask.is_empty() || (next.may_end && random.below(2) == 0) {
            assert!(next.may_end);
            return Walk::Ended(String::from_utf8(text).expect("whole characters"));
        }
        let liked: Vec<u32> = next.mask.tokens().filter(|token| prefers(bytes.get(*token))).collect();
        let all: Vec<u32> = if liked.is_empty() { next.mask.tokens().collect() } else { liked };
        let token = all[random.below(all.len() as u64) as usize];
        text.extend_from_slice(bytes.get(token));
        matcher.advance(token).expect("an allowed token fits");
    }
    Walk::Cut(String::from_utf8_lossy(&text).into_owned())
}
