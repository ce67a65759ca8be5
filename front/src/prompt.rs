//! Reads from a request's body what a choice depends on: the model, the size of the request, and hashes of
//! the prompt's beginning. Pure.
//!
//! The prompt is taken as it stands in the body, whether it is text, messages or token ids: equal beginnings
//! of this text mean equal beginnings of the prompt. Nothing here judges a request. A body that is not JSON,
//! or not as expected, is routed by load and refused by the worker.

use serde::Deserialize;
use serde_json::value::RawValue;
use skein_choice::policy::EXPECTED_OUTPUT_TOKENS;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes between two marks at the beginning of a prompt.
const STEP: usize = 64;
/// Further on, marks are this fraction of the length so far apart, so that even long prompts have few.
const STEPS: usize = 16;
/// Bytes of prompt assumed per token.
const BYTES_PER_TOKEN: usize = 4;
/// Beginning of the prompt that determines the worker under consistent hashing, in bytes.
const AFFINITY_BYTES: u32 = 1024;
/// Most samples that count.
const MAX_SAMPLES: u64 = 128;

/// Hash of a prompt up to some byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Hash of everything before, with what else determines the cached prefix.
    pub hash: u64,
    /// Length so far, in bytes.
    pub bytes: u32,
}

impl Mark {
    /// Estimated tokens up to here.
    pub fn tokens(&self) -> u32 {
        self.bytes / BYTES_PER_TOKEN as u32
    }
}

/// What routing knows about a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prompt {
    /// The `model`, if it is a string.
    pub model: Option<String>,
    /// Whether the client wants a stream.
    pub streams: bool,
    /// Ascending marks of the prompt's beginning.
    pub marks: Vec<Mark>,
    /// Estimated tokens of the prompt.
    pub tokens: u32,
    /// Output tokens expected of each sample.
    pub output_tokens: u32,
    /// Number of samples that it asks for.
    pub samples: u32,
    /// The `priority`, if it is a whole number.
    pub priority: Option<i64>,
}

/// Fields of the APIs of OpenAI, Anthropic, TGI and llama.cpp, as they stand in the body.
#[derive(Default, Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    stream: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    input: Option<&'a RawValue>,
    inputs: Option<&'a RawValue>,
    system: Option<&'a RawValue>,
    tools: Option<&'a RawValue>,
    cache_salt: Option<&'a RawValue>,
    max_tokens: Option<&'a RawValue>,
    max_completion_tokens: Option<&'a RawValue>,
    n: Option<&'a RawValue>,
    priority: Option<&'a RawValue>,
}

impl Prompt {
    /// Reads `body`; hashes begin with `seed`, which no client knows.
    pub fn read(body: &[u8], seed: u64) -> Self {
        let fields: Fields<'_> = serde_json::from_slice(body).unwrap_or_default();
        let text = [fields.messages, fields.prompt, fields.input, fields.inputs].into_iter().flatten().next();
        let text = text.map_or(&b""[..], |text| text.get().as_bytes());
        let number = |field: Option<&RawValue>| field.and_then(|field| field.get().parse::<u64>().ok());
        let output = number(fields.max_completion_tokens).or(number(fields.max_tokens));
        let before = [fields.model, fields.cache_salt, fields.tools, fields.system];
        let root = before.into_iter().fold(seed, |hash, field| {
            xxh3_64_with_seed(field.map_or(&b""[..], |field| field.get().as_bytes()), hash)
        });
        Self {
            model: fields.model.and_then(|model| serde_json::from_str(model.get()).ok()),
            streams: fields.stream.is_some_and(|stream| stream.get() == "true"),
            marks: marks(text, root),
            tokens: u32::try_from(text.len() / BYTES_PER_TOKEN).unwrap_or(u32::MAX),
            output_tokens: output
                .map_or(EXPECTED_OUTPUT_TOKENS, |most| u32::try_from(most).unwrap_or(u32::MAX)),
            samples: number(fields.n).unwrap_or(1).clamp(1, MAX_SAMPLES) as u32,
            priority: fields.priority.and_then(|priority| priority.get().parse().ok()),
        }
    }

