//! Scores of texts, in the shapes of Cohere and Jina (`rerank`) and of vLLM (`score`, `classify`). Errors
//! have OpenAI's form.

pub mod classify;
mod pairs;
pub mod rerank;
pub mod score;
mod texts;

use axum::routing::post;

use super::openapi::operation::{self as describe, Operation, Part, REFUSALS, UNRESUMED};
use super::openapi::room::Room;
use crate::api::fields::pooled;

static PART: Part = Part {
    name: "Scores",
    about: "Reranking, scores and classes, in the shapes of Cohere, Jina and vLLM.",
    errors: "OpenAiError",
};

/// A body that every path for reranking answers.
const LIKE: &str =
    r#"{"query": "What is a cat?", "documents": ["A cat is an animal.", "Paris is a city."], "top_n": 1}"#;

/// All routes.
pub fn routes() -> Room {
    let classify = describe::post("classify", "Probabilities of each text's classes.")
        .with(&UNRESUMED)
        .reads("ClassifyRequest", |fields, app| {
            pooled::describe(fields, app, classify::parse);
        })
        .like(r#"{"input": ["What a day!"]}"#)
        .gives("Classes")
        .refuses(&REFUSALS);
    let second = reranks("rerankV2", "The same; documents are returned only if the request asks.");
    Room::new(&PART)
        .route("/v1/rerank", post(rerank::create), [reranks("rerank", RERANKS)])
        .route("/rerank", post(rerank::create), [reranks("rerankWithoutVersion", RERANKS)])
        .route("/v2/rerank", post(rerank::create_v2), [second])
        .route("/v1/score", post(score::create), [scores("score")])
        .route("/score", post(score::create), [scores("scoreWithoutVersion")])
        .route("/classify", post(classify::create), [classify])
}

/// What reranking is.
const RERANKS: &str = "Sorts documents by their relevance to a query.";

fn reranks(id: &'static str, about: &'static str) -> Operation {
    describe::post(id, about)
        .with(&UNRESUMED)
        .reads("RerankRequest", |fields, app| {
            pooled::describe(fields, app, rerank::parse);
        })
        .like(LIKE)
        .gives("Reranked")
        .refuses(&REFUSALS)
}

fn scores(id: &'static str) -> Operation {
    describe::post(id, "Scores of pairs of texts: one with many, or each with its own.")
        .with(&UNRESUMED)
        .reads("ScoreRequest", |fields, app| {
            pooled::describe(fields, app, score::parse);
        })
        .like(r#"{"text_1": "What is a cat?", "text_2": ["A cat is an animal.", "Paris is a city."]}"#)
        .gives("Scores")
        .refuses(&REFUSALS)
}
