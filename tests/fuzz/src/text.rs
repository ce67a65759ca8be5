//! A model's text: tokenizer.json, chat templates, and the answers that models write.

use std::time::Duration;

use serde_json::{Map, Value, json};
use skein_text::TextRefused;
use skein_text::chat_template::ChatTemplate;
use skein_text::detokenizer::Detokenizer;
use skein_text::formats::Opening;
use skein_text::fuzzing::{plan, plans, split, tokenizer};
use skein_text::model_text::GenerationDefaults;
use skein_text::stop::StopMatcher;

use crate::input::{choice, cuts, join, parts};
use crate::target::Target;

pub fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "tokenizer",
            about: "tokenizer.json, then a text through it and back",
            run: tokenize,
            seeds: tokenizer_seeds,
            replays: 60,
        },
        Target {
            name: "template",
            about: "a chat template and the messages of a client",
            run: template,
            seeds: template_seeds,
            replays: 60,
        },
        Target {
            name: "formats",
            about: "an answer with reasoning and tool calls, in pieces",
            run: formats,
            seeds: format_seeds,
            replays: 1000,
        },
        Target {
            name: "stop",
            about: "stop strings in a text that comes in pieces",
            run: stop,
            seeds: stop_seeds,
            replays: 1000,
        },
        Target {
            name: "generation_config",
            about: "generation_config.json",
            run: generation,
            seeds: generation_seeds,
            replays: 1000,
        },
    ]
}

fn tokenize(data: &[u8]) {
    let parts = parts(data);
    let Some(tokenizer) = tokenizer(parts[0]) else { return };
    let text = String::from_utf8_lossy(parts.get(1).copied().unwrap_or(b"Hm \xc3\xa9."));
    let tokens = match tokenizer.encode(&text, true) {
        Ok(tokens) => tokens,
        Err(TextRefused::Internal) => panic!("a tokenizer of known steps fails on {text:?}"),
        Err(_) => return,
    };
    let _ = tokenizer.decode(&tokens, true);
    let (mut detokenizer, mut out) = (Detokenizer::new(tokenizer.bytes().clone(), false), String::new());
    for token in tokens {
        detokenizer.push(token, &mut out);
        let _ = tokenizer.spelling(token);
    }
    detokenizer.finish(&mut out);
}

fn tokenizer_seeds() -> Vec<Vec<u8>> {
    let kinds = [
        r#"{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"<0x0A>":4},"merges":[["a","b"]],"unk_token":null,"byte_fallback":true}"#,
        r#"{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0.0],["a",-1.0],["▁",-2.0],["ab",-1.5]],"byte_fallback":false}"#,
        r#"{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"\#\#","max_input_chars_per_word":100,"vocab":{"[UNK]":0,"a":1}}"#,
    ];
    let steps = [
        r#""normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"decoder":{"type":"ByteLevel"}"#,
        r#""normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"pre_tokenizer":null,"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]}"#,
        r#""normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}|\\s+(?!\\S)|."},"behavior":"Isolated","invert":false},{"type":"Digits","individual_digits":true}]},"decoder":null"#,
    ];
    let added = r#"[{"id":5,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]"#;
    let post = r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|end|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<|end|>":{"id":"<|end|>","ids":[5],"tokens":["<|end|>"]}}}"#;
    let mut seeds = Vec::new();
    for model in kinds {
        for steps in steps {
            let json = format!(
                r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":{added},{steps},"post_processor":{post},"model":{}}}"#,
                model.replace("\\#", "#")
            );
            seeds.push(join(&[json.as_bytes(), "ab <|end|>é".as_bytes()]));
        }
    }
    seeds
}

fn template(data: &[u8]) {
    let parts = parts(data);
    let Ok(source) = std::str::from_utf8(parts[0]) else { return };
    let own = vec![("bos_token".to_owned(), "<s>".to_owned())];
    let Ok(template) = ChatTemplate::compile(source, own, || Duration::from_secs(1_700_000_000)) else {
        return;
    };
    let messages = parts.get(1).and_then(|messages| serde_json::from_slice(messages).ok());
    let messages: Value = messages.unwrap_or_else(|| json!([{"role": "user", "content": "q"}]));
    let arguments =
        parts.get(2).and_then(|arguments| serde_json::from_slice::<Map<String, Value>>(arguments).ok());
    let _ = template.render(&messages, true, &arguments.unwrap_or_default());
}

