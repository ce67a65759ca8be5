//! Loading and unloading adapters at run time, by vLLM's routes. They exist only with
//! `--allow-runtime-lora-updating` and need the admin key: who can call them makes workers read directories.

use axum::extract::{Request, State};

use crate::api::fields::object::Fields;
use crate::api::openai::error::OpenAiError;
use crate::app::App;
use crate::refusal::Refusal;

/// Longest name of an adapter and longest path, bytes.
const MAX_NAME_BYTES: usize = 256;
const MAX_PATH_BYTES: usize = 4096;

/// `POST /v1/load_lora_adapter`: serves a directory under a new name.
pub async fn load(State(app): State<App>, request: Request) -> Result<String, OpenAiError> {
    let (name, path) = loaded(Fields::read(request, &app).await?, &app)?;
    if app.text.served_names.iter().any(|served| **served == *name) {
        let message = format!("lora_name `{name}` is the model's name; choose another.");
        return Err(Refusal::invalid("lora_name", message).into());
    }
    app.adapters.load(&name, &path).await?;
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

/// `POST /v1/unload_lora_adapter`. Streams of the adapter go on.
pub async fn unload(State(app): State<App>, request: Request) -> Result<String, OpenAiError> {
    let name = unloaded(Fields::read(request, &app).await?, &app)?;
    app.adapters.unload(&name).await?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}

/// Reads the name and the path of an adapter to load.
pub fn loaded(mut fields: Fields, app: &App) -> Result<(String, String), Refusal> {
    let name = text(&mut fields, "lora_name", MAX_NAME_BYTES);
    let path = text(&mut fields, "lora_path", MAX_PATH_BYTES);
    // vLLM's; a name that is taken by another adapter is refused.
    let _ = fields.optional_bool("load_inplace");
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok((name, path))
}

/// Reads the name of an adapter to unload.
pub fn unloaded(mut fields: Fields, app: &App) -> Result<String, Refusal> {
    let name = text(&mut fields, "lora_name", MAX_NAME_BYTES);
    // vLLM's number of the adapter inside one engine.
    let _ = fields.i64("lora_int_id");
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok(name)
}

fn text(fields: &mut Fields, name: &'static str, most: usize) -> String {
    let given = fields.string(name).unwrap_or_default();
    if !(1..=most).contains(&given.len()) && !fields.has_fault(name) {
        let got = given.len();
        let message = format!("{name} is required, a string of 1 to {most} bytes, got {got} bytes.");
        fields.note(Refusal::invalid(name, message));
    }
    given
}
