//! `skein bench serve`: load over HTTP. Flags and JSON keys follow vLLM, so that scripts carry over.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use skein_bench::load::client::Server;
use skein_bench::load::metrics::{Record, Report, Targets};
use skein_bench::load::texts::{self, read_lines, read_sharegpt};
use skein_bench::load::watch::{Reading, watch};
use skein_bench::load::workload::Session;
use skein_bench::load::workload::{Workload, read_trace};
use skein_bench::load::{self, HeldBack, Pace, report};
use skein_bench::saved::{self, Saved};
use skein_node::clock;

use crate::exit::{Failure, USAGE};
use crate::progress::progress_bar;

/// Flags of `bench serve`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Serve {
    #[arg(long, value_name = "URL", help = "Server's URL [default: http://HOST:PORT]")]
    base_url: Option<String>,
    #[arg(long, default_value = "127.0.0.1", help = "Server's host")]
    host: String,
    #[arg(long, default_value_t = 8000, help = "Server's port")]
    port: u16,
    #[arg(long, value_name = "NAME", help = "Model name [default: the first that the server lists]")]
    model: Option<String>,
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY", help = "API key")]
    api_key: Option<String>,
    #[arg(long, default_value_t = 1000, value_name = "N", help = "Number of requests")]
    num_prompts: usize,
    #[arg(long, default_value_t = 1, value_name = "N", help = "Warm-up requests, not measured")]
    num_warmups: usize,
    #[arg(
        long,
        value_name = "R",
        help = "Requests (multi-turn: conversations) a second, whether or not the server keeps up; inf = all at once [default: inf]"
    )]
    request_rate: Option<f64>,
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "B",
        help = "1 = Poisson arrivals, below 1 = in bursts, above 1 = evenly"
    )]
    burstiness: f64,
    #[arg(long, value_name = "N", help = "Most requests in flight at once")]
    max_concurrency: Option<usize>,
    #[arg(long, default_value_t = 0, value_name = "N", help = "Seed of prompts and arrivals")]
    seed: u64,
    #[arg(long, default_value = "random", value_name = "NAME", help = "Kind of requests")]
    dataset_name: Dataset,
    #[arg(
        long,
        value_name = "FILE",
        help = "File of sharegpt (JSON), custom (JSON lines with a prompt) or mooncake (JSON lines of a trace)"
    )]
    dataset_path: Option<PathBuf>,
    #[arg(
        long,
        value_name = "TOKENS",
        help = "random, multi-turn: new prompt tokens [default: 1024, or what fits the model's context]"
    )]
    random_input_len: Option<u32>,
    #[arg(
        long,
        value_name = "TOKENS",
        aliases = ["output-len", "sharegpt-output-len", "custom-output-len"],
        help = "Output tokens [default: sharegpt: those of the recorded answer; others: 128, or what fits the context]"
    )]
    random_output_len: Option<u32>,
    #[arg(
        long,
        default_value_t = 0,
        value_name = "TOKENS",
        help = "random, multi-turn: tokens of a prefix that all prompts share"
    )]
    random_prefix_len: u32,
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        help = "random: lengths vary by this share, 0 to 1"
    )]
    random_range_ratio: f64,
    #[arg(
        long,
        value_name = "TOKENS",
        alias = "prefix-repetition-prefix-len",
        help = "shared-prefix: tokens in a prefix [default: 512, or what fits the context]"
    )]
    prefix_len: Option<u32>,
    #[arg(
        long,
        default_value_t = 128,
        value_name = "TOKENS",
        alias = "prefix-repetition-suffix-len",
        help = "shared-prefix: tokens after the prefix"
    )]
    suffix_len: u32,
    #[arg(
        long,
        default_value_t = 8,
        value_name = "N",
        alias = "prefix-repetition-num-prefixes",
        help = "shared-prefix: number of prefixes"
    )]
    num_prefixes: u32,
    #[arg(long, default_value_t = 4, value_name = "N", help = "multi-turn: turns per conversation")]
    turns: u32,
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "X",
        help = "mooncake: replay the trace this much faster"
    )]
    trace_speedup: f64,
    #[arg(
        long,
        value_name = "TOKENS",
        help = "mooncake: shrink all prompts in proportion until the longest has this many"
    )]
    max_input_len: Option<u64>,
    #[arg(long, value_name = "TOKENS", help = "mooncake: most output tokens")]
    max_output_len: Option<u32>,
    #[arg(long, default_value_t = 4000, value_name = "N", help = "Random token ids are below this")]
    vocab_size: u32,
    #[arg(long, num_args = 1.., value_name = "NAME:MS", help = "Targets of goodput, for example ttft:200 tpot:50 e2el:3000")]
    goodput: Vec<String>,
    #[arg(long, value_name = "JSON", help = "More request fields, as a JSON object")]
    extra_body: Option<String>,
    #[arg(long, default_value_t = 600, value_name = "SECONDS", help = "Timeout of a request")]
    request_timeout: u64,
    #[arg(
        long,
        default_value = "continuous",
        value_name = "RULE",
        help = "Hold requests back: static:8 sends the next 8 when the last ones have ended, dynamic:8:50ms also waits 50 ms for 8"
    )]
    batching: String,
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], help = "Compare two saved results instead of sending load")]
    compare: Vec<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "Write plots of the result, or of those of --plot-results, as SVG"
    )]
    plot: Option<PathBuf>,
    #[arg(
        long,
        num_args = 1..,
        value_name = "FILE",
        requires = "plot",
        help = "Plot these saved results together, for example one for each rate, instead of sending load"
    )]
    plot_results: Vec<PathBuf>,
    #[arg(long, value_name = "TEXT", help = "Name of the result in tables and plots")]
    label: Option<String>,
    #[arg(long, help = "Write the result to a JSON file")]
    save_result: bool,
    #[arg(long, help = "Include the figures of every request")]
    save_detailed: bool,
    #[arg(long, value_name = "DIR", default_value = ".", help = "Directory of the file")]
    result_dir: PathBuf,
    #[arg(long, value_name = "FILE", help = "Name of the file [default: skein-RATEqps-MODEL-TIME.json]")]
    result_filename: Option<String>,
    #[arg(long, help = "Print JSON instead of the table")]
    json: bool,
}

