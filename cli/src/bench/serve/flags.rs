//! Flags of `bench serve`. They and the JSON keys follow vLLM.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::server_access::Certificates;

/// Flags of `bench serve`.
#[derive(Debug, Args)]
#[allow(missing_docs)] // the help texts document the fields
pub struct Serve {
    #[arg(long, value_name = "URL", help = "Server's URL [default: http://HOST:PORT]")]
    pub(super) base_url: Option<String>,
    #[arg(long, default_value = "127.0.0.1", help = "Server's host")]
    pub(super) host: String,
    #[arg(long, default_value_t = 8000, help = "Server's port")]
    pub(super) port: u16,
    #[arg(long, value_name = "NAME", help = "Model name [default: the first that the server lists]")]
    pub(super) model: Option<String>,
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY", help = "API key")]
    pub(super) api_key: Option<String>,
    #[command(flatten)]
    pub(super) certificates: Certificates,
    #[arg(long, default_value_t = 1000, value_name = "N", help = "Number of requests")]
    pub(super) num_prompts: usize,
    #[arg(long, default_value_t = 1, value_name = "N", help = "Warm-up requests, not measured")]
    pub(super) num_warmups: usize,
    #[arg(
        long,
        value_name = "R",
        help = "Requests (multi-turn: conversations) a second, whether or not the server keeps up; inf = all at once [default: inf]"
    )]
    pub(super) request_rate: Option<f64>,
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "B",
        help = "1 = Poisson arrivals, below 1 = in bursts, above 1 = evenly"
    )]
    pub(super) burstiness: f64,
    #[arg(long, value_name = "N", help = "Most requests in flight at once")]
    pub(super) max_concurrency: Option<usize>,
    #[arg(long, default_value_t = 0, value_name = "N", help = "Seed of prompts and arrivals")]
    pub(super) seed: u64,
    #[arg(long, default_value = "random", value_name = "NAME", help = "Kind of requests")]
    pub(super) dataset_name: Dataset,
    #[arg(
        long,
        value_name = "FILE",
        help = "File of sharegpt (JSON), custom (JSON lines with a prompt) or mooncake (JSON lines of a trace)"
    )]
    pub(super) dataset_path: Option<PathBuf>,
    #[arg(
        long,
        value_name = "TOKENS",
        help = "random, multi-turn: new prompt tokens [default: 1024, or what fits the model's context]"
    )]
    pub(super) random_input_len: Option<u32>,
    #[arg(
        long,
        value_name = "TOKENS",
        aliases = ["output-len", "sharegpt-output-len", "custom-output-len"],
        help = "Output tokens [default: sharegpt: those of the recorded answer; others: 128, or what fits the context]"
    )]
    pub(super) random_output_len: Option<u32>,
    #[arg(
        long,
        default_value_t = 0,
        value_name = "TOKENS",
        help = "random, multi-turn: tokens of a prefix that all prompts share"
    )]
    pub(super) random_prefix_len: u32,
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "X",
        help = "random: lengths vary by this share, 0 to 1"
    )]
    pub(super) random_range_ratio: f64,
    #[arg(
        long,
        value_name = "TOKENS",
        alias = "prefix-repetition-prefix-len",
        help = "shared-prefix: tokens in a prefix [default: 512, or what fits the context]"
    )]
    pub(super) prefix_len: Option<u32>,
    #[arg(
        long,
        default_value_t = 128,
        value_name = "TOKENS",
        alias = "prefix-repetition-suffix-len",
        help = "shared-prefix: tokens after the prefix"
    )]
    pub(super) suffix_len: u32,
    #[arg(
        long,
        default_value_t = 8,
        value_name = "N",
        alias = "prefix-repetition-num-prefixes",
        help = "shared-prefix: number of prefixes"
    )]
    pub(super) num_prefixes: u32,
    #[arg(long, default_value_t = 4, value_name = "N", help = "multi-turn: turns per conversation")]
    pub(super) turns: u32,
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "X",
        help = "mooncake: replay the trace this much faster"
    )]
    pub(super) trace_speedup: f64,
    #[arg(
        long,
        value_name = "TOKENS",
        help = "mooncake: shrink all prompts in proportion until the longest has this many"
    )]
    pub(super) max_input_len: Option<u64>,
    #[arg(long, value_name = "TOKENS", help = "mooncake: most output tokens")]
    pub(super) max_output_len: Option<u32>,
    #[arg(long, default_value_t = 4000, value_name = "N", help = "Random token ids are below this")]
    pub(super) vocab_size: u32,
    #[arg(long, num_args = 1.., value_name = "NAME:MS", help = "Targets of goodput, for example ttft:200 tpot:50 e2el:3000")]
    pub(super) goodput: Vec<String>,
    #[arg(long, value_name = "JSON", help = "More request fields, as a JSON object")]
    pub(super) extra_body: Option<String>,
    #[arg(long, default_value_t = 600, value_name = "SECONDS", help = "Timeout of a request")]
    pub(super) request_timeout: u64,
    #[arg(
        long,
        default_value = "continuous",
        value_name = "RULE",
        help = "Hold requests back: static:8 sends the next 8 when the last ones have ended, dynamic:8:50ms also waits 50 ms for 8"
    )]
    pub(super) batching: String,
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], help = "Compare two saved results instead of sending load")]
    pub(super) compare: Vec<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        help = "Write plots of the result, or of those of --plot-results, as SVG"
    )]
    pub(super) plot: Option<PathBuf>,
    #[arg(
        long,
        num_args = 1..,
        value_name = "FILE",
        requires = "plot",
        help = "Plot these saved results together, for example one for each rate, instead of sending load"
    )]
    pub(super) plot_results: Vec<PathBuf>,
    #[arg(long, value_name = "TEXT", help = "Name of the result in tables and plots")]
    pub(super) label: Option<String>,
    #[arg(long, help = "Write the result to a JSON file")]
    pub(super) save_result: bool,
    #[arg(long, help = "Include the figures of every request")]
    pub(super) save_detailed: bool,
    #[arg(long, value_name = "DIR", default_value = ".", help = "Directory of the file")]
    pub(super) result_dir: PathBuf,
    #[arg(long, value_name = "FILE", help = "Name of the file [default: skein-RATEqps-MODEL-TIME.json]")]
    pub(super) result_filename: Option<String>,
    #[arg(long, help = "Print JSON instead of the table")]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Dataset {
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

#[cfg(test)]
impl Serve {
    /// The flags in `line`.
    pub(super) fn parse(line: &str) -> Self {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            serve: Serve,
        }
        <Line as clap::Parser>::parse_from(std::iter::once("bench").chain(line.split_whitespace())).serve
    }
}
