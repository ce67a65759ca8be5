//! Two results of `batching --json` as a table.

use std::path::PathBuf;

use skein_bench::saved::{Row, read_json, side_by_side, stem};

use crate::failure::Failure;

/// JSON key of each figure, its name in the table, and whether a higher value is better.
const COMPARED: [(&str, &str, bool); 4] = [
    ("request_rate_mean_bound", "req/s mean", true),
    ("request_rate_p99_bound", "req/s p99", true),
    ("all_at_once_requests_per_second", "at once", true),
    ("kv_live", "KV live", true),
];

/// Table that compares two results of `batching`, by rule.
///
/// # Errors
/// If a file cannot be read or is not such a result.
pub fn comparison(paths: &[PathBuf]) -> Result<String, Failure> {
    let read =
        |path: &PathBuf| read_json(path, "results", "skein-dev batching --json").map_err(Failure::other);
    let [before, after] = paths else { return Err(Failure::other("two files can be compared")) };
    let names = [stem(before), stem(after)];
    let (before, after) = (read(before)?, read(after)?);
    let mut rows = Vec::new();
    for first in before["results"].as_array().into_iter().flatten() {
        let others = after["results"].as_array();
        let Some(second) = others.into_iter().flatten().find(|row| row["rule"] == first["rule"]) else {
            continue;
        };
        for (key, what, more_is_better) in COMPARED {
            let rule = first["rule"].as_str().unwrap_or_default();
            if let (Some(first), Some(second)) = (first[key].as_f64(), second[key].as_f64()) {
                rows.push(Row { what: format!("{rule} {what}"), first, second, more_is_better });
            }
        }
    }
    Ok(side_by_side([&names[0], &names[1]], rows.into_iter()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn batching_rules_are_compared_one_by_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, rate: f64| {
            let path = directory.path().join(name);
            let result = json!({"rule": "skein", "request_rate_mean_bound": rate, "kv_live": 0.98});
            std::fs::write(&path, json!({"results": [result]}).to_string()).expect("it can be written");
            path
        };
        let (before, after) = (file("before.json", 4.0), file("after.json", 3.0));
        let table = comparison(&[before.clone(), after]).expect("both are results");
        assert!(table.contains("skein req/s mean") && table.contains("0.750  worse"), "{table}");
        assert!(table.contains("skein KV live") && !table.contains("p99"), "{table}");
        let other = directory.path().join("other.json");
        std::fs::write(&other, "{}").expect("it can be written");
        let refused = comparison(&[before, other]).expect_err("the second is no result");
        assert!(refused.to_string().contains("skein-dev batching --json"), "{refused}");
    }
}
