//! The report of a run as a table.

use std::fmt::Write;

use super::metrics::{Report, Summary};

/// The report as a table with `title` above it.
pub fn table(title: &str, report: &Report) -> String {
    let mut out = String::new();
    line(&mut out, title, "");
    line(&mut out, "Successful requests", report.completed);
    line(&mut out, "Failed requests", report.failed);
    for (kind, count) in &report.errors {
        line(&mut out, &format!("  {kind}"), count);
    }
    line(&mut out, "Duration (s)", format_args!("{:.2}", report.duration_s));
    line(&mut out, "Input tokens", report.total_input_tokens);
    let share = format!("{} ({:.1}%)", report.cached_tokens, 100.0 * report.cached_token_share());
    line(&mut out, "  of these cached", share);
    line(&mut out, "Output tokens", report.total_output_tokens);
    line(&mut out, "Requests/s", format_args!("{:.2}", report.request_throughput));
    if let Some(goodput) = report.request_goodput {
        line(&mut out, "Goodput, requests/s", format_args!("{goodput:.2}"));
    }
    line(&mut out, "Output tokens/s", format_args!("{:.1}", report.output_throughput));
    line(&mut out, "Total tokens/s", format_args!("{:.1}", report.total_token_throughput));
    // Writing to a String cannot fail; here and below.
    let _ = writeln!(out, "\n{:<26}{:>10}{:>10}{:>10}{:>10}{:>10}", "ms", "mean", "p50", "p90", "p99", "max");
    row(&mut out, "TTFT (sent to 1st token)", &report.ttft);
    row(&mut out, "TTFT (from intended time)", &report.ttft_from_intended);
    row(&mut out, "TPOT (after the 1st)", &report.tpot);
    row(&mut out, "ITL (between chunks)", &report.itl);
    row(&mut out, "E2E (whole request)", &report.e2el);
    out
}

fn line(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let text = format!("{name:<26}{value}");
    let _ = writeln!(out, "{}", text.trim_end());
}

fn row(out: &mut String, name: &str, summary: &Summary) {
    let Summary { mean, p50, p90, p99, max, .. } = summary;
    let _ = writeln!(out, "{name:<26}{mean:>10.2}{p50:>10.2}{p90:>10.2}{p99:>10.2}{max:>10.2}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_well() {
        let summary =
            Summary { count: 2, mean: 12.345, p50: 10.0, p90: 20.0, p99: 1234.5, max: 2000.0, std: 0.0 };
        let report = Report {
            duration_s: 4.0,
            completed: 2,
            failed: 1,
            errors: [("http 429".to_owned(), 1)].into(),
            total_input_tokens: 200,
            cached_tokens: 50,
            ttft: summary,
            request_goodput: Some(0.25),
            ..Report::default()
        };
        let text = table("random, open loop at 3 requests/s", &report);
        assert!(
            text.starts_with("random, open loop at 3 requests/s\nSuccessful requests       2\n"),
            "{text}"
        );
        assert!(text.contains("  http 429                1\n"), "{text}");
        assert!(text.contains("  of these cached         50 (25.0%)\n"), "{text}");
        let row = "TTFT (sent to 1st token)       12.35     10.00     20.00   1234.50   2000.00\n";
        assert!(text.contains(row) || text.contains(&row.replace("12.35", "12.34")), "{text}");
    }
}
