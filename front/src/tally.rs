//! Tokens of an answer: as its server tells them in `usage`, else estimated by its text. Pure.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::events;

/// Bytes of text assumed per token, as for prompts.
const BYTES_PER_TOKEN: u64 = 4;
/// Longest whole answer that is kept until its end, where `usage` is; of a longer one no tokens are known.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What a request has cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Prompt tokens, cached ones included.
    pub prompt: u64,
    /// Prompt tokens that were found in a prefix cache.
    pub cached: u64,
    /// Output tokens of all samples.
    pub output: u64,
}

impl Tokens {
    /// What counts for limits: all but cached prompt tokens.
    pub fn computed(&self) -> u64 {
        self.prompt.saturating_sub(self.cached).saturating_add(self.output)
    }
}

/// What an answer has said so far.
#[derive(Debug, Default)]
pub struct Tally {
    told: Option<Tokens>,
    said: Said,
    /// Output of servers that were lost; the client has its text.
    before: u64,
    body: Vec<u8>,
    body_bytes: usize,
}

/// Text of one server.
#[derive(Debug, Default)]
struct Said {
    events: u64,
    bytes: u64,
}

impl Said {
    /// An event has a token or more.
    fn tokens(&self) -> u64 {
        self.events.max(self.bytes / BYTES_PER_TOKEN)
    }
}

impl Tally {
    /// Takes whole events of a stream.
    pub fn events(&mut self, whole: &[u8]) {
        for data in events::each(whole).filter_map(events::data) {
            let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else { continue };
            let bytes = chunk.choices.iter().map(Choice::bytes).sum::<usize>() + chunk.delta_bytes();
            if bytes > 0 {
                self.said.events += 1;
                self.said.bytes += bytes as u64;
            }
            self.tell(&chunk);
        }
    }

    /// Takes the next part of an answer that is no stream of events.
    pub fn part(&mut self, bytes: &[u8]) {
        self.body_bytes = self.body_bytes.saturating_add(bytes.len());
        if self.body_bytes <= MAX_BODY_BYTES {
            self.body.extend_from_slice(bytes);
        } else {
            self.body = Vec::new();
        }
    }

    /// Takes an answer that is whole, with the [parts](Self::part) before it.
    pub fn whole(&mut self, body: &[u8]) {
        let parts = std::mem::take(&mut self.body);
        let body = if parts.is_empty() { body } else { &parts };
        if let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(body) {
            self.tell(&chunk);
        }
    }

    /// The server was lost, and another continues the text that the client has.
    pub fn continued(&mut self) {
        self.before += std::mem::take(&mut self.said).tokens();
        self.told = None;
    }

    /// The cost, and whether any of it is an estimate; `None` if the answer has said nothing. `prompt` is the
    /// estimate of the prompt.
    pub fn tokens(&self, prompt: u64) -> Option<(Tokens, bool)> {
        match (self.told, self.said.tokens() + self.before) {
            // The last server got the text before as a part of its prompt.
            (Some(Tokens { prompt, cached, output }), _) => {
                let before = self.before.min(prompt);
                let prompt = prompt - before;
                let output = output.saturating_add(before);
                Some((Tokens { prompt, cached: cached.min(prompt), output }, self.before > 0))
            }
            (None, 0) => None,
            (None, output) => Some((Tokens { prompt, cached: 0, output }, true)),
        }
    }

    /// Servers repeat their counts as they grow, or tell those of prompt and output apart.
    fn tell(&mut self, chunk: &Chunk<'_>) {
        let inner = [&chunk.message, &chunk.response].into_iter().flatten().find_map(|outer| outer.usage);
        let given = chunk.usage.or(inner).map(RawValue::get).filter(|usage| *usage != "null");
        let Some(Ok(usage)) = given.map(serde_json::from_str::<Usage>) else { return };
        let (new, told) = (usage.tokens(), self.told.unwrap_or_default());
        self.told = Some(Tokens {
            prompt: told.prompt.max(new.prompt),
            cached: told.cached.max(new.cached),
            output: told.output.max(new.output),
        });
    }
}

/// Fields of the APIs of OpenAI and Anthropic.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    /// Of Anthropic's first event.
    #[serde(borrow, default)]
    message: Option<Outer<'a>>,
    /// Of the last event of `/v1/responses`.
    #[serde(borrow, default)]
    response: Option<Outer<'a>>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    /// Text of `/v1/responses` and `/v1/messages`.
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
}

impl Chunk<'_> {
    fn delta_bytes(&self) -> usize {
        match self.delta.map(RawValue::get) {
            Some(text) if text.starts_with('"') => text.len() - 2,
            Some(object) => serde_json::from_str::<Delta<'_>>(object).map_or(0, |delta| delta.bytes()),
            None => 0,
        }
    }
}

#[derive(Deserialize)]
struct Outer<'a> {
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
}

impl Choice<'_> {
    fn bytes(&self) -> usize {
        text_bytes(self.text) + self.delta.as_ref().map_or(0, Delta::bytes)
    }
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow, default)]
    partial_json: Option<&'a RawValue>,
}

