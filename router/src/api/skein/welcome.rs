//! `GET /`: a page for people who open the server's address in a browser. It describes the API, not the
//! model.

use axum::response::Html;

/// The page. Its links are relative, so they also work below a proxy's path.
pub async fn page() -> Html<String> {
    let links = [
        ("ui/", "chat, and the cluster as it works"),
        ("v1/models", "the models"),
        ("health", "readiness"),
        ("version", "the release"),
    ];
    let links: String = links
        .iter()
        .map(|(path, what)| format!("<li><a href=\"{path}\">/{path}</a>: {what}</li>\n"))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    Html(format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Skein</title>\n\
         <h1>Skein {version}</h1>\n<p>An OpenAI-compatible server of a language model. Point a client at <code>/v1</code> \
         of this address.</p>\n<ul>\n{links}</ul>\n\
         <p>The manual: <a href=\"https://github.com/skein-serve/skein/blob/main/docs/src/api.md\">the API</a>.</p>\n"
    ))
}
