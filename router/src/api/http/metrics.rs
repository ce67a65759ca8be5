//! `GET /metrics`, and the counters of all answers.

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
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

/// Counts answers by `route`, method and status class.
pub fn count<F: Future<Output = Response>>(
    app: App,
    route: Cow<'static, str>,
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> impl Future<Output = Response> {
    let method = match *request.method() {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    };
    next(request).inspect(move |response| {
        let route = response.extensions().get::<Route>().map_or(&*route, |Route(route)| route);
        app.metrics.answered(route, method, response.status().as_u16());
    })
}
