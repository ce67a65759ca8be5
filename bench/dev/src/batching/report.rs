//! Results as a table, JSON, CSV and plots.

use std::fmt::Write as _;

use serde_json::{Value, json};
use skein_bench::plot::{self, Bar, Chart, Dash, Line, Scale};

use super::sweep::{Point, Rule, Setup, Statistic, Sweep};
use crate::terminal::progress_bar;

/// Points of each curve.
const CURVE_POINTS: usize = 12;

/// A rule with the highest rates at which it meets the latency bound.
pub struct Row {
    /// Batching rule.
    pub rule: Rule,
    /// With the mean latency within the bound.
    pub mean: Option<Point>,
    /// With the 99th percentile within the bound.
    pub p99: Option<Point>,
    /// With all requests at the start.
    pub at_once: Point,
}

fn rate(point: Option<&Point>) -> f64 {
    point.and_then(|point| point.rate).unwrap_or(0.0)
}

/// Results as a table.
pub fn table(setup: &Setup, bound: f64, rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail, here and below.
    let _ = writeln!(
        out,
        "{} requests, {:.0} + {:.0} tokens on average, {} tokens of KV memory, context {}; simulated",
        setup.count, setup.lengths.prompt_mean, setup.lengths.output_mean, setup.capacity, setup.context
    );
    let _ =
        writeln!(out, "highest rate with a latency per output token of at most {:.0} ms\n", bound * 1000.0);
    let _ = writeln!(
        out,
        "{:<18}{:>10}{:>10}{:>11}{:>8}{:>7}{:>9}{:>9}{:>9}{:>8}",
        "", "req/s", "req/s", "all at", "Skein", "KV", "", "internal", "external", ""
    );
    let _ = writeln!(
        out,
        "{:<18}{:>10}{:>10}{:>11}{:>8}{:>7}{:>9}{:>9}{:>9}{:>8}",
        "rule", "mean", "p99", "once, r/s", "is ×", "live", "reserved", "waste", "waste", "idle"
    );
    let ours = rows.iter().find(|row| row.rule == Rule::Skein).map_or(0.0, |row| rate(row.mean.as_ref()));
    for row in rows {
        let shown = row.mean.as_ref().unwrap_or(&row.at_once);
        let [live, reserved, internal, external] = shown.run.kv.shares().map(|share| share * 100.0);
        let _ = writeln!(
            out,
            "{:<18}{:>10.3}{:>10.3}{:>11.3}{:>8.2}{live:>6.1}%{reserved:>8.1}%{internal:>8.1}%{external:>8.1}%{:>7.1}%",
            row.rule.to_string(),
            rate(row.mean.as_ref()),
            rate(row.p99.as_ref()),
            row.at_once.run.requests_per_second(),
            ours / rate(row.mean.as_ref()).max(f64::MIN_POSITIVE),
            shown.run.idle_share() * 100.0,
        );
    }
    out
}

/// Results as JSON.
pub fn to_json(setup: &Setup, bound: f64, rows: &[Row]) -> Value {
    let one = |row: &Row| {
        let shown = row.mean.as_ref().unwrap_or(&row.at_once);
        let [live, reserved, internal, external] = shown.run.kv.shares();
        json!({
            "rule": row.rule.to_string(),
            "request_rate_mean_bound": rate(row.mean.as_ref()),
            "request_rate_p99_bound": rate(row.p99.as_ref()),
            "all_at_once_requests_per_second": row.at_once.run.requests_per_second(),
            "kv_live": live, "kv_reserved": reserved,
            "kv_internal_waste": internal, "kv_external_waste": external,
            "idle": shown.run.idle_share(),
        })
    };
    json!({
        "num_prompts": setup.count, "seed": setup.seed, "kv_tokens": setup.capacity,
        "max_model_len": setup.context, "latency_bound_s": bound,
        "step_time_s": [setup.step_time.overhead, setup.step_time.weights, setup.step_time.row,
                        setup.step_time.context_token],
        "results": rows.iter().map(one).collect::<Vec<_>>(),
    })
}

