//! `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

use axum::Json;
use axum::extract::{Extension, Request, State};
use serde_json::{Value, json};
use skein_proto::TokenId;

use crate::api::fields::listing::Kind;
use crate::api::fields::object::{Fields, wrong};
use crate::api::fields::unserved::take_unserved;
use crate::api::openai::chat::chat_prompt;
use crate::api::openai::error::OpenAiError;
use crate::app::{App, work_bytes};
use crate::refusal::Refusal;
use crate::request::Prompt;
use crate::request::tenant::Tenant;
use crate::validate::{most_to_tokenize, token_id};

/// A text, or a conversation, to tokenize.
pub struct ToTokenize {
    model: Option<String>,
    prompt: Prompt,
    add_special_tokens: Option<bool>,
    return_token_strs: bool,
}

/// Reads a body of `/tokenize`.
pub fn to_tokenize(mut fields: Fields, app: &App) -> Result<ToTokenize, Refusal> {
    let model = fields.string("model");
    let return_token_strs = fields.bool("return_token_strs");
    let prompt = match fields.take("prompt", Kind::Text) {
        Some(Value::String(text)) => Prompt::Text(text),
        Some(other) => return Err(wrong("prompt", "a string", &other)),
        None => chat_prompt(&mut fields, &app.text).0,
    };
    let add_special_tokens = fields.optional_bool("add_special_tokens");
    take_unserved(&mut fields);
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok(ToTokenize { model, prompt, add_special_tokens, return_token_strs })
}

/// Reads a body of `/detokenize`: the model and the tokens.
pub fn to_detokenize(mut fields: Fields, app: &App) -> Result<(Option<String>, Vec<i64>), Refusal> {
    let model = fields.string("model");
    let tokens = fields.integers("tokens");
    if tokens.is_none() && !fields.has_fault("tokens") {
        fields.note(Refusal::invalid("tokens", "tokens is required: a list of token ids."));
    }
    fields.finish(app.config.refuse_unknown_fields)?;
    Ok((model, tokens.unwrap_or_default()))
}

/// `{prompt | messages, add_special_tokens, return_token_strs}` → `{tokens, count, max_model_len}`
pub async fn tokenize(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let fields = Fields::read(request, &app).await?;
    let ToTokenize { model, prompt, add_special_tokens, return_token_strs } = to_tokenize(fields, &app)?;
    app.check_model(model.as_deref(), &tenant)?;
    let limits = app.fleet.model_limits()?;
    let (text, most) = (app.text.clone(), most_to_tokenize(&limits));
    let tokens = app
        .text_work(work_bytes(&prompt), move || match (&prompt, prompt.as_chat()) {
            (Prompt::Text(prompt), _) => {
                Ok(text.encode_text(prompt, add_special_tokens.unwrap_or(true), most)?)
            }
            (_, Some(chat)) => Ok(text.encode_chat(&chat, most)?),
            _ => Err(Refusal::Internal),
        })
        .await
        .map_err(|refusal| refusal.beyond(limits.max_model_len))?;
    let strings: Option<Vec<_>> =
        return_token_strs.then(|| tokens.iter().map(|token| app.text.tokenizer.spelling(*token)).collect());
    Ok(Json(json!({
        "count": tokens.len(), "max_model_len": limits.max_model_len, "tokens": tokens, "token_strs": strings,
    })))
}

/// `{tokens}` → `{prompt}`
pub async fn detokenize(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let (model, tokens) = to_detokenize(Fields::read(request, &app).await?, &app)?;
    app.check_model(model.as_deref(), &tenant)?;
    let vocab_size = app.text.tokenizer.bytes().vocab_size();
    let tokens: Result<Vec<TokenId>, Refusal> =
        tokens.into_iter().map(|token| token_id("tokens", token, vocab_size)).collect();
    let (tokens, text) = (tokens?, app.text.clone());
    let decoded = app.text_work(tokens.len() * 4, move || Ok(text.tokenizer.decode(&tokens, false)?)).await?;
    Ok(Json(json!({"prompt": decoded})))
}
