//! Which requests the flags ask for, and whether they fit the model.

use std::path::Path;

use clap::ValueEnum;
use serde_json::{Value, json};
use skein_bench::load::client::Server;
use skein_bench::load::metrics::Targets;
use skein_bench::load::texts::{self, read_lines, read_sharegpt};
use skein_bench::load::workload::{Session, Workload, read_trace};

use super::flags::{Dataset, Serve};
use crate::exit::{Failure, USAGE};

/// Lengths in tokens if none are given.
const INPUT_LEN: u32 = 1024;
const OUTPUT_LEN: u32 = 128;
const PREFIX_LEN: u32 = 512;

impl Serve {
    /// Checks the flags: the requests' shape, the targets of goodput, and further fields of requests.
    pub(super) fn check(&self) -> Result<(Workload, Targets, Value), String> {
        if self.num_prompts == 0 {
            return Err("--num-prompts is 0; ask for at least one".into());
        }
        if self.max_concurrency == Some(0) {
            return Err("--max-concurrency is 0, so nothing could be sent; leave it out for no bound".into());
        }
        for (name, value) in [
            ("request-rate", self.request_rate.unwrap_or(1.0)),
            ("burstiness", self.burstiness),
            ("trace-speedup", self.trace_speedup),
        ] {
            if value.is_nan() || value <= 0.0 || (value.is_infinite() && name != "request-rate") {
                return Err(format!("--{name} must be above 0, got {value}"));
            }
        }
        if !(0.0..=1.0).contains(&self.random_range_ratio) {
            return Err(format!("--random-range-ratio must be 0 to 1, got {}", self.random_range_ratio));
        }
        let extra: Value = match &self.extra_body {
            Some(text) => {
                serde_json::from_str(text).map_err(|error| format!("--extra-body is not JSON: {error}"))?
            }
            None => json!({}),
        };
        if !extra.is_object() {
            return Err("--extra-body must be a JSON object such as {\"priority\": 1}".into());
        }
        Ok((self.workload()?, Targets::parse(&self.goodput)?, extra))
    }

    /// The requests' shape.
    pub(super) fn workload(&self) -> Result<Workload, String> {
        Ok(match self.dataset_name {
            Dataset::Random => Workload::Random {
                input_len: self.random_input_len.unwrap_or(INPUT_LEN),
                output_len: self.output_len(),
                prefix_len: self.random_prefix_len,
                range_ratio: self.random_range_ratio,
            },
            Dataset::SharedPrefix => Workload::SharedPrefix {
                prefix_len: self.prefix_len.unwrap_or(PREFIX_LEN),
                suffix_len: self.suffix_len,
                num_prefixes: self.num_prefixes,
                output_len: self.output_len(),
            },
            Dataset::MultiTurn => Workload::MultiTurn {
                turns: self.turns,
                system_len: self.random_prefix_len,
                input_len: self.random_input_len.unwrap_or(INPUT_LEN),
                output_len: self.output_len(),
            },
            Dataset::ShareGpt | Dataset::Custom => {
                self.text_path()?;
                // For the warm-up only.
                Workload::Random {
                    input_len: INPUT_LEN,
                    output_len: self.output_len(),
                    prefix_len: 0,
                    range_ratio: 0.0,
                }
            }
            Dataset::Mooncake => {
                let path = self.text_path()?;
                let trace = read_trace(path, self.num_prompts).map_err(|error| error.to_string())?;
                Workload::Mooncake {
                    trace,
                    speedup: self.trace_speedup,
                    max_input_len: self.max_input_len,
                    max_output_len: self.max_output_len,
                }
            }
        })
    }

    /// The requests of the run. Those of a file with texts are tokenized by the server.
    pub(super) async fn sessions(
        &self,
        server: &Server,
        workload: &Workload,
        context: Option<u32>,
    ) -> Result<Vec<Session>, Failure> {
        let read = match self.dataset_name {
            Dataset::ShareGpt => read_sharegpt,
            Dataset::Custom => read_lines,
            Dataset::Random | Dataset::SharedPrefix | Dataset::MultiTurn | Dataset::Mooncake => {
                return Ok(workload.sessions(self.num_prompts, self.vocab_size, self.seed));
            }
        };
        let path = self.text_path().map_err(|message| Failure::new(USAGE, message))?;
        let found = read(path).map_err(Failure::other)?;
        let context = context.unwrap_or(u32::MAX);
        texts::sessions(server, path, &found, self.num_prompts, self.random_output_len, context)
            .await
            .map_err(Failure::other)
    }

