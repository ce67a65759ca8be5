//! Log lines of requests.

/// Target of the line that each request leaves in the log. `skein serve` prints these lines on a terminal,
/// where it is quiet otherwise. Targets that end in `::request` have a writer of their own: see
/// `skein_node::telemetry`.
pub const REQUEST_LINES: &str = "skein_router::request";
