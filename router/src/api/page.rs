//! The pages at `/ui` and `/docs`: files of the binary that talk to this server's own APIs. They need no
//! key, because they hold nothing of the server's; what they call does.

use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::http::tagged;
use super::openapi::operation::{self as describe, Access, Part, TEXT};
use super::openapi::room::Room;

/// Only what this server sends: no inline scripts or styles, no other server, no frame around it, and no text
/// that becomes a script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

static PART: Part =
    Part { name: "Page", about: "The page for people, and this document as a page.", errors: "OpenAiError" };

/// Its routes.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Room<S> {
    let page = describe::get("page", "The page: chat, completion, cluster.");
    let page = page.answers(200, "text/html", None).answers(304, "", None);
    let docs = describe::get("docs", "This document as a page, which can send requests.");
    let docs = docs.answers(200, "text/html", None).answers(304, "", None);
    let of_page = describe::get("pageFile", "A file of the page.");
    let of_page = ["text/html", "text/javascript", "text/css", "image/svg+xml", TEXT]
        .into_iter()
        .fold(of_page, |of_page, media| of_page.answers(200, media, None));
    let of_page = of_page.answers(304, "", None).answers(404, TEXT, None);
    // Relative, so that it also works below a proxy's path.
    Room::new(&PART)
        .route(
            "/ui",
            get(async || Redirect::permanent("ui/")),
            [describe::get("toPage", "Leads to the page.").answers(308, "", None)],
        )
        .route("/ui/", get(async |headers: HeaderMap| file("index.html", &headers)), [page])
        .route(
            "/ui/{*path}",
            get(async |Path(path): Path<String>, headers: HeaderMap| file(&path, &headers)),
            [of_page.clone()],
        )
        .route(
            "/docs",
            get(async || Redirect::permanent("docs/")),
            [describe::get("toDocs", "Leads to this document as a page.").answers(308, "", None)],
        )
        .route("/docs/", get(async |headers: HeaderMap| file("docs.html", &headers)), [docs])
        .route(
            "/docs/{*path}",
            get(async |Path(path): Path<String>, headers: HeaderMap| file(&path, &headers)),
            [describe::Operation { id: "docsFile".to_owned(), about: "A file of that page.", ..of_page }],
        )
        .access(Access::Open)
}

fn file(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = skein_ui::file(path) else {
        return (
            StatusCode::NOT_FOUND,
            [(CONTENT_TYPE, "text/plain")],
            "There is no such file of the page.\n",
        )
            .into_response();
    };
    let fixed = [
        (CONTENT_TYPE, file.content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Another release has other files, with other tags.
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept-encoding"),
    ];
    let (tag, gzip) = (HeaderValue::from_static(file.tag), Bytes::from_static(file.gzip));
    let answer = tagged::answer(headers, tag, gzip, || file.plain().map(Bytes::from));
    (fixed, answer).into_response()
}
