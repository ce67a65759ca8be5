//! Texts to generate: pairs from the repository, random tokens of which a given fraction repeats, and random
//! tokens that a draft model guesses with a given probability.

use std::path::Path;

use serde::Deserialize;
use skein_node::random::SplitMix64;
use skein_text::tokenizer::Tokenizer;
use skein_worker::TokenId;

/// Length of an answer, and limit of a prompt, in tokens.
const ANSWER: usize = 128;
const PROMPT: usize = 900;
/// Fractions of random answers that repeat their prompts.
const DIALS: [f64; 6] = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0];
/// Probabilities that a token of the draft model is right.
const AGREEMENTS: [f64; 6] = [0.0, 0.5, 0.7, 0.8, 0.9, 1.0];
const DIAL_TEXTS: u64 = 16;
const DIAL_VOCABULARY: usize = 4000;

/// A generated text and its kind.
#[derive(Debug, Clone)]
pub struct Text {
    pub kind: String,
    /// Index among all texts.
    pub number: u64,
    pub prompt: Vec<TokenId>,
    pub answer: Vec<TokenId>,
    /// Probability that the draft model draws a token of the answer.
    pub agreement: f64,
}

#[derive(Deserialize)]
struct Line {
    kind: String,
    prompt: String,
    answer: String,
}

/// The texts of the file at `path`, except too short or too long ones, and the random texts.
pub fn texts(path: &str, tokenizer: &Path) -> Vec<Text> {
    let tokenizer = std::fs::read(tokenizer).expect("the shipped model is there");
    let tokenizer = Tokenizer::from_json(&tokenizer).expect("it is a tokenizer");
    let lines = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut texts = Vec::new();
    for line in lines.lines() {
        let Line { kind, prompt, answer } = serde_json::from_str(line).expect("a text a line");
        let encode = |text: &str| tokenizer.encode(text, false).expect("text has tokens");
        let (prompt, answer) = (encode(&prompt), encode(&answer));
        if answer.len() >= ANSWER && prompt.len() <= PROMPT {
            let (number, answer) = (texts.len() as u64, answer[..ANSWER].to_vec());
            texts.push(Text { kind, number, prompt, answer, agreement: 0.0 });
        }
    }
    for dial in DIALS {
        (0..DIAL_TEXTS).for_each(|seed| texts.push(repeating(dial, seed, texts.len() as u64)));
    }
    for agreement in AGREEMENTS {
        for seed in 0..DIAL_TEXTS {
            let text = repeating(0.0, seed, texts.len() as u64);
            texts.push(Text { kind: format!("draft model {agreement}"), agreement, ..text });
        }
    }
    texts
}

/// Random tokens, and an answer that repeats each of them with probability `part`.
fn repeating(part: f64, seed: u64, number: u64) -> Text {
    let mut random = SplitMix64::new(seed);
    let prompt: Vec<TokenId> = (0..2 * ANSWER).map(|_| random.below(DIAL_VOCABULARY) as TokenId).collect();
    let repeat = |token: &TokenId| {
        if random.unit() < part { *token } else { random.below(DIAL_VOCABULARY) as TokenId }
    };
    let answer = prompt[..ANSWER].iter().map(repeat).collect();
    // The prompt ends as its first half does, so that the first draft token already has a match.
    let prompt = [&prompt[..], &[1, 2, 3], &prompt[..], &[1, 2, 3]].concat();
    Text { kind: format!("dial {part}"), number, prompt, answer, agreement: 0.0 }
}
