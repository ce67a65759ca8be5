//! Two results side by side.

use super::file::Saved;

/// Rows of the table: JSON key, and whether a higher value is better.
const COMPARED: [(&str, bool); 11] = [
    ("request_throughput", true),
    ("output_throughput", true),
    ("request_goodput", true),
    ("median_ttft_ms", false),
    ("p99_ttft_ms", false),
    ("median_itl_ms", false),
    ("p99_itl_ms", false),
    ("median_tpot_ms", false),
    ("p99_tpot_ms", false),
    ("median_e2el_ms", false),
    ("p99_e2el_ms", false),
];

/// Table of both results, with the ratio of the second to the first.
pub fn comparison(before: &Saved, after: &Saved) -> String {
    let both = |(key, more_is_better): (&str, bool)| {
        let (first, second) = (before.number(key)?, after.number(key)?);
        Some(Row { what: key.to_owned(), first, second, more_is_better })
    };
    side_by_side([&before.name, &after.name], COMPARED.into_iter().filter_map(both))
}

/// One figure of two results.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Name of the figure.
    pub what: String,
    /// Its value in the first result.
    pub first: f64,
    /// Its value in the second one.
    pub second: f64,
    /// Whether a higher value is better.
    pub more_is_better: bool,
}

/// A table of two results called `names`, with the ratio of the second to the first.
pub fn side_by_side(names: [&str; 2], rows: impl Iterator<Item = Row>) -> String {
    let mut out = format!("{:<26}{:>14}{:>14}{:>9}\n", "", short(names[0]), short(names[1]), "ratio");
    for Row { what, first, second, more_is_better } in rows {
        let ratio = if first == 0.0 { f64::NAN } else { second / first };
        let better = if more_is_better { ratio > 1.02 } else { ratio < 0.98 };
        let worse = if more_is_better { ratio < 0.98 } else { ratio > 1.02 };
        let remark = if better {
            "  better"
        } else if worse {
            "  worse"
        } else {
            ""
        };
        out += &format!("{what:<26}{first:>14.3}{second:>14.3}{ratio:>9.3}{remark}\n");
    }
    out
}

/// Shortens a name to its last thirteen characters.
fn short(name: &str) -> String {
    let skipped = name.chars().count().saturating_sub(13);
    name.chars().skip(skipped).collect()
}