impl Delta<'_> {
    fn bytes(&self) -> usize {
        let texts = [self.content, self.reasoning_content.or(self.reasoning), self.text, self.thinking];
        let calls = self.tool_calls.map(RawValue::get).filter(|calls| calls.starts_with('['));
        let calls = calls.map_or(0, |calls| calls.len() - 2);
        texts.into_iter().map(text_bytes).sum::<usize>() + text_bytes(self.partial_json) + calls
    }
}

/// Length of a string of JSON, as it is written; 0 of anything else.
fn text_bytes(text: Option<&RawValue>) -> usize {
    text.map(RawValue::get).filter(|text| text.starts_with('"')).map_or(0, |text| text.len() - 2)
}

/// Counts by the names of OpenAI's and Anthropic's APIs.
#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Usage {
    fn tokens(&self) -> Tokens {
        // Anthropic's `input_tokens` are those that no cache had to do with.
        let read = self.cache_read_input_tokens.unwrap_or_default();
        let beside = read.saturating_add(self.cache_creation_input_tokens.unwrap_or_default());
        let prompt = self.prompt_tokens.or(self.input_tokens).unwrap_or_default().saturating_add(beside);
        let details = self.prompt_tokens_details.as_ref().or(self.input_tokens_details.as_ref());
        let cached = details.and_then(|details| details.cached_tokens).unwrap_or(read);
        let output = self.completion_tokens.or(self.output_tokens).unwrap_or_default();
        Tokens { prompt, cached: cached.min(prompt), output }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streamed(tally: &mut Tally, events: &[&str]) {
        let stream: String = events.iter().map(|data| format!("data: {data}\n\n")).collect();
        tally.events(stream.as_bytes());
    }

    #[test]
    fn the_servers_counts_are_taken_in_each_api() {
        let check = |events: &[&str], [prompt, cached, output]: [u64; 3]| {
            let mut tally = Tally::default();
            streamed(&mut tally, events);
            let expected = Some((Tokens { prompt, cached, output }, false));
            assert_eq!(tally.tokens(9), expected, "{events:?}");
            if let [whole] = events {
                let mut tally = Tally::default();
                let (begin, end) = whole.as_bytes().split_at(whole.len() / 2);
                tally.part(begin);
                tally.part(end);
                tally.whole(b"");
                assert_eq!(tally.tokens(9), expected, "in parts: {whole}");
            }
        };
        check(
            &[
                r#"{"choices":[{"text":"a"}],"usage":null}"#,
                r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}"#,
                "[DONE]",
            ],
            [5, 0, 7],
        );
        // vLLM's continuous_usage_stats.
        check(
            &[
                r#"{"usage":{"prompt_tokens":5,"completion_tokens":1}}"#,
                r#"{"usage":{"prompt_tokens":5,"completion_tokens":2}}"#,
            ],
            [5, 0, 2],
        );
        check(
            &[
                r#"{"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#,
            ],
            [5, 4, 7],
        );
        check(&[r#"{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#], [5, 0, 0]);
        check(
            &[
                r#"{"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":7,"input_tokens_details":{"cached_tokens":1}}}}"#,
            ],
            [5, 1, 7],
        );
        check(
            &[
                r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":2,"output_tokens":1}}}"#,
                r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"abc"}}"#,
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}"#,
            ],
            [5, 2, 7],
        );
    }

    #[test]
    fn without_usage_tokens_are_estimated_by_events_and_text() {
        let check = |events: &[&str], output: Option<u64>| {
            let mut tally = Tally::default();
            streamed(&mut tally, events);
            let expected = output.map(|output| (Tokens { prompt: 9, cached: 0, output }, true));
            assert_eq!(tally.tokens(9), expected, "{events:?}");
        };
        check(&[], None);
        check(&[r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#], None);
        let chat = r#"{"choices":[{"delta":{"content":"ab"}}]}"#;
        check(&[chat, chat, chat, "[DONE]"], Some(3));
        // Several tokens in one event.
        check(&[r#"{"choices":[{"text":"abcdefghijklmnopqrst"}]}"#], Some(5));
        check(
            &[
                r#"{"choices":[{"delta":{"reasoning":"ab"}}]}"#,
                r#"{"type":"response.output_text.delta","delta":"ab"}"#,
            ],
            Some(2),
        );
        check(
            &["nonsense", r#"{"usage":"much"}"#, r#"{"choices":{}}"#, r#"{"usage":{"prompt_tokens":-1}}"#],
            None,
        );
    }

    #[test]
    fn text_before_a_move_counts_as_output_once() {
        let chat = r#"{"choices":[{"delta":{"content":"ab"}}]}"#;
        let mut tally = Tally::default();
        streamed(&mut tally, &[chat, chat]);
        tally.continued();
        streamed(&mut tally, &[chat]);
        assert_eq!(tally.tokens(9), Some((Tokens { prompt: 9, cached: 0, output: 3 }, true)));
        streamed(&mut tally, &[r#"{"usage":{"prompt_tokens":12,"completion_tokens":1}}"#]);
        assert_eq!(tally.tokens(9), Some((Tokens { prompt: 10, cached: 0, output: 3 }, true)));
        assert_eq!(tally.tokens(9).map(|(tokens, _)| tokens.computed()), Some(13));
    }

    #[test]
    fn a_body_too_long_to_keep_tells_nothing() {
        let mut tally = Tally::default();
        tally.part(&vec![b' '; MAX_BODY_BYTES]);
        tally.part(b" ");
        assert!(tally.body.is_empty());
    }
}
