//! Encodes metrics in Prometheus' text format 0.0.4 and in OpenMetrics 1.0.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>,
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>

use std::fmt::Write;

use prometheus::proto::{LabelPair, MetricFamily, MetricType};

/// A text format for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4.
    Text,
    /// OpenMetrics' text format, version 1.0.
    OpenMetrics,
}

impl Format {
    /// OpenMetrics if the `Accept` header names it, else plain text, which every scraper reads.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// Value of the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// A bucket's upper bound; OpenMetrics requires a float.
    fn bound(self, bound: f64) -> String {
        match self {
            Self::Text => bound.to_string(),
            Self::OpenMetrics => format!("{bound:?}"),
        }
    }
}

/// Encodes `families` as text.
pub fn encode(families: &[MetricFamily], format: Format) -> String {
    let mut text = String::new();
    for family in families {
        encode_family(&mut text, family, format);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn encode_family(text: &mut String, family: &MetricFamily, format: Format) {
    let name = family.name();
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::HISTOGRAM => "histogram",
        _ => "gauge",
    };
    // In OpenMetrics, a counter family's name lacks the suffix of its samples.
    let family_name = match format {
        Format::OpenMetrics if kind == "counter" => name.strip_suffix("_total").unwrap_or(name),
        _ => name,
    };
    line(
        text,
        format_args!("# HELP {family_name} {}", escaped(family.help(), format == Format::OpenMetrics)),
    );
    line(text, format_args!("# TYPE {family_name} {kind}"));
    if format == Format::OpenMetrics
        && let Some(unit) =
            ["seconds", "bytes"].iter().find(|unit| family_name.ends_with(&format!("_{unit}")))
    {
        line(text, format_args!("# UNIT {family_name} {unit}"));
    }
    for metric in family.get_metric() {
        let labels = labels(metric.get_label(), None);
        match family.get_field_type() {
            MetricType::COUNTER => {
                line(text, format_args!("{name}{labels} {}", metric.get_counter().get_value()))
            }
            MetricType::HISTOGRAM => {
                let histogram = metric.get_histogram();
                let bounded = histogram.get_bucket().iter();
                let buckets = bounded.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
                for (bound, count) in buckets.filter(|(bound, _)| bound.is_finite()) {
                    let labels = self::labels(metric.get_label(), Some(&format.bound(bound)));
                    line(text, format_args!("{name}_bucket{labels} {count}"));
                }
                let count = histogram.get_sample_count();
                let all = self::labels(metric.get_label(), Some("+Inf"));
                line(text, format_args!("{name}_bucket{all} {count}"));
                line(text, format_args!("{name}_sum{labels} {}", histogram.get_sample_sum()));
                line(text, format_args!("{name}_count{labels} {count}"));
            }
            _ => line(text, format_args!("{name}{labels} {}", metric.get_gauge().get_value())),
        }
    }
}

/// `{name="value",…}` sorted by name, with a bucket's bound last; empty without labels.
fn labels(pairs: &[LabelPair], bound: Option<&str>) -> String {
    let mut pairs: Vec<(&str, &str)> = pairs.iter().map(|pair| (pair.name(), pair.value())).collect();
    pairs.sort_unstable();
    pairs.extend(bound.map(|bound| ("le", bound)));
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

/// Escapes a value; help texts of format 0.0.4 keep their quotes.
fn escaped(value: &str, quotes: bool) -> String {
    let value = value.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { value.replace('"', "\\\"") } else { value }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{content}");
}
