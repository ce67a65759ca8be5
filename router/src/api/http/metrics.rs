//! `GET /metrics`, and the counters of all answers.

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use skein_node::metrics::Format;

use crate::app::App;

/// `GET /metrics`, which needs no key, like the health routes: it exposes counts and times, but no client
/// data.
pub async fn scrape(State(app): State<App>, headers: HeaderMap) -> impl IntoResponse {
    let format = Format::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let text = app.metrics.encode(format, &*app.fleet, app.text.tokenizer.kept_counts());
    ([(CONTENT_TYPE, format.content_type())], text)
}

/// Route of an answer, in its extensions, if one path of the router serves several.
#[derive(Debug, Clone, Copy)]
pub struct Route(pub &'static str);

/// Counts answers by route, method and status class. Unknown paths and methods are counted together.
pub async fn count(State(app): State<App>, request: Request, next: Next) -> Response {
    let handler = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = match *request.method() {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    };
    let response = next.run(request).await;
    let handler = response.extensions().get::<Route>().map_or(&*handler, |Route(route)| route);
    app.metrics.answered(handler, method, response.status().as_u16());
    response
}
