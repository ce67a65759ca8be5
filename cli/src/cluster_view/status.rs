//! The text of `skein status`.

use std::fmt::Write;

use super::snapshot::{Model, Snapshot, Worker, percent, step};

/// Most requests and moves that are shown.
const SHOWN: usize = 8;

/// A summary, a line for each worker, and the latest moves and requests.
pub fn text(snapshot: &Snapshot) -> String {
    let Snapshot { version, totals, workers, moves, requests, models, .. } = snapshot;
    let (model, model_version) = snapshot.title();
    let mut text = String::new();
    let draining = if snapshot.draining { ", shutting down" } else { "" };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{model} (version {model_version}), Skein {version}{draining}");
    let _ = writeln!(
        text,
        "{} of {} workers ready, {} requests running, {} since the start; prompt tokens cached: {}; moves: {}",
        snapshot.ready(),
        workers.len(),
        totals.requests_in_flight,
        totals.requests,
        percent(totals.cached_prompt_tokens, totals.prompt_tokens),
        totals.moves
    );
    if !models.is_empty() {
        let _ = writeln!(text, "\nmodels");
        for Model { id, status, memory_bytes } in models {
            let size = *memory_bytes as f64 / f64::from(1 << 30);
            let failed =
                status.reason.as_ref().map_or(String::new(), |reason| format!(", not loaded: {reason}"));
            let _ = writeln!(
                text,
                "  {id}: {}, {} requests, {size:.2} GiB{failed}",
                status.value, status.requests
            );
        }
    }
    let width = workers.iter().map(|worker| worker.id.chars().count()).max().unwrap_or(0).max("worker".len());
    let _ = writeln!(
        text,
        "\n{:width$}  {:>7} {:>7} {:>8} {:>6} {:>23}  state",
        "worker", "running", "waiting", "step", "hits", "held/shared/cached/free"
    );
    for worker in workers {
        let _ = writeln!(text, "{}", line(worker, width));
    }
    if !moves.is_empty() {
        let _ = writeln!(text, "\nlatest moves");
        for one in moves.iter().take(SHOWN) {
            let (from, to) = (one.from.as_deref().unwrap_or("?"), one.to.as_deref().unwrap_or("?"));
            let _ = writeln!(
                text,
                "  {}: {from} -> {to} after {} tokens: {}",
                one.request, one.tokens, one.reason
            );
        }
    }
    if !requests.is_empty() {
        let _ = writeln!(text, "\nlatest requests");
        for one in requests.iter().take(SHOWN) {
            let first = one.ttft_seconds.map_or("-".to_owned(), |seconds| format!("{:.0} ms", 1e3 * seconds));
            let _ = writeln!(
                text,
                "  {}: {} {}, prompt {} ({} cached), output {}, first token {first}, {:.2} s, {}",
                one.id,
                one.status,
                one.code.as_deref().unwrap_or(&one.outcome),
                one.prompt_tokens,
                one.cached_tokens,
                one.output_tokens,
                one.seconds,
                one.workers.join(" -> ")
            );
        }
    }
    text
}

fn line(worker: &Worker, width: usize) -> String {
    let blocks = worker.blocks;
    let step = step(worker.step_seconds);
    format!(
        "{:width$}  {:>7} {:>7} {step:>8} {:>6} {:>23}  {}",
        worker.id,
        worker.running,
        worker.waiting,
        percent(worker.cached_prompt_tokens, worker.prompt_tokens),
        format!("{}/{}/{}/{}", blocks.held, blocks.shared, blocks.cached, blocks.free),
        worker.state
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_models_has_a_line() {
        let snapshot: Snapshot = serde_json::from_str(
            r#"{"model": null, "models": [{"id": "a", "status": {"value": "loaded", "requests": 2}, "memory_bytes": 1073741824},
                {"id": "b", "status": {"value": "unloaded", "reason": "no file"}}]}"#,
        )
        .expect("a snapshot");
        let text = text(&snapshot);
        for part in [
            "1 of 2 models in memory",
            "  a: loaded, 2 requests, 1.00 GiB\n",
            "  b: unloaded, 0 requests, 0.00 GiB, not loaded: no file\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn each_worker_move_and_request_has_a_line() {
        let snapshot: Snapshot = serde_json::from_str(
            r#"{"model": "m", "workers": [{"id": "w-1", "ready": true, "state": "ready", "running": 3,
                "blocks": {"total": 9, "held": 1, "shared": 2, "cached": 3, "free": 3}}],
                "moves": [{"request": "r", "from": "w-0", "to": "w-1", "reason": "lost", "tokens": 7}],
                "requests": [{"id": "r", "status": 200, "outcome": "completed", "workers": ["w-0", "w-1"]}]}"#,
        )
        .expect("a snapshot");
        let text = text(&snapshot);
        for part in [
            "1 of 1 workers",
            "1/2/3/3",
            "r: w-0 -> w-1 after 7 tokens: lost",
            "200 completed",
            "w-0 -> w-1\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }
}