/// Lengths in tokens if none are given.
const INPUT_LEN: u32 = 1024;
const OUTPUT_LEN: u32 = 128;
const PREFIX_LEN: u32 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dataset {
    /// Prompts of random tokens
    Random,
    /// Prompts that share a few prefixes
    #[value(alias = "prefix_repetition")]
    SharedPrefix,
    /// Conversations, each turn of which continues the last answer
    MultiTurn,
    /// A trace in Mooncake's published format
    Mooncake,
    /// Conversations of a file in ShareGPT's format: the first message, with the length of its answer as
    /// output
    #[value(name = "sharegpt")]
    ShareGpt,
    /// JSON lines with a prompt each
    Custom,
}

/// Runs `bench serve`.
///
/// # Errors
/// Invalid flags, an unreachable server, a result that cannot be written, or no request that finished.
pub async fn run(flags: &Serve) -> Result<(), Failure> {
    if let [before, after] = &flags.compare[..] {
        let read = |path: &PathBuf| Saved::read(path).map_err(Failure::other);
        let results = [read(before)?, read(after)?];
        out!("{}", saved::comparison(&results[0], &results[1]));
        return write_plots(flags.plot.as_ref(), &results);
    }
    if !flags.plot_results.is_empty() {
        return write_plots(flags.plot.as_ref(), &saved::read_all(&flags.plot_results).map_err(Failure::other)?);
    }
    measure(flags).await
}

async fn measure(flags: &Serve) -> Result<(), Failure> {
    let usage = |message| Failure::new(USAGE, message);
    let (mut workload, targets, extra) = flags.check().map_err(usage)?;
    let held_back = HeldBack::parse(&flags.batching).map_err(|error| usage(format!("--batching {error}")))?;
    let base_url = flags.base_url.clone().unwrap_or_else(|| format!("http://{}:{}", flags.host, flags.port));
    let timeout = Duration::from_secs(flags.request_timeout);
    let server = Server::connect(&base_url, flags.model.clone(), flags.api_key.clone(), timeout, extra)
        .await
        .map_err(Failure::other)?;
    let context = server.max_model_len().await;
    let notice = context.map_or(Ok(None), |context| flags.fit(&mut workload, context)).map_err(usage)?;
    if let Some(notice) = notice {
        eprintln!("{notice}");
    }
    let result_file = flags.result_file(server.model())?;
    let pace = Pace {
        request_rate: flags.request_rate.filter(|rate| rate.is_finite()),
        burstiness: flags.burstiness,
        max_concurrency: flags.max_concurrency,
        seed: flags.seed,
        held_back,
    };
    warm_up(flags, &server, &workload).await?;
    let sessions = flags.sessions(&server, &workload, context).await?;
    let total: usize = sessions.iter().map(|session| session.turns.len()).sum();
    let bar = progress_bar(total as u64, "  {bar:32} {pos}/{len} requests, {elapsed} ({eta} left)");
    let mut readings = Vec::new();
    let records = tokio::select! {
        records = load::run(&server, sessions, pace, |_| bar.inc(1)) => records,
        () = watch(&server, clock::now(), &mut readings) => Vec::new(),
    };
    bar.finish_and_clear();
    let report = Report::of(&records, &targets);
    let mut result = flags.context(&server, &pace);
    result.extend(report.to_json());
    if let Some(path) = &flags.plot {
        let mut detailed = result.clone();
        detailed.extend(detail(&records, &readings));
        let name = flags.label.clone().unwrap_or_else(|| flags.title(server.model()));
        write_plots(Some(path), &[Saved::new(name, Value::Object(detailed))])?;
    }
    if flags.save_detailed {
        result.extend(detail(&records, &readings));
    }
    let result = format!("{:#}\n", Value::Object(result));
    // Print before saving, so that a full disk does not lose the run.
    if flags.json {
        out!("{result}");
    } else {
        out!("{}", report::table(&flags.title(server.model()), &report));
    }
    if let Some(path) = result_file {
        write(&path, &result)?;
    }
    if report.completed == 0 {
        let first = first_failure(&records).unwrap_or_else(|| "none was sent".to_owned());
        return Err(Failure::other(format!("no request finished; the first one: {first}")));
    }
    Ok(())
}

