//! Continues the last message: the prompt ends with its text. As in transformers, a tag behind the text shows
//! where the template puts its end, so that blanks there are kept, and empty text can be continued.

use serde_json::Value;

use super::lost_messages::Render;
use super::messages::texts_of;
use crate::refused::TextRefused;

/// The tag. `mark` occurs nowhere in the messages, so the tag does not either. The blank at its end is lost
/// if the template trims the message.
fn tag(mark: char) -> String {
    format!("{mark}continued{mark} ")
}

/// `messages` with the tag behind the last one's text.
pub fn tagged(mut messages: Value, mark: char) -> Value {
    let content = messages.as_array_mut().and_then(|messages| messages.last_mut()?.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.last_mut().and_then(|part| part.get_mut("text")),
        content => content,
    };
    if let Some(Value::String(text)) = text {
        text.push_str(&tag(mark));
    }
    messages
}

/// Ends `rendered`, the rendering of the tagged `messages`, behind the last message's text.
///
/// # Errors
/// If the template leaves out some of that text.
pub fn cut(mut rendered: String, messages: &Value, mark: char) -> Result<String, TextRefused> {
    let (tag, last) = (tag(mark), messages.as_array().and_then(|messages| messages.last()));
    let text = last.and_then(|message| texts_of(&message["content"]).pop()).unwrap_or_default();
    let is_whole = rendered.contains(text.trim());
    let Some(end) = rendered.rfind(tag.trim_end()).filter(|_| is_whole) else {
        let message = "continue_final_message: the chat template does not end with the last message's text.";
        return Err(TextRefused::invalid("continue_final_message", message));
    };
    let is_trimmed = !rendered[end..].starts_with(&tag);
    rendered.truncate(end);
    if is_trimmed {
        rendered.truncate(rendered.trim_end().len());
    }
    // A template may show the text more than once.
    Ok(rendered.replace(&tag, "").replace(tag.trim_end(), ""))
}

/// The last message's part of `prompt`: what the rendering of the messages before it has not.
pub fn last_turn<'a>(prompt: &'a str, messages: &Value, render: &Render<'_>) -> &'a str {
    let earlier = messages.as_array().and_then(|messages| messages.split_last()).map(|(_, earlier)| earlier);
    let earlier = earlier.filter(|earlier| !earlier.is_empty());
    let before = earlier.and_then(|earlier| render(&earlier.to_vec().into()).ok()).unwrap_or_default();
    let same = prompt.chars().zip(before.chars()).take_while(|(ours, other)| ours == other);
    &prompt[same.map(|(c, _)| c.len_utf8()).sum()..]
}
