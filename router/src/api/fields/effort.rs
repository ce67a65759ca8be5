//! The requested amount of reasoning, which only some chat templates read.

use skein_text::model_text::ModelText;

use super::object::Fields;

/// `effort` if the model's chat template reads it. Otherwise the field `name` is listed as ignored: clients
/// send it to every model.
pub fn readable(fields: &mut Fields, text: &ModelText, name: &str, effort: Option<String>) -> Option<String> {
    let effort = effort?;
    let reads = text.chat_template.as_ref().is_some_and(|template| template.reads("reasoning_effort"));
    if reads || effort == "none" {
        return Some(effort);
    }
    fields.leave(format!("{name}={effort}"));
    None
}