    fn text_path(&self) -> Result<&Path, String> {
        let name =
            self.dataset_name.to_possible_value().map_or(String::new(), |name| name.get_name().to_owned());
        self.dataset_path.as_deref().ok_or_else(|| format!("--dataset-name {name} needs --dataset-path FILE"))
    }

    fn output_len(&self) -> u32 {
        self.random_output_len.unwrap_or(OUTPUT_LEN)
    }

    /// Shortens lengths that were not given until the longest request fits the model's `context`; returns a
    /// notice if it did.
    ///
    /// # Errors
    /// If the lengths that were given do not fit.
    pub(super) fn fit(&self, workload: &mut Workload, context: u32) -> Result<Option<String>, String> {
        // Sum of input and output.
        let (input, output, room, chosen) = match workload {
            Workload::Random { input_len, output_len, prefix_len, range_ratio } => {
                let room = f64::from(context.saturating_sub(*prefix_len)) / (1.0 + *range_ratio);
                (input_len, output_len, room as u32, self.random_input_len)
            }
            Workload::SharedPrefix { prefix_len, suffix_len, output_len, .. } => {
                (prefix_len, output_len, context.saturating_sub(*suffix_len), self.prefix_len)
            }
            Workload::MultiTurn { turns, system_len, input_len, output_len } => {
                let room = context.saturating_sub(*system_len) / (*turns).max(1);
                (input_len, output_len, room, self.random_input_len)
            }
            Workload::Mooncake { .. } => return Ok(None),
        };
        let mut shortened = Vec::new();
        let mut shorten = |what, length: &mut u32, most: u32| {
            if *length > most.max(1) {
                shortened.push(format!("{what} from {length} to {} tokens", most.max(1)));
                *length = most.max(1);
            }
        };
        if self.random_output_len.is_none() {
            shorten("outputs", output, chosen.map_or(room / 2, |chosen| room.saturating_sub(chosen)));
        }
        if chosen.is_none() {
            shorten("prompts", input, room.saturating_sub(*output));
        }
        if u64::from(*input) + u64::from(*output) > u64::from(room) {
            return Err(format!(
                "prompts of {input} and outputs of {output} tokens do not fit the model's context of {context} tokens; \
                 with the other lengths there is room for {room} in all"
            ));
        }
        let shortened = shortened.join(", ");
        let notice = format!(
            "the model's context is {context} tokens; shortened lengths that were not given: {shortened}"
        );
        Ok((!shortened.is_empty()).then_some(notice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_lengths_fit_a_short_model_and_given_ones_that_do_not_are_refused() {
        let check = |line: &str, expected: Option<(u32, u32)>| {
            let flags = Serve::parse(line);
            let mut workload = flags.workload().expect("a workload");
            let said = flags.fit(&mut workload, 1024).expect("it fits");
            let lengths = match workload {
                Workload::Random { input_len, output_len, .. }
                | Workload::MultiTurn { input_len, output_len, .. } => (input_len, output_len),
                Workload::SharedPrefix { prefix_len, output_len, .. } => (prefix_len, output_len),
                Workload::Mooncake { .. } => panic!("not requested"),
            };
            assert_eq!(said.is_some(), expected.is_some(), "{line}: {said:?}");
            assert_eq!(lengths, expected.unwrap_or(lengths), "{line}");
        };
        check("", Some((896, 128)));
        check("--random-input-len 1000", Some((1000, 24)));
        check("--random-output-len 600", Some((424, 600)));
        check("--random-input-len 1000 --random-output-len 24", None);
        check("--random-range-ratio 0.5 --random-prefix-len 24", Some((538, 128)));
        check("--dataset-name multi-turn", Some((128, 128)));
        check("--dataset-name shared-prefix", None);
        let refused = |line: &str, expected: &str| {
            let flags = Serve::parse(line);
            let refused = flags.fit(&mut flags.workload().expect("a workload"), 1024).expect_err(line);
            assert!(refused.contains(expected), "{line}: {refused}");
        };
        refused(
            "--random-input-len 5000",
            "prompts of 5000 and outputs of 1 tokens do not fit the model's context of 1024",
        );
        refused("--random-input-len 5000 --random-output-len 9", "room for 1024 in all");
        refused("--random-input-len 1000 --random-output-len 25", "room for 1024 in all");
        refused("--random-prefix-len 1023 --random-input-len 9", "room for 1 in all");
        refused("--dataset-name multi-turn --random-output-len 300", "room for 256 in all");
    }
}