    /// Hash of the prompt's beginning, for consistent hashing.
    pub fn affinity(&self) -> u64 {
        let beginning = self.marks.iter().take_while(|mark| mark.bytes <= AFFINITY_BYTES).last();
        beginning
            .map_or_else(|| xxh3_64(self.model.as_deref().unwrap_or_default().as_bytes()), |mark| mark.hash)
    }
}

fn marks(text: &[u8], root: u64) -> Vec<Mark> {
    let (mut marks, mut at, mut hash) = (Vec::new(), 0, root);
    while let Some(segment) = text.get(at..at + step_at(at)) {
        at += segment.len();
        hash = xxh3_64_with_seed(segment, hash);
        let Ok(bytes) = u32::try_from(at) else { break };
        marks.push(Mark { hash, bytes });
    }
    marks
}

/// Distance from a mark at `at` to the next.
fn step_at(at: usize) -> usize {
    (at / STEPS / STEP).max(1) * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Prompt {
        Prompt::read(body.as_bytes(), 7)
    }

    #[test]
    fn what_a_choice_depends_on_is_read_from_every_api() {
        let text = "x".repeat(100);
        for field in ["prompt", "input", "inputs"] {
            let prompt =
                read(&format!(r#"{{"model":"m","stream":true,"{field}":"{text}","n":2,"max_tokens":5}}"#));
            assert_eq!(prompt.model.as_deref(), Some("m"));
            assert_eq!(
                (prompt.streams, prompt.samples, prompt.output_tokens, prompt.tokens),
                (true, 2, 5, 25)
            );
            assert_eq!(prompt.marks.len(), 1);
        }
        let chat =
            read(r#"{"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":7,"max_tokens":9}"#);
        assert_eq!((chat.streams, chat.output_tokens), (false, 7));
    }

    #[test]
    fn bodies_that_are_not_as_expected_are_routed_by_load() {
        for body in
            ["", "no", "[1]", r#"{"model":1,"n":-3,"max_tokens":"a","stream":"true"}"#, r#"{"n":1,"n":2}"#]
        {
            let prompt = read(body);
            let expected = Prompt { output_tokens: EXPECTED_OUTPUT_TOKENS, samples: 1, ..Prompt::default() };
            assert_eq!(prompt, expected, "{body}");
        }
    }

    #[test]
    fn prompts_share_marks_up_to_where_they_differ() {
        let body = |tail: &str| {
            format!(r#"{{"messages":[{{"role":"system","content":"{}"}},{tail}]}}"#, "s".repeat(5000))
        };
        let (one, other) =
            (read(&body("\"first question\"")), read(&body(&format!("\"{}\"", "other ".repeat(100)))));
        let shared = one.marks.iter().zip(&other.marks).take_while(|(a, b)| a == b).count();
        assert!(one.marks[shared - 1].bytes > 4600, "{:?}", one.marks[shared - 1]);
        assert_eq!(one.affinity(), other.affinity());
        // Equal lengths of token ids are not equal prompts.
        let ids = |first: u32| read(&format!(r#"{{"prompt":[{first}{}]}}"#, ",5".repeat(100)));
        assert!(ids(1).marks[0] != ids(2).marks[0]);
        // Another model, other tools or another tenant's salt share nothing.
        let with =
            |fields: &str| read(&format!(r#"{{{fields}"prompt":"{}"}}"#, "p".repeat(200))).marks[0].hash;
        let hashes =
            [with(""), with(r#""model":"a","#), with(r#""tools":[1],"#), with(r#""cache_salt":"s","#)];
        assert!((1..4).all(|at| !hashes[..at].contains(&hashes[at])), "{hashes:?}");
    }

    #[test]
    fn a_long_prompt_has_few_marks() {
        let count = |bytes: usize| read(&format!(r#"{{"prompt":"{}"}}"#, "x".repeat(bytes))).marks.len();
        assert!(count(16 << 10) < 80 && count(8 << 20) < 200, "{} {}", count(16 << 10), count(8 << 20));
    }
}
