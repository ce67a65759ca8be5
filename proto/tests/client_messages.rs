//! Frozen encodings of skein.v1: messages of released versions must keep their meaning. Each line of
//! `testdata/skein_v1.txt` is a name and a message in hexadecimal. Lines are added and never changed.

use std::collections::HashMap;
use std::fmt::{Debug, Write};

use prost::Message;
use skein_proto::v1;

const GOLDEN: &str = include_str!("../testdata/skein_v1.txt");

fn golden() -> HashMap<&'static str, Vec<u8>> {
    let byte = |line: &str, at: usize| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal");
    let bytes = |hex: &str| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect();
    let lines = GOLDEN.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(name, hex)| (name, bytes(hex))).collect()
}

/// The golden bytes decode to `expected`, and `expected` encodes to them.
fn check<M: Message + Default + PartialEq + Debug>(name: &str, expected: &M) {
    let hex = expected.encode_to_vec().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let Some(bytes) = golden().remove(name) else { panic!("add the line `{name} {hex}`") };
    assert_eq!(&M::decode(bytes.as_slice()).expect("golden bytes decode"), expected, "{name}");
    assert_eq!(expected.encode_to_vec(), bytes, "{name} {hex}");
    // Fields of a newer peer are ignored.
    let newer = [bytes.as_slice(), &[0xFA, 0x3F, 0x02, 0x08, 0x01]].concat();
    assert_eq!(&M::decode(newer.as_slice()).expect("unknown fields are no error"), expected, "{name}");
}

fn sampling() -> v1::SamplingOptions {
    v1::SamplingOptions {
        max_tokens: Some(16),
        min_tokens: Some(2),
        n: Some(3),
        temperature: Some(0.5),
        top_p: Some(0.75),
        top_k: Some(-1),
        min_p: Some(0.125),
        repetition_penalty: Some(1.5),
        presence_penalty: Some(-0.5),
        frequency_penalty: Some(0.25),
        seed: Some(-7),
        logit_bias: [(5, -100.0)].into(),
        stop: vec!["END".to_owned(), "é".to_owned()],
        stop_token_ids: vec![1, 300],
        include_stop_str_in_output: true,
        ignore_eos: true,
        logprobs: Some(2),
        prompt_logprobs: Some(0),
        skip_special_tokens: Some(false),
        allowed_token_ids: Vec::new(),
        bad_words: Vec::new(),
    }
}

fn request(prompt: v1::generate_request::Prompt) -> v1::GenerateRequest {
    v1::GenerateRequest {
        model: "skein-7m".to_owned(),
        prompt: Some(prompt),
        sampling: Some(sampling()),
        request_id: "mine".to_owned(),
        cache_salt: "salt".to_owned(),
        priority: -3,
        return_token_ids: true,
        resume_from: Vec::new(),
        json_schema: String::new(),
    }
}

fn chat() -> v1::Chat {
    let (role, content) = ("user".to_owned(), "Hé".to_owned());
    let message = v1::ChatMessage { role, content, ..v1::ChatMessage::default() };
    v1::Chat { messages: vec![message], add_generation_prompt: Some(false), ..v1::Chat::default() }
}

fn response() -> v1::GenerateResponse {
    let top = v1::TopLogprob { token_id: 8, token: "b".to_owned(), logprob: -1.5 };
    let logprob = v1::TokenLogprob { token_id: 7, token: "a".to_owned(), logprob: -0.5, top: vec![top] };
    let finish =
        v1::Finish { reason: "stop".to_owned(), stop_string: Some("END".to_owned()), stop_token_id: Some(0) };
    v1::GenerateResponse {
        request_id: "mine".to_owned(),
        sample_index: 2,
        text: "aé".to_owned(),
        token_ids: vec![7, 300],
        from_position: 9,
        logprobs: vec![logprob.clone()],
        finish: Some(finish),
        usage: Some(v1::Usage { prompt_tokens: 3, completion_tokens: 4, cached_tokens: 1 }),
        prompt_logprobs: vec![logprob],
        received: None,
        receipt: None,
        parts: Vec::new(),
    }
}

#[test]
fn what_release_0_1_says_keeps_its_meaning() {
    use v1::generate_request::Prompt;
    check("0.1/generate_request.text", &request(Prompt::Text("Hé".to_owned())));
    check("0.1/generate_request.token_ids", &request(Prompt::TokenIds(v1::TokenIds { ids: vec![1, 300] })));
    check("0.1/generate_request.chat", &request(Prompt::Chat(chat())));
    check("0.1/generate_response", &response());
    let model = v1::Model { id: "skein-7m".to_owned(), max_model_len: 256 };
    check("0.1/list_models_response", &v1::ListModelsResponse { models: vec![model] });
    let input = Some(v1::tokenize_request::Input::Chat(chat()));
    let tokenize = v1::TokenizeRequest { model: "m".to_owned(), input, add_special_tokens: Some(false) };
    check("0.1/tokenize_request", &tokenize);
    check("0.1/tokenize_response", &v1::TokenizeResponse { token_ids: vec![1, 300], max_model_len: 256 });
    check("0.1/detokenize_request", &v1::DetokenizeRequest { model: "m".to_owned(), token_ids: vec![300] });
    check("0.1/detokenize_response", &v1::DetokenizeResponse { text: "é".to_owned() });
}

#[test]
fn what_resumes_a_stream_keeps_its_meaning() {
    let received =
        v1::Received { sample_index: 2, tokens: 300, text_bytes: 1 << 33, finished: true, model_version: 0 };
    let mut asked = request(v1::generate_request::Prompt::Text("Hé".to_owned()));
    asked.resume_from = vec![received, v1::Received::default()];
    check("resume/generate_request.resumed", &asked);
    let receipt = Some(v1::Receipt { moves: 2, resume_exact: true });
    check(
        "resume/generate_response",
        &v1::GenerateResponse { received: Some(received), receipt, ..response() },
    );
}

#[test]
fn what_carries_tools_keeps_its_meaning() {
    let text = str::to_owned;
    let tool = v1::Tool { name: text("f"), description: text("d"), parameters: text("{}"), strict: true };
    let call = v1::ToolCall { id: text("c1"), name: text("f"), arguments: text("{}") };
    let message = v1::ChatMessage {
        role: text("tool"),
        content: text("r"),
        tool_calls: vec![call],
        tool_call_id: text("c1"),
        reasoning: text("so"),
    };
    let asked = v1::Chat {
        messages: vec![message],
        add_generation_prompt: None,
        tools: vec![tool],
        tool_choice: text("required"),
        parallel_tool_calls: Some(false),
        template_arguments: text("{\"a\":1}"),
    };
    check("tools/chat", &asked);
    let part = |part| v1::Part { part: Some(part) };
    use v1::part::Part;
    let parts = vec![
        part(Part::Content(text("a"))),
        part(Part::Reasoning(text("b"))),
        part(Part::Call(v1::CallBegin { index: 1, id: text("c1"), name: text("f") })),
        part(Part::Arguments(v1::CallArguments { index: 1, json: text("{}") })),
    ];
    check("tools/generate_response", &v1::GenerateResponse { parts, ..response() });
    let prompt = v1::generate_request::Prompt::Text(text("x"));
    check("tools/generate_request", &v1::GenerateRequest { json_schema: text("{}"), ..request(prompt) });
}
