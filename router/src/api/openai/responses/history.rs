//! The items before a request's own: those of the answer that it continues, and those that it refers to by
//! their ids.
//!
//! The id of an item contains that of its answer and its place there, so no index of items is needed:
//! `msg_ID_2` is the third item of the output of `resp_ID`, `msg_ID_i0` the first one of its input.

use std::collections::HashMap;

use serde_json::{Value, json};
use skein_state::Turn;

use super::ids::PREFIX;
use crate::refusal::Refusal;
use crate::stored::{StoredResponses, shortened};

/// Most bytes of the items that a request refers to, as JSON: those of the longest body.
const MAX_REFERRED_BYTES: usize = 8 << 20;
/// Most bytes of the turns that they are in.
const MAX_LOADED_BYTES: usize = 32 << 20;
/// Statuses of an answer that is still to be made.
const UNFINISHED: [&str; 2] = ["queued", "in_progress"];

/// Whether the answer is still to be made.
pub fn is_unfinished(answer: &Value) -> bool {
    answer["status"].as_str().is_some_and(|status| UNFINISHED.contains(&status))
}

/// All items up to the answer `previous` of `owner`: input and output of each turn, the first one first.
///
/// # Errors
/// If one of the turns is not stored, or the answer is still being made.
pub async fn up_to(
    previous: Option<&str>,
    stored: &StoredResponses,
    owner: &str,
) -> Result<Vec<Value>, Refusal> {
    let Some(previous) = previous else { return Ok(Vec::new()) };
    let mut items = Vec::new();
    for turn in stored.store().turns_up_to(owner, previous).await? {
        let answer = read(&turn.answer)?;
        if is_unfinished(&answer) {
            let id = shortened(&turn.id);
            let message = format!(
                "previous_response_id: response '{id}' is still being made; wait until it has ended."
            );
            return Err(Refusal::invalid("previous_response_id", message));
        }
        items.extend(list(read(&turn.input)?));
        items.extend(list(answer["output"].clone()));
    }
    Ok(items)
}

/// Replaces items that refer to stored ones.
///
/// # Errors
/// If there is no such item, or all of them have over [`MAX_REFERRED_BYTES`]: a reference is short, and what
/// it stands for may be long.
pub async fn resolve(items: &mut [Value], stored: Option<(&StoredResponses, &str)>) -> Result<(), Refusal> {
    let mut turns: HashMap<String, Read> = HashMap::new();
    let (mut loaded, mut referred) = (0, 0);
    let too_long = || {
        let message = format!(
            "input: the items that it refers to have over {MAX_REFERRED_BYTES} bytes; refer to fewer."
        );
        Refusal::invalid("input", message)
    };
    for (at, item) in items.iter_mut().enumerate() {
        let Some(id) = reference(item, at)?.map(str::to_owned) else { continue };
        let unknown = || {
            let id = shortened(&id);
            let message = format!("input[{at}]: there is no stored item '{id}'; send the item itself.");
            Refusal::invalid("input", message)
        };
        let (Some((answer, place)), Some((stored, owner))) = (place_of(&id), stored) else {
            return Err(unknown());
        };
        if !turns.contains_key(&answer) {
            let turn = stored.store().turn(owner, &answer).await?.ok_or_else(unknown)?;
            loaded += turn.input.len() + turn.answer.len();
            if loaded > MAX_LOADED_BYTES {
                return Err(too_long());
            }
            turns.insert(answer.clone(), Read::of(&turn)?);
        }
        let turn = turns.get(&answer).ok_or_else(unknown)?;
        let (found, bytes) = match place {
            Place::Input(at) => turn.input.get(at),
            Place::Output(at) => turn.output.get(at),
        }
        .ok_or_else(unknown)?;
        referred += bytes;
        if referred > MAX_REFERRED_BYTES {
            return Err(too_long());
        }
        item.clone_from(found);
    }
    Ok(())
}

/// Items of a turn, each with its bytes as JSON.
struct Read {
    input: Vec<(Value, usize)>,
    output: Vec<(Value, usize)>,
}

impl Read {
    fn of(turn: &Turn) -> Result<Self, Refusal> {
        let measured = |items: Vec<Value>| {
            let measured = |item: Value| {
                let bytes = item.to_string().len();
                (item, bytes)
            };
            items.into_iter().map(measured).collect()
        };
        Ok(Self { input: measured(list(read(&turn.input)?)), output: measured(output(turn)?) })
    }
}