fn template_seeds() -> Vec<Vec<u8>> {
    let golden = std::fs::read(skein_golden::path("chat_templates.json")).expect("a golden file");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "r", "tool_call_id": "c"}]);
    let tools =
        json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]});
    let mut sources = Vec::new();
    strings(&golden["templates"], &mut sources);
    sources.retain(|source| source.contains("{%") && source.len() < 8192);
    sources.truncate(24);
    let seed = |source: &String| join(&[source.clone(), messages.to_string(), tools.to_string()]);
    sources.iter().map(seed).collect()
}

fn strings(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::String(text) => out.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| strings(item, out)),
        Value::Object(fields) => fields.values().for_each(|item| strings(item, out)),
        _ => {}
    }
}

/// The first byte is the format, the second how the answer begins and is cut.
fn formats(data: &[u8]) {
    let Some((format, rest)) = choice(data) else { return };
    let Some((how, answer)) = choice(rest) else { return };
    let answer = String::from_utf8_lossy(answer);
    let opening = [Opening::Fresh, Opening::InReasoning, Opening::MidReasoning, Opening::Closed][how % 4];
    let plan = plan(format % plans(), opening, how & 4 != 0);
    let whole = split(&plan, [&*answer]);
    let by_char = answer.char_indices().map(|(at, c)| &answer[at..at + c.len_utf8()]);
    assert_eq!(whole, split(&plan, by_char), "by characters");
    let pieces = cuts(answer.len(), how as u64, |at| answer.is_char_boundary(at));
    assert_eq!(whole, split(&plan, pieces.into_iter().map(|piece| &answer[piece])), "in pieces");
}

fn format_seeds() -> Vec<Vec<u8>> {
    let golden = std::fs::read(skein_golden::path("formats.json")).expect("a golden file");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    let mut texts: Vec<String> = Vec::new();
    for case in golden
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|model| model["cases"].as_array().into_iter().flatten())
    {
        let text = case["text"].as_str().unwrap_or_default().replace("get_weather", "f");
        if !text.is_empty() && !texts.contains(&text) {
            texts.push(text);
        }
    }
    let formats = plans().min(256);
    let seed =
        |(at, text): (usize, &String)| [&[(at * 7 % formats) as u8, at as u8][..], text.as_bytes()].concat();
    texts.iter().enumerate().map(seed).collect()
}

fn stop(data: &[u8]) {
    let parts = parts(data);
    let texts: Vec<String> = parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    let Some((text, stops)) = texts.split_last() else { return };
    let stops: Vec<String> = stops.iter().filter(|stop| !stop.is_empty()).take(16).cloned().collect();
    let run = |pieces: &mut dyn Iterator<Item = &str>| {
        let (mut matcher, mut out) = (StopMatcher::new(&stops, false), String::new());
        for piece in pieces {
            if let Some(found) = matcher.push(piece, true, &mut out) {
                return (out, Some(found));
            }
        }
        matcher.finish(&mut out);
        (out, None)
    };
    let whole = run(&mut [&**text].into_iter());
    let by_char = run(&mut text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]));
    assert_eq!(whole, by_char);
    let first = stops.iter().filter_map(|stop| text.find(&**stop).map(|at| at + stop.len())).min();
    assert_eq!(whole.1.is_some(), first.is_some(), "{stops:?} in {text:?}");
}

fn stop_seeds() -> Vec<Vec<u8>> {
    [&["ab", "b", "xxabx"][..], &["é", "\n\n", "a\n\né"], &["aab", "aaaab"]].map(join).into()
}

fn generation(data: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<Value>(data) {
        let _ = GenerationDefaults::from_json(&value);
    }
    let _ = skein_node::python_json::without_non_finite(data);
    let _ = skein_node::python_json::with_named_non_finite(data);
}

fn generation_seeds() -> Vec<Vec<u8>> {
    let json = r#"{"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95,"repetition_penalty":1.05,"eos_token_id":[1,2],"min_p":NaN}"#;
    vec![json.as_bytes().to_vec(), json.replace("NaN", "0").into_bytes()]
}
