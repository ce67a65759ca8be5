//! What a result says about its run, and the file that it goes to.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use skein_bench::load::Pace;
use skein_bench::load::client::Server;
use skein_node::clock;

use super::flags::{Dataset, Serve};
use crate::exit::{Failure, USAGE};

impl Serve {
    fn rate_text(&self) -> String {
        self.request_rate
            .filter(|rate| rate.is_finite())
            .map_or_else(|| "inf".into(), |rate| rate.to_string())
    }

    /// What was measured, in a line.
    pub(super) fn title(&self, model: &str) -> String {
        let dataset =
            self.dataset_name.to_possible_value().map_or(String::new(), |name| name.get_name().to_owned());
        let at_once =
            self.max_concurrency.map_or_else(|| "all at once".into(), |count| format!("{count} at once"));
        let what = if self.dataset_name == Dataset::MultiTurn { "conversations" } else { "requests" };
        let rate = self.request_rate.filter(|rate| rate.is_finite());
        let pace = match (rate, self.dataset_name, self.max_concurrency) {
            _ if self.batching != "continuous" => {
                format!("batching {}, {} {what}/s", self.batching, self.rate_text())
            }
            (Some(rate), _, None) => format!("open loop, {rate} {what}/s"),
            (Some(rate), _, Some(_)) => format!("open loop, {rate} {what}/s, at most {at_once}"),
            (None, Dataset::Mooncake, _) => format!("trace replayed at {}x, {at_once}", self.trace_speedup),
            (None, _, _) => format!("closed loop, {at_once}"),
        };
        format!("{model}, {dataset}: {pace}")
    }

    /// Parameters of the run, under vLLM's key names.
    pub(super) fn context(&self, server: &Server, pace: &Pace) -> Map<String, Value> {
        let mut map = Map::new();
        let rate = pace.request_rate.map_or_else(|| json!("inf"), |rate| json!(rate));
        for (name, value) in [
            ("date", json!(clock::unix_time().as_secs())),
            ("endpoint_type", json!("openai")),
            ("backend", json!("openai")),
            ("model_id", json!(server.model())),
            (
                "dataset_name",
                json!(self.dataset_name.to_possible_value().map(|name| name.get_name().to_owned())),
            ),
            ("num_prompts", json!(self.num_prompts)),
            ("request_rate", rate),
            ("burstiness", json!(self.burstiness)),
            ("max_concurrency", json!(self.max_concurrency)),
            ("seed", json!(self.seed)),
            ("batching", json!(self.batching)),
            ("label", json!(self.label)),
        ] {
            map.insert(name.to_owned(), value);
        }
        map
    }

    /// The file for the result, if any; checked before the run, which may take hours.
    pub(super) fn result_file(&self, model: &str) -> Result<Option<PathBuf>, Failure> {
        if !(self.save_result || self.save_detailed || self.result_filename.is_some()) {
            return Ok(None);
        }
        let path = self.result_dir.join(self.filename(model));
        let dir = path.parent().unwrap_or(&self.result_dir);
        // `--result-dir ''` means the current directory.
        if !dir.as_os_str().is_empty() && !dir.is_dir() {
            let message = format!(
                "{} is not a directory, so the result could not be saved; see --result-dir",
                dir.display()
            );
            return Err(Failure::new(USAGE, message));
        }
        Ok(Some(path))
    }

    fn filename(&self, model: &str) -> String {
        self.result_filename.clone().unwrap_or_else(|| {
            let model = model.replace(['/', ' '], "-");
            format!("skein-{}qps-{model}-{}.json", self.rate_text(), clock::unix_time().as_secs())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_cannot_be_saved_stops_the_run_at_start() {
        let failure = Serve::parse("--save-result --result-dir /nonexistent")
            .result_file("m")
            .expect_err("no directory");
        assert!(failure.code == USAGE && failure.message.contains("/nonexistent"), "{failure}");
        assert_eq!(Serve::parse("--result-dir /nonexistent").result_file("m"), Ok(None));
        let named = Serve::parse("--result-filename x.json").result_file("m").expect("the current directory");
        assert_eq!(named, Some(PathBuf::from("./x.json")));
    }
}
