//! Log lines of requests.

/// Target of the line that each request leaves in the log. `skein serve` prints these lines on a terminal,
/// where it is quiet otherwise. Of targets that end in `::request` fewer lines wait for a slow reader than of
/// others: see `skein_node::telemetry`.
pub const REQUEST_LINES: &str = "skein_router::request";
