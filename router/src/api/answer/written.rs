//! Whole answers of plain text, written at once. The general way builds a tree of values first, which costs
//! tens of allocations an answer.

use serde::Serialize;
use serde_json::Value;

use super::shapes::{Heading, SYSTEM_FINGERPRINT, stop_reason};
use crate::request::Journey;
use crate::text::text_stream::{TextFinish, Usage};

/// Room for an answer beside its text, bytes.
const AROUND_TEXT: usize = 640;

/// An answer with `choices`, or a chunk of one.
#[derive(Debug)]
pub struct Written<'a, C> {
    /// Fields that every object repeats.
    pub heading: &'a Heading,
    /// Its choices.
    pub choices: &'a [C],
    /// Token counts, if they are shown.
    pub usage: Shown<Usage>,
    /// Shown if the request moved between workers.
    pub journey: Journey,
}

/// Whether an optional part of an object is shown.
#[derive(Debug, Clone, Copy)]
pub enum Shown<T> {
    /// With its value.
    As(T),
    /// As null.
    Null,
    /// It is absent.
    No,
}

impl<C: Serialize> Written<'_, C> {
    /// The JSON text; `text_bytes` is the length of the text in its choices.
    pub fn json(&self, text_bytes: usize) -> String {
        let Heading { id, object, created, model } = self.heading;
        let (usage, usage_is_null) = match self.usage {
            Shown::As(usage) => (Some(UsageObject::from(usage)), false),
            Shown::Null => (None, true),
            Shown::No => (None, false),
        };
        let Journey { moves, resume_exact, .. } = self.journey;
        let skein = (moves > 0).then_some(Moved { moves, resume_exact });
        let object = Object {
            id,
            object,
            created: *created,
            model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            choices: self.choices,
            usage,
            null_usage: usage_is_null.then_some(()),
            skein,
        };
        let mut json = Vec::with_capacity(text_bytes + AROUND_TEXT);
        // Writing to memory cannot fail, and neither can these types.
        let _ = serde_json::to_writer(&mut json, &object);
        String::from_utf8(json).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageObject>,
    #[serde(rename = "usage", skip_serializing_if = "Option::is_none")]
    null_usage: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skein: Option<Moved>,
}

#[derive(Serialize)]
struct Moved {
    moves: u32,
    resume_exact: bool,
}

#[derive(Serialize)]
struct UsageObject {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u32,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u32,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        let Usage { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = usage;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: u64::from(prompt_tokens) + u64::from(completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens },
            completion_tokens_details: reasoning_tokens
                .map(|reasoning_tokens| CompletionDetails { reasoning_tokens }),
        }
    }
}

/// How a choice ended; both are null while it runs.
#[derive(Debug, Serialize)]
pub struct End {
    finish_reason: Option<&'static str>,
    stop_reason: Value,
}

impl End {
    /// The end of a choice.
    pub fn of(finish: Option<&TextFinish>) -> Self {
        Self { finish_reason: finish.map(TextFinish::reason), stop_reason: stop_reason(finish) }
    }
}

/// A choice of a completion.
#[derive(Debug)]
pub struct TextChoice<'a> {
    /// Its position among the choices.
    pub index: usize,
    /// Its text.
    pub text: &'a str,
    /// Its end.
    pub end: End,
}

impl Serialize for TextChoice<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut choice = serializer.serialize_struct("choice", 5)?;
        choice.serialize_field("index", &self.index)?;
        choice.serialize_field("text", self.text)?;
        choice.serialize_field("logprobs", &())?;
        choice.serialize_field("finish_reason", &self.end.finish_reason)?;
        choice.serialize_field("stop_reason", &self.end.stop_reason)?;
        choice.end()
    }
}

/// A choice of a chat answer whose message is only content.
#[derive(Debug)]
pub struct MessageChoice<'a> {
    /// Its position among the choices.
    pub index: usize,
    /// Content of its message.
    pub content: &'a str,
    /// Its end.
    pub end: End,
}

#[derive(Serialize)]
struct PlainMessage<'a> {
    role: &'static str,
    content: &'a str,
    refusal: (),
}

impl Serialize for MessageChoice<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let message = PlainMessage { role: "assistant", content: self.content, refusal: () };
        let mut choice = serializer.serialize_struct("choice", 5)?;
        choice.serialize_field("index", &self.index)?;
        choice.serialize_field("message", &message)?;
        choice.serialize_field("logprobs", &())?;
        choice.serialize_field("finish_reason", &self.end.finish_reason)?;
        choice.serialize_field("stop_reason", &self.end.stop_reason)?;
        choice.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};
    use skein_proto::version::Version;

    use super::*;
    use crate::api::answer::shapes;
    use crate::text::text_stream::StopCause;

    const TEXTS: [&str; 3] = ["", "plain", "\"quoted\"\n\u{1}\u{7f}\u{2028}😀</script>\\"];

    fn ends() -> [Option<TextFinish>; 4] {
        let stop = |cause| Some(TextFinish::Stop(cause));
        [None, Some(TextFinish::Length), stop(StopCause::Text("a\"".into())), stop(StopCause::Token(7))]
    }

    /// The same object by the general way.
    fn tree(written: &Written<'_, impl Serialize>, choices: Vec<Value>) -> String {
        let mut object: Map<String, Value> = written.heading.object(choices);
        match written.usage {
            Shown::As(usage) => drop(object.insert("usage".to_owned(), shapes::usage(usage))),
            Shown::Null => drop(object.insert("usage".to_owned(), Value::Null)),
            Shown::No => {}
        }
        shapes::add_receipt(&mut object, written.journey);
        Value::Object(object).to_string()
    }

    #[test]
    fn what_is_written_equals_the_tree() {
        let heading = Heading { id: "a\"b".into(), object: "text", created: 7, model: "m\\n".into() };
        let counts =
            Usage { prompt_tokens: 3, completion_tokens: 6, cached_tokens: 1, reasoning_tokens: None };
        let usages = [
            Shown::No,
            Shown::Null,
            Shown::As(counts),
            Shown::As(Usage { completion_tokens: u32::MAX, reasoning_tokens: Some(2), ..counts }),
        ];
        let moved = Journey { moves: 2, resume_exact: false, version: Version::UNKNOWN };
        for (text, finish) in TEXTS.into_iter().flat_map(|text| ends().map(|finish| (text, finish))) {
            for (usage, journey) in
                usages.into_iter().flat_map(|usage| [(usage, Journey::default()), (usage, moved)])
            {
                let finish = finish.as_ref();
                let reasons = json!({"finish_reason": shapes::finish_reason(finish), "stop_reason": stop_reason(finish)});
                let choice = |index| TextChoice { index, text, end: End::of(finish) };
                let choices = [choice(0), choice(127)];
                let written = Written { heading: &heading, choices: &choices, usage, journey };
                let plain = |index: usize| {
                    json!({"index": index, "text": text, "logprobs": null,
                        "finish_reason": reasons["finish_reason"], "stop_reason": reasons["stop_reason"]})
                };
                assert_eq!(written.json(0), tree(&written, vec![plain(0), plain(127)]));
                let choices = [MessageChoice { index: 3, content: text, end: End::of(finish) }];
                let written = Written { heading: &heading, choices: &choices, usage, journey };
                let chat = json!({"index": 3, "message": {"role": "assistant", "content": text, "refusal": null},
                    "logprobs": null, "finish_reason": reasons["finish_reason"], "stop_reason": reasons["stop_reason"]});
                assert_eq!(written.json(text.len()), tree(&written, vec![chat]));
            }
        }
    }
}
