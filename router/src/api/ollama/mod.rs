//! Ollama's API, for tools written for it: `/api/chat`, `/api/generate`, `/api/embed`, `/api/tags`,
//! `/api/ps`, `/api/show` and `/api/version`. Chats and prompts become the same draft as those of the OpenAI
//! API; answers stream as JSON lines.

mod embed;
pub mod error;
mod generate;
mod input;
pub mod keep_alive;
pub mod lines;
mod messages;
pub mod models;
mod options;

use axum::extract::Request;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde_json::json;

use self::error::OllamaError;
use self::lines::Kind;
use super::http::face;
use super::openapi::operation::{self as describe, LINES, Part, REFUSALS, UNRESUMED};
use super::openapi::room::Room;
use crate::request::tenant::Tenant;

/// Version of Ollama's API implemented here. Clients compare it with the version that they require.
pub const API_VERSION: &str = "0.9.0";

static PART: Part = Part { name: "Ollama", about: "Ollama's API.", errors: "MessageError" };

/// The routes below `/api`.
pub fn routes() -> Room {
    let chat = describe::post("ollamaChat", "Answers a conversation, by default as lines of JSON.")
        .with(&UNRESUMED)
        .reads("OllamaChatRequest", |fields, app| drop(input::parse(fields, Kind::Chat, app, "")))
        .like(r#"{"messages": [{"role": "user", "content": "Say hello."}], "options": {"num_predict": 32}}"#)
        .gives("OllamaChat")
        .streams(LINES, "OllamaLine")
        .refuses(&REFUSALS);
    let generate = describe::post("ollamaGenerate", "Answers a prompt, by default as lines of JSON.")
        .with(&UNRESUMED)
        .reads("OllamaGenerateRequest", |fields, app| drop(input::parse(fields, Kind::Generate, app, "")))
        .like(r#"{"prompt": "Once upon a time", "options": {"num_predict": 32}}"#)
        .gives("OllamaGenerated")
        .streams(LINES, "OllamaLine")
        .refuses(&REFUSALS);
    let embed = describe::post("ollamaEmbed", "Vectors of texts.")
        .with(&UNRESUMED)
        .reads("OllamaEmbedRequest", |fields, app| {
            drop(embed::parse(fields, embed::Path::Embed, app, &Tenant::default(), ""));
        })
        .like(r#"{"input": ["Say hello.", "Say goodbye."]}"#)
        .gives("OllamaEmbeddings")
        .refuses(&REFUSALS);
    let embeddings =
        describe::post("ollamaEmbeddings", "The vector of one text; the older form of `/api/embed`.")
            .with(&UNRESUMED)
            .reads("OllamaEmbeddingsRequest", |fields, app| {
                drop(embed::parse(fields, embed::Path::Embeddings, app, &Tenant::default(), ""));
            })
            .like(r#"{"prompt": "Say hello."}"#)
            .gives("OllamaEmbedding")
            .refuses(&REFUSALS);
    let show = describe::post("ollamaShow", "What is known of a model.")
        .reads("OllamaShowRequest", |mut fields, _| drop(models::asked(&mut fields)))
        .like(r#"{}"#)
        .gives("OllamaModel")
        .refuses(&[400, 404, 413, 415]);
    let version = describe::get("ollamaVersion", "The version of Ollama's API.").gives("Version");
    Room::new(&PART)
        .route("/api/chat", post(generate::chat), [chat])
        .route("/api/generate", post(generate::generate), [generate])
        .route("/api/embed", post(embed::embed), [embed])
        .route("/api/embeddings", post(embed::embeddings), [embeddings])
        .route(
            "/api/tags",
            get(models::tags),
            [describe::get("ollamaTags", "The models.").gives("OllamaModels")],
        )
        .route(
            "/api/ps",
            get(models::ps),
            [describe::get("ollamaPs", "The models in memory.").gives("OllamaModels")],
        )
        .route("/api/show", post(models::show), [show])
        .route("/api/version", get(async || Json(json!({"version": API_VERSION}))), [version])
}

/// The other paths below `/api`.
pub fn unknown() -> Router {
    let refuse = any(async |request: Request| face::not_found(&request, OllamaError::refuse));
    Router::new().route("/api/", refuse.clone()).route("/api/{*path}", refuse)
}
