//! Prompts as text from a file: ShareGPT's JSON, or JSON lines with one prompt each (vLLM's `custom`). The
//! server tokenizes them, because only it has its tokenizer.

use std::path::Path;

use serde::Deserialize;

use super::client::{Server, ServerError};
use super::workload::{DEFAULT_OUTPUT_LEN, Session, Turn};

/// Largest file, in bytes, so that a wrong file is refused instead of loaded.
const MAX_FILE_BYTES: u64 = 4 << 30;
/// vLLM's filter of ShareGPT: shorter prompts and answers are not representative of serving.
const LEAST_TOKENS: usize = 4;

/// A prompt, with its recorded answer if the file has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Text of the prompt.
    pub prompt: String,
    /// Recorded answer; its length is the number of output tokens to request.
    pub answer: Option<String>,
    /// Number of output tokens specified in the file.
    pub output_tokens: Option<u32>,
}

/// Why a file yields no prompts.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file could not be read.
    #[error("cannot read the prompts of {path}: {reason}")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// The I/O error, the exceeded limit or the JSON error.
        reason: String,
    },
    /// No entry is usable.
    #[error("{path} has no usable prompt; {expected}")]
    Empty {
        /// Path of the file.
        path: String,
        /// The expected format.
        expected: &'static str,
    },
    /// The server cannot tokenize.
    #[error(transparent)]
    Server(#[from] ServerError),
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(alias = "conversation", default)]
    conversations: Vec<Message>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(alias = "content")]
    value: String,
}

#[derive(Deserialize)]
struct Line {
    prompt: String,
    #[serde(default)]
    output_tokens: Option<u32>,
}

/// The first two messages of each conversation in a ShareGPT file: a list of `{"conversations": [{"from",
/// "value"}, ...]}`.
///
/// # Errors
/// If the file cannot be read or has no conversation with two messages.
pub fn read_sharegpt(path: &Path) -> Result<Vec<Text>, TextError> {
    let conversations: Vec<Conversation> =
        serde_json::from_str(&read(path)?).map_err(|error| unreadable(path, &error))?;
    let one = |conversation: Conversation| {
        let mut messages = conversation.conversations.into_iter();
        let (prompt, answer) = (messages.next()?.value, messages.next()?.value);
        Some(Text { prompt, answer: Some(answer), output_tokens: None })
    };
    let expected =
        "expected a list of objects with `conversations`, each of at least two messages with `value`";
    not_empty(path, conversations.into_iter().filter_map(one).collect(), expected)
}

/// Prompts of a file with JSON lines `{"prompt": …, "output_tokens": …}`; the second field is optional.
///
/// # Errors
/// If the file cannot be read, or a line is not such an object.
pub fn read_lines(path: &Path) -> Result<Vec<Text>, TextError> {
    let text = read(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let one = |(index, line): (usize, &str)| {
        let Line { prompt, output_tokens } = serde_json::from_str(line)
            .map_err(|error| unreadable(path, &format!("line {}: {error}", index + 1)))?;
        Ok(Text { prompt, answer: None, output_tokens })
    };
    let texts: Result<_, TextError> = lines.map(one).collect();
    not_empty(path, texts?, "expected lines such as {\"prompt\": \"Hello\"}")
}

fn read(path: &Path) -> Result<String, TextError> {
    let size = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?.len();
    if size > MAX_FILE_BYTES {
        return Err(unreadable(path, &format!("{size} bytes is over {MAX_FILE_BYTES}")));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> TextError {
    TextError::Unreadable { path: path.display().to_string(), reason: reason.to_string() }
}

fn not_empty(path: &Path, texts: Vec<Text>, expected: &'static str) -> Result<Vec<Text>, TextError> {
    if texts.is_empty() {
        return Err(TextError::Empty { path: path.display().to_string(), expected });
    }
    Ok(texts)
}

/// Up to `count` single-turn sessions from `texts`. The output length is the answer's, the file's, or
/// `output_tokens`, within `context` tokens in total. Entries that are too short or too long are skipped, as
/// in vLLM.
///
/// # Errors
/// If the server cannot tokenize, or no entry fits.
pub async fn sessions(
    server: &Server,
    path: &Path,
    texts: &[Text],
    count: usize,
    output_tokens: Option<u32>,
    context: u32,
) -> Result<Vec<Session>, TextError> {
    let mut sessions = Vec::with_capacity(count.min(texts.len()));
    for text in texts {
        if sessions.len() == count {
            break;
        }
        let tokens = server.tokenize(&text.prompt).await?;
        let answer = match (output_tokens, &text.answer) {
            (None, Some(answer)) => Some(server.tokenize(answer).await?.len()),
            _ => None,
        };
        let output =
            answer.unwrap_or(output_tokens.or(text.output_tokens).unwrap_or(DEFAULT_OUTPUT_LEN) as usize);
        let too_short =
            tokens.is_empty() || answer.is_some_and(|answer| tokens.len().min(answer) < LEAST_TOKENS);
        if too_short || tokens.len() + output > context as usize {
            continue;
        }
        sessions.push(Session { at: None, turns: vec![Turn { tokens, output_tokens: output as u32 }] });
    }
    if sessions.is_empty() {
        let expected = "no entry fits the model's context, or all are shorter than four tokens";
        return Err(TextError::Empty { path: path.display().to_string(), expected });
    }
    Ok(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(content: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), content).expect("it is written");
        file
    }

    #[test]
    fn sharegpt_gives_the_first_exchange_of_each_conversation() {
        let file = written(
            r#"[{"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"},
                 {"from": "human", "value": "More"}]}, {"id": "b", "conversations": [{"from": "human", "value": "x"}]}]"#,
        );
        let texts = read_sharegpt(file.path()).expect("one conversation");
        assert_eq!(texts, [Text { prompt: "Hi".into(), answer: Some("Hello".into()), output_tokens: None }]);
        let error = read_sharegpt(written("[{}]").path()).expect_err("no conversation").to_string();
        assert!(error.contains("no usable prompt"), "{error}");
        assert!(read_sharegpt(written("{").path()).is_err());
    }

    #[test]
    fn lines_give_a_prompt_each_and_a_wrong_one_is_named() {
        let file = written("{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\", \"output_tokens\": 7}\n");
        let texts = read_lines(file.path()).expect("two lines");
        assert_eq!(texts.iter().map(|text| text.output_tokens).collect::<Vec<_>>(), [None, Some(7)]);
        let error = read_lines(written("{\"prompt\": \"a\"}\n{}").path()).expect_err("no prompt").to_string();
        assert!(error.contains("line 2") && error.contains("prompt"), "{error}");
    }
}
