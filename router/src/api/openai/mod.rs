//! OpenAI's API: chat, completions, responses, models, files and batches.

pub(crate) mod batches;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub mod error;
pub(crate) mod files;
mod metadata;
pub(crate) mod models;
mod page;
mod part;
pub(crate) mod responses;

use axum::routing::{get, post};
use http::HeaderMap;

use self::part::PART;
use super::openapi::operation::{self as describe, EVENTS, GENERATION, REFUSALS, UNRESUMED};
use super::openapi::room::Room;
use crate::api::fields::pooled;
use crate::config::RouterConfig;

/// Refusals of files and batches.
const OF_FILES: [u16; 3] = [400, 404, 500];
/// The same where something is stored.
const OF_STORING: [u16; 6] = [400, 404, 413, 415, 500, 507];

/// All routes of the API.
pub fn routes(config: &RouterConfig) -> Room {
    generation()
        .route(
            "/v1/responses",
            post(responses::create),
            [describe::post("createResponse", "An answer in OpenAI's newer form.")
                .with(&UNRESUMED)
                .reads("ResponseRequest", |fields, app| {
                    drop(responses::drafts(fields, &HeaderMap::new(), "", app));
                })
                .like(r#"{"input": "Say hello.", "max_output_tokens": 32}"#)
                .gives("Response")
                .streams(EVENTS, "ResponsesEvent")
                .refuses(&REFUSALS)
                .refuses(&[507])],
        )
        .merge(stored(config))
        .merge(files())
        .merge(jobs())
}

/// Routes of stored responses, which concern no model.
pub fn stored<S: Clone + Send + Sync + 'static>(config: &RouterConfig) -> Room<S> {
    responses::kept::routes(config.responses.clone())
}

fn files() -> Room {
    Room::new(&PART)
        .route(
            "/v1/files",
            get(files::list).post(files::upload),
            [
                describe::get("listFiles", "The caller's files.")
                    .with(&["Limit", "After", "Order", "Purpose"])
                    .gives("FileList")
                    .refuses(&OF_FILES),
                describe::post("uploadFile", "Uploads a file of requests.")
                    .takes("multipart/form-data", "FileForm")
                    .gives("File")
                    .refuses(&OF_STORING),
            ],
        )
        .route(
            "/v1/files/{id}",
            get(files::retrieve).delete(files::delete),
            [
                describe::get("getFile", "What is known of a file.").gives("File").refuses(&OF_FILES),
                describe::delete("deleteFile", "Deletes a file.").gives("DeletedFile").refuses(&OF_FILES),
            ],
        )
        .route(
            "/v1/files/{id}/content",
            get(files::content),
            [describe::get("getFileContent", "A file's lines.")
                .answers(200, "application/jsonl", None)
                .refuses(&OF_FILES)],
        )
}

fn jobs() -> Room {
    Room::new(&PART)
        .route(
            "/v1/batches",
            get(batches::list).post(batches::create),
            [
                describe::get("listBatches", "The caller's batches.")
                    .with(&["Limit", "After", "Order"])
                    .gives("BatchList")
                    .refuses(&OF_FILES),
                describe::post("createBatch", "Runs the requests of a file.")
                    .reads("BatchRequest", |fields, app| drop(batches::new_job(fields, app))).like(r#"{"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}"#)
                    .gives("Batch")
                    .refuses(&OF_STORING),
            ],
        )
        .route(
            "/v1/batches/{id}",
            get(batches::retrieve),
            [describe::get("getBatch", "A batch.").gives("Batch").refuses(&OF_FILES)],
        )
        .route(
            "/v1/batches/{id}/cancel",
            post(batches::cancel),
            [describe::post("cancelBatch", "Ends a batch.").gives("Batch").refuses(&OF_FILES)],
        )
}

/// Routes that a batch may call.
pub fn generation() -> Room {
    Room::new(&PART)
        .route(
            "/v1/completions",
            post(completions::create),
            [describe::post("createCompletion", "Continues one prompt or several.")
                .with(&GENERATION)
                .reads("CompletionRequest", |fields, app| {
                    drop(completions::drafts(fields, &HeaderMap::new(), "", app));
                }).like(r#"{"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0.7}"#)
                .gives("Completion")
                .streams_until_done("CompletionEvent")
                .refuses(&REFUSALS)],
        )
        .route(
            "/v1/chat/completions",
            post(chat::create),
            [describe::post("createChatCompletion", "Answers a conversation.")
                .with(&GENERATION)
                .reads("ChatRequest", |fields, app| drop(chat::drafts(fields, &HeaderMap::new(), "", app))).like(r#"{"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32, "stream": false}"#)
                .gives("ChatCompletion")
                .streams_until_done("ChatEvent")
                .refuses(&REFUSALS)],
        )
        .route(
            "/v1/embeddings",
            post(embeddings::create),
            [describe::post("createEmbeddings", "Vectors of texts.")
                .with(&UNRESUMED)
                .reads("EmbeddingRequest", |fields, app| {
                    pooled::describe(fields, app, embeddings::parse);
                })
                .like(r#"{"input": ["Say hello.", "Say goodbye."], "encoding_format": "float"}"#)
                .gives("Embeddings")
                .refuses(&REFUSALS)],
        )
}