fn write_plots(path: Option<&PathBuf>, results: &[Saved]) -> Result<(), Failure> {
    path.map_or(Ok(()), |path| write(path, &saved::plots(results)))
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    std::fs::write(path, content)
        .map_err(|error| Failure::other(format!("cannot write {}: {error}", path.display())))?;
    eprintln!("saved {}", path.display());
    Ok(())
}

fn first_failure(records: &[Record]) -> Option<String> {
    records.iter().find_map(Record::failure)
}

/// Sends prompts other than the measured ones, so that none of those is cached yet.
async fn warm_up(flags: &Serve, server: &Server, workload: &Workload) -> Result<(), Failure> {
    let mut sessions = workload.sessions(flags.num_warmups, flags.vocab_size, !flags.seed);
    sessions.iter_mut().for_each(|session| session.at = None);
    let pace =
        Pace { request_rate: None, burstiness: 1.0, max_concurrency: Some(1), seed: 0, held_back: None };
    let records = load::run(server, sessions, pace, |_| {}).await;
    match first_failure(&records) {
        Some(error) => {
            Err(Failure::other(format!("the warm-up request failed ({error}); nothing was measured")))
        }
        None => Ok(()),
    }
}

impl Serve {
    fn check(&self) -> Result<(Workload, Targets, Value), String> {
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

    fn workload(&self) -> Result<Workload, String> {
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
    async fn sessions(
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
    fn fit(&self, workload: &mut Workload, context: u32) -> Result<Option<String>, String> {
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

    fn rate_text(&self) -> String {
        self.request_rate
            .filter(|rate| rate.is_finite())
            .map_or_else(|| "inf".into(), |rate| rate.to_string())
    }

    fn title(&self, model: &str) -> String {
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
    fn context(&self, server: &Server, pace: &Pace) -> Map<String, Value> {
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
    fn result_file(&self, model: &str) -> Result<Option<PathBuf>, Failure> {
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

/// Figures of every request in seconds, under vLLM's key names.
fn detail(records: &[Record], readings: &[Reading]) -> Map<String, Value> {
    let seconds = |time: Option<Duration>| time.map_or(0.0, |time| time.as_secs_f64());
    let mut map = Map::new();
    let mut column = |name: &str, value: &dyn Fn(&Record) -> Value| {
        map.insert(name.to_owned(), records.iter().map(value).collect());
    };
    column("input_lens", &|record| json!(record.prompt_tokens));
    column("output_lens", &|record| json!(record.output_tokens));
    column("start_times", &|record| json!(record.sent.as_secs_f64()));
    column("intended_times", &|record| json!(record.intended.as_secs_f64()));
    column("ttfts", &|record| {
        json!(seconds(record.first_token.map(|first| first.saturating_sub(record.sent))))
    });
    column("itls", &|record| record.gaps.iter().map(|gap| json!(gap.as_secs_f64())).collect());
    column("errors", &|record| json!(record.error.clone().unwrap_or_default()));
    let mut column = |name: &str, value: &dyn Fn(&Reading) -> Value| {
        map.insert(name.to_owned(), readings.iter().map(value).collect());
    };
    column("server_times", &|reading| json!(reading.at));
    column("server_running", &|reading| json!(reading.running));
    column("server_waiting", &|reading| json!(reading.waiting));
    column("server_kv_cache_usage", &|reading| json!(reading.kv_cache_usage));
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    fn parse(line: &str) -> Serve {
        Line::parse_from(std::iter::once("bench").chain(line.split_whitespace())).serve
    }

    #[test]
    fn default_lengths_fit_a_short_model_and_given_ones_that_do_not_are_refused() {
        let check = |line: &str, expected: Option<(u32, u32)>| {
            let flags = parse(line);
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
            let flags = parse(line);
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

    #[test]
    fn a_result_that_cannot_be_saved_stops_the_run_at_start() {
        let failure =
            parse("--save-result --result-dir /nonexistent").result_file("m").expect_err("no directory");
        assert!(failure.code == USAGE && failure.message.contains("/nonexistent"), "{failure}");
        assert_eq!(parse("--result-dir /nonexistent").result_file("m"), Ok(None));
        let named = parse("--result-filename x.json").result_file("m").expect("the current directory");
        assert_eq!(named, Some(PathBuf::from("./x.json")));
    }
}
