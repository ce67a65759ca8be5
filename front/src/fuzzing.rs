//! Doors for `tests/fuzz` to what this crate keeps to itself.

use bytes::Bytes;
use serde_json::{Map, Value};
use skein_proto::inference::{ModelInferResponse, ModelMetadataResponse};

use crate::continuation;
use crate::events::{Events, each};
use crate::kserve::{Completion, Model, request};
use crate::prompt::Prompt;
use crate::routes::Continues;
use crate::tally::Tally;
use crate::transcript::Transcript;

/// Reads from a body what a choice depends on; marks ascend.
pub fn prompt(body: &[u8]) {
    let prompt = Prompt::read(body, 7);
    let _ = prompt.affinity();
    assert!(prompt.marks.is_sorted_by(|one, next| one.bytes < next.bytes), "{:?}", prompt.marks);
}

/// Reads a worker's stream whole and in `parts`: the bytes passed on and the transcript are the same. What
/// remains of `body`'s answer is a request or the end of the stream.
pub fn stream<'a>(parts: impl IntoIterator<Item = &'a [u8]>, body: &[u8]) {
    let (mut events, mut in_parts, mut sent, mut all) =
        (Events::default(), Transcript::default(), Vec::new(), Vec::new());
    let mut read = |transcript: &mut Transcript, bytes: &[u8]| {
        transcript.read(bytes);
        sent.extend_from_slice(bytes);
    };
    for part in parts {
        all.extend_from_slice(part);
        let whole = events.push(Bytes::copy_from_slice(part));
        read(&mut in_parts, &whole);
    }
    read(&mut in_parts, &events.rest());
    assert!(sent == all, "bytes are passed on as they came");
    assert_eq!(each(&all).map(<[u8]>::len).sum::<usize>(), all.len(), "every byte is in an event");
    let mut whole = Transcript::default();
    if whole.read(&all).is_none() {
        let told = |of: &Transcript| (of.text.clone(), of.events, of.ended, of.not_resumable.is_some());
        assert_eq!(told(&whole), told(&in_parts));
    }
    let (mut streamed, mut kept) = (Tally::default(), Tally::default());
    streamed.events(&all);
    kept.whole(&all);
    for tokens in [streamed.tokens(1), kept.tokens(1)].into_iter().flatten() {
        assert!(tokens.0.cached <= tokens.0.prompt, "{tokens:?}");
        let _ = tokens.0.computed();
    }
    for kind in [Continues::Chat, Continues::Completion] {
        let _ = continuation::rest(kind, &Bytes::copy_from_slice(body), &whole);
    }
}

/// A body as tensors for a model of a KServe server.
pub fn tensors(metadata: ModelMetadataResponse, body: &[u8]) {
    if let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(body)
        && let Ok(request) = request(fields, &Model::of(metadata), "id")
    {
        assert_eq!(request.inputs.len(), request.raw_input_contents.len());
    }
}

/// The responses of a KServe server as a completion, whole and as events.
pub fn completion(responses: &[ModelInferResponse]) {
    for fields in [r#"{"stream":true,"stream_options":{"include_usage":true},"max_tokens":3}"#, "{}"] {
        let fields: Map<String, Value> = serde_json::from_str(fields).expect("it is JSON");
        let mut whole = Completion::new("id", 0, "model", &fields);
        let mut streamed = Completion::new("id", 0, "model", &fields);
        for response in responses {
            let (ended, events) = (whole.gather(response.clone()), streamed.events(response.clone()));
            assert_eq!(ended.is_ok(), events.is_ok());
        }
        whole.whole();
    }
}
