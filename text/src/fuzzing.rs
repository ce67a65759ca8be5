//! Doors for `tests/fuzz` to what this crate keeps to itself.

use std::sync::Arc;

use serde_json::json;

use crate::files::TextFiles;
use crate::formats::table::{FORMATS, HARMONY_REASONING, REASONING};
use crate::formats::tools::Function;
use crate::formats::{Body, Formats, Opening, Piece, Plan, Splitter};
use crate::named_templates::NamedTemplates;
use crate::tokenizer::Tokenizer;

/// Number of plans in [`plan`].
pub fn plans() -> usize {
    (FORMATS.len() + 1) * (REASONING.len() + 2)
}

/// A format of calls with a format of reasoning, for an answer that begins at `opening`.
pub fn plan(number: usize, opening: Opening, held: bool) -> Arc<Plan> {
    let (calls, reasoning) = (number % (FORMATS.len() + 1), number / (FORMATS.len() + 1));
    // Some formats have no name of their own.
    let calls = FORMATS.get(calls);
    let named = Some(HARMONY_REASONING[0]).filter(|_| reasoning == REASONING.len());
    let formats = Formats { calls, ..Formats::default() }.with(None, named).expect("the table's own name");
    let harmony = formats.harmony || calls.is_some_and(|format| matches!(format.body, Body::Harmony));
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]});
    let functions = [("f", Some(schema)), ("now", None)];
    let functions = functions.map(|(name, schema)| Function::new(name.to_owned(), schema, false));
    Arc::new(Plan {
        calls: formats.calls,
        reasoning: REASONING.get(reasoning),
        opening,
        harmony,
        token_markers: Arc::new([]),
        held,
        functions: Arc::new(functions),
    })
}

/// The pieces of `parts` of an answer, adjoining ones of a kind joined.
pub fn split<'a>(plan: &Arc<Plan>, parts: impl IntoIterator<Item = &'a str>) -> Vec<Piece> {
    let mut splitter = Splitter::new(plan.clone());
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| splitter.push(part, &[])).collect();
    pieces.extend(splitter.finish());
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Content(text)), Piece::Content(more))
            | (Some(Piece::Reasoning(text)), Piece::Reasoning(more)) => text.push_str(&more),
            (Some(Piece::Arguments { index, json }), Piece::Arguments { index: same, json: more })
                if *index == same =>
            {
                json.push_str(&more);
            }
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

/// The tokenizer of a tokenizer.json, unless it is refused or must first be tried in a process of its own.
pub fn tokenizer(json: &[u8]) -> Option<Tokenizer> {
    let files = TextFiles::new(json.to_vec(), json!({}), NamedTemplates::default()).ok()?;
    if files.needs_trial() {
        return None;
    }
    Tokenizer::new(&files.parsed, json.len()).ok()
}