/// Simulates every rule at rates up to slightly more than it can sustain.
pub fn curves(sweep: &Sweep, lowest: f64, rows: &[Row]) -> Vec<(Rule, Vec<Point>)> {
    let bar = progress_bar((rows.len() * CURVE_POINTS) as u64, "  {bar:32} {pos}/{len} points, {elapsed}");
    let curve = |row: &Row| {
        let highest = rate(row.mean.as_ref()).max(lowest) * 1.15;
        let at = |point: usize| highest * (point + 1) as f64 / CURVE_POINTS as f64;
        let points = (0..CURVE_POINTS).map(|point| {
            bar.inc(1);
            sweep.at(row.rule, Some(at(point)))
        });
        (row.rule, points.collect())
    };
    let curves = rows.iter().map(curve).collect();
    bar.finish_and_clear();
    curves
}

/// Latency over rate as CSV.
pub fn csv(curves: &[(Rule, Vec<Point>)]) -> String {
    let mut out = "rule,request_rate,requests_per_second,mean_s_per_token,p50_s_per_token,p99_s_per_token,\
                   kv_live,kv_reserved,kv_internal_waste,kv_external_waste,idle\n"
        .to_owned();
    for (rule, point) in
        curves.iter().flat_map(|(rule, points)| points.iter().map(move |point| (rule, point)))
    {
        let run = &point.run;
        let [live, reserved, internal, external] = run.kv.shares();
        let _ = writeln!(
            out,
            "{rule},{:.5},{:.5},{:.6},{:.6},{:.6},{live:.4},{reserved:.4},{internal:.4},{external:.4},{:.4}",
            point.rate.unwrap_or(0.0),
            run.requests_per_second(),
            run.mean(),
            run.percentile(50.0),
            run.percentile(99.0),
            run.idle_share()
        );
    }
    out
}

/// Points up to `most`, where the curve is cut: beyond it, latency only shows how long the queue kept
/// growing.
fn until(most: f64, points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        if y > most {
            if let Some(&(before_x, before_y)) = kept.last() {
                kept.push((before_x + (x - before_x) * (most - before_y) / (y - before_y), most));
            }
            break;
        }
        kept.push((x, y));
    }
    kept
}

/// Latency over rate and KV use as SVG.
pub fn plots(bound: f64, curves: &[(Rule, Vec<Point>)], rows: &[Row]) -> String {
    let lines = |statistic: Statistic| {
        let one = |(colour, (rule, points)): (usize, &(Rule, Vec<Point>))| {
            let all = points.iter().map(|point| (point.rate.unwrap_or(0.0), statistic.of(&point.run)));
            Line { name: rule.to_string(), points: until(3.0 * bound, all), colour, dash: Dash::Solid }
        };
        let mut lines: Vec<Line> = curves.iter().enumerate().map(one).collect();
        let highest = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
        let (points, colour) = (vec![(0.0, bound), (highest, bound)], lines.len());
        lines.push(Line { name: "bound".into(), points, colour, dash: Dash::Dashed });
        lines
    };
    let about = |title| Chart {
        title,
        x: "requests per second",
        y: "seconds per output token",
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
    };
    let bar = |row: &Row| Bar {
        name: row.rule.to_string(),
        parts: row.mean.as_ref().unwrap_or(&row.at_once).run.kv.shares().to_vec(),
    };
    let memory: Vec<Bar> = rows.iter().map(bar).collect();
    plot::document(&[
        plot::chart(&about("Mean latency per output token"), &lines(Statistic::Mean)),
        plot::chart(&about("p99 latency per output token"), &lines(Statistic::P99)),
        plot::bars(
            "KV memory that is held or cannot be used",
            &["live", "reserved", "internal waste", "external waste"],
            &memory,
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_it_meets_the_limit() {
        let points = [(1.0, 2.0), (2.0, 4.0), (3.0, 12.0), (4.0, 5.0)];
        assert_eq!(until(8.0, points.into_iter()), [(1.0, 2.0), (2.0, 4.0), (2.5, 8.0)]);
        assert_eq!(until(20.0, points.into_iter()), points);
        assert_eq!(until(1.0, points.into_iter()), []);
    }
}