/// The id that the item at `at` refers to, if it does.
///
/// # Errors
/// If it refers to none.
fn reference(item: &Value, at: usize) -> Result<Option<&str>, Refusal> {
    let id = item["id"].as_str();
    match item["type"].as_str() {
        Some("item_reference") => id.map(Some).ok_or_else(|| {
            Refusal::invalid("input", format!("input[{at}].id is required: the id of a stored item."))
        }),
        Some(_) => Ok(None),
        None => Ok(id.filter(|_| item.as_object().is_some_and(|item| item.len() == 1))),
    }
}

/// Where an item is.
#[derive(Debug, PartialEq)]
enum Place {
    Input(usize),
    Output(usize),
}

/// Id of the answer of the item `id`, and its place there.
fn place_of(id: &str) -> Option<(String, Place)> {
    let (_, rest) = id.split_once('_')?;
    let (answer, at) = rest.rsplit_once('_')?;
    let place = match at.strip_prefix('i') {
        Some(at) => Place::Input(at.parse().ok()?),
        None => Place::Output(at.parse().ok()?),
    };
    Some((format!("{PREFIX}{answer}"), place))
}

/// What `turn` was asked, as the API lists it: messages in their long form, items with ids.
///
/// # Errors
/// If it cannot be read.
pub fn listed_input(turn: &Turn) -> Result<Vec<Value>, Refusal> {
    let items = list(read(&turn.input)?).into_iter().enumerate();
    Ok(items.map(|(at, item)| listed(item, turn.id.trim_start_matches(PREFIX), at)).collect())
}

/// The output of `turn`.
///
/// # Errors
/// If it cannot be read.
pub fn output(turn: &Turn) -> Result<Vec<Value>, Refusal> {
    Ok(list(read(&turn.answer)?["output"].take()))
}

fn listed(mut item: Value, answer: &str, at: usize) -> Value {
    let kind = item["type"].as_str().unwrap_or("message").to_owned();
    let prefix = match kind.as_str() {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "custom_tool_call" => "ctc",
        _ => "item",
    };
    if kind == "message" {
        let part = if item["role"] == "assistant" { "output_text" } else { "input_text" };
        if let Value::String(text) = &item["content"] {
            item["content"] = json!([{"type": part, "text": text}]);
        }
    }
    let Value::Object(mut members) = item else { return item };
    if !members.get("id").is_some_and(Value::is_string) {
        members.insert("id".to_owned(), format!("{prefix}_{answer}_i{at}").into());
    }
    members.insert("type".to_owned(), kind.into());
    members.entry("status").or_insert_with(|| "completed".into());
    members.into()
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// Parses what this router has stored.
///
/// # Errors
/// If it is no JSON.
pub fn read(text: &str) -> Result<Value, Refusal> {
    serde_json::from_str(text).map_err(|error| {
        tracing::error!(%error, "a stored response is damaged");
        Refusal::Internal
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_where_its_item_is() {
        let place = |id| place_of(id).map(|(answer, place)| (answer, format!("{place:?}")));
        let at = |answer: &str, place: &str| Some((answer.to_owned(), place.to_owned()));
        assert_eq!(place("msg_0193-ab_2"), at("resp_0193-ab", "Output(2)"));
        assert_eq!(place("fco_0193-ab_i10"), at("resp_0193-ab", "Input(10)"));
        for id in ["", "msg", "msg_1", "msg_a_b", "msg_a_-1", "msg_a_i", "msg_a_99999999999999999999999"] {
            assert_eq!(place(id), None, "{id}");
        }
    }

    #[test]
    fn input_is_listed_in_its_long_form() {
        let turn = |input: Value| Turn {
            id: "resp_x".to_owned(),
            previous: None,
            input: input.to_string(),
            answer: "{}".to_owned(),
        };
        let items = listed_input(&turn(json!([
            {"role": "user", "content": "hi"},
            {"type": "message", "id": "mine", "role": "assistant", "content": "so"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            7,
        ])));
        assert_eq!(
            Value::from(items.unwrap()),
            json!([
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}], "id": "msg_x_i0", "type": "message", "status": "completed"},
                {"type": "message", "id": "mine", "role": "assistant", "content": [{"type": "output_text", "text": "so"}], "status": "completed"},
                {"type": "function_call_output", "call_id": "c", "output": "r", "id": "fco_x_i2", "status": "completed"},
                7,
            ])
        );
    }
}
