//! `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

use axum::Json;
use axum::extract::{Extension, Request, State};
use serde_json::{Value, json};
use skein_proto::TokenId;

use crate::api::fields::object::{Fields, wrong};
use crate::api::fields::unserved::take_unserved;
use crate::api::openai::chat::chat_prompt;
use crate::api::openai::error::OpenAiError;
use crate::app::{App, work_bytes};
use crate::refusal::Refusal;
use crate::request::Prompt;
use crate::request::tenant::Tenant;
use crate::validate::{most_to_tokenize, token_id};

/// `{prompt | messages, add_special_tokens, return_token_strs}` → `{tokens, count, max_model_len}`
pub async fn tokenize(
    State(app): State<App>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let mut fields = Fields::read(request, &app).await?;
    app.check_model(fields.string("model").as_deref(), &tenant)?;
    let limits = app.fleet.model_limits()?;
    let return_token_strs = fields.bool("return_token_strs");
    let prompt = match fields.take("prompt") {
        Some(Value::String(text)) => Prompt::Text(text),
        Some(other) => return Err(wrong("prompt", "a string", &other).into()),
        None => chat_prompt(&mut fields, &app.text).0,
    };
    let add_special_tokens = fields.optional_bool("add_special_tokens");
    take_unserved(&mut fields);
    fields.finish(app.config.refuse_unknown_fields)?;
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
    let mut fields = Fields::read(request, &app).await?;
    app.check_model(fields.string("model").as_deref(), &tenant)?;
    let tokens = fields.integers("tokens");
    fields.finish(app.config.refuse_unknown_fields)?;
    let tokens =
        tokens.ok_or_else(|| Refusal::invalid("tokens", "tokens is required: a list of token ids."))?;
    let vocab_size = app.text.tokenizer.bytes().vocab_size();
    let tokens: Result<Vec<TokenId>, Refusal> =
        tokens.into_iter().map(|token| token_id("tokens", token, vocab_size)).collect();
    let (tokens, text) = (tokens?, app.text.clone());
    let decoded = app.text_work(tokens.len() * 4, move || Ok(text.tokenizer.decode(&tokens, false)?)).await?;
    Ok(Json(json!({"prompt": decoded})))
}
