//! Which of the model's prompts is put before texts: by its name (`prompt_name`, as at TEI), or by what the
//! texts are, in the words of Cohere, NVIDIA and Jina, where the model has a prompt of that meaning.

use skein_text::pooled_text::PooledText;

use super::object::Fields;
use crate::refusal::Refusal;

/// Most names of prompts that an error lists.
const MAX_TOLD: usize = 20;

/// Words for what a text is, and names of prompts of that meaning: sentence-transformers' and those of
/// EmbeddingGemma, E5, Jina and Nomic.
const MEANINGS: [(&[&str], &[&str]); 5] = [
    (
        &["query", "search_query", "retrieval.query", "question"],
        &["query", "Retrieval-query", "retrieval.query", "search_query"],
    ),
    (
        &["document", "passage", "search_document", "retrieval.passage", "retrieval.document"],
        &["document", "passage", "Retrieval-document", "retrieval.passage", "search_document"],
    ),
    (&["classification"], &["classification", "Classification"]),
    (&["clustering", "separation"], &["clustering", "Clustering", "separation"]),
    (&["text-matching", "similarity"], &["text-matching", "STS", "similarity"]),
];

/// Takes the fields, and returns the prompt, or nothing.
pub fn take(fields: &mut Fields, text: &PooledText) -> String {
    let name = fields.string("prompt_name");
    let of_meaning = ["input_type", "task"].map(|field| (field, fields.string(field)));
    if let Some(name) = name {
        let prompt = text.prompt(&name).ok_or_else(|| unknown(&name, text));
        return fields.value_of(prompt.map(str::to_owned));
    }
    for (field, word) in of_meaning {
        let Some(word) = word else { continue };
        return fields.value_of(by_meaning(field, &word, text).map(str::to_owned));
    }
    text.default_prompt().to_owned()
}

/// The prompt for texts that are what `word` says; the default if there is none.
pub fn of_meaning<'a>(word: &str, text: &'a PooledText) -> &'a str {
    let names = MEANINGS.iter().filter(|(words, _)| words.contains(&word)).flat_map(|(_, names)| *names);
    names.into_iter().find_map(|name| text.prompt(name)).unwrap_or_else(|| text.default_prompt())
}

/// The prompt of a model that has one for texts that are what `word` says. A model without any prompts takes
/// all texts as they are.
fn by_meaning<'a>(field: &'static str, word: &str, text: &'a PooledText) -> Result<&'a str, Refusal> {
    if let Some(prompt) = text.prompt(word) {
        return Ok(prompt);
    }
    if !MEANINGS.iter().any(|(words, _)| words.contains(&word)) {
        let words: Vec<&str> = MEANINGS.iter().map(|(words, _)| words[0]).collect();
        let shown: String = word.escape_default().take(40).collect();
        let message =
            format!("{field} must be one of {}, or a prompt of this model, got `{shown}`.", words.join(", "));
        return Err(Refusal::invalid(field, message));
    }
    Ok(of_meaning(word, text))
}

fn unknown(name: &str, text: &PooledText) -> Refusal {
    let known: Vec<String> = text.prompt_names().take(MAX_TOLD).map(|name| format!("`{name}`")).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let shown: String = name.escape_default().take(40).collect();
    let message = format!("prompt_name: this model has no prompt `{shown}`; it has {known}.");
    Refusal::invalid("prompt_name", message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(body: serde_json::Value, text: &PooledText) -> Result<String, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        let prompt = take(&mut fields, text);
        fields.finish(false).map(|_| prompt).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn prompts_are_named_or_found_by_their_meaning() {
        let text = PooledText::default()
            .with_prompts(&[("query", "Q: "), ("Retrieval-document", "D: "), ("own", "O: ")], Some("own"));
        for (body, expected) in [
            (json!({}), "O: "),
            (json!({"prompt_name": "query"}), "Q: "),
            (json!({"input_type": "search_query"}), "Q: "),
            (json!({"task": "retrieval.passage"}), "D: "),
            (json!({"input_type": "own"}), "O: "),
            (json!({"input_type": "clustering"}), "O: "),
            (json!({"prompt_name": "query", "input_type": "document"}), "Q: "),
        ] {
            assert_eq!(taken(body.clone(), &text), Ok(expected.to_owned()), "{body}");
        }
        let bare = PooledText::default();
        assert_eq!(taken(json!({"input_type": "query"}), &bare), Ok(String::new()));
        assert!(
            taken(json!({"prompt_name": "x"}), &bare).unwrap_err().contains("no prompt `x`; it has none")
        );
        assert!(
            taken(json!({"prompt_name": "x"}), &text)
                .unwrap_err()
                .contains("it has `query`, `Retrieval-document`")
        );
        assert!(
            taken(json!({"input_type": "poem"}), &text)
                .unwrap_err()
                .contains("input_type must be one of query")
        );
    }
}
