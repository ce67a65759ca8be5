//! Every setting, once: its flag, environment variable, file key, default and help all come from this table.
//! vLLM's names where vLLM has the setting.

use skein_node::config::{Key, Kind};

/// One setting and how it is shown.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// What `skein_node::config` needs to know.
    pub key: Key,
    /// Stands for the value in help texts.
    pub value: &'static str,
    /// Heading in help texts.
    pub group: &'static str,
    /// Commands that read it, of [`SERVE`], [`ROUTER`], [`WORKER`], [`RUN`], [`BENCH`] and [`GATEWAY`].
    pub commands: u8,
    /// One line of help.
    pub help: &'static str,
}

/// `skein serve`.
pub const SERVE: u8 = 1;
/// `skein router`.
pub const ROUTER: u8 = 2;
/// `skein worker`.
pub const WORKER: u8 = 4;
/// `skein run`.
pub const RUN: u8 = 8;
/// `skein bench latency` and `skein bench throughput`.
pub const BENCH: u8 = 16;
/// `skein gateway`.
pub const GATEWAY: u8 = 32;

const FRONT: u8 = SERVE | ROUTER | GATEWAY;
const COMPUTE: u8 = SERVE | WORKER | BENCH;
const ALL: u8 = SERVE | ROUTER | WORKER | RUN | BENCH | GATEWAY;

const API: &str = "API";
const MODEL: &str = "Model";
const ENGINE: &str = "Workers";
const ROUTERS: &str = "Routers";
const CLUSTER: &str = "Cluster";
const GPU: &str = "GPU";
const LIMITS: &str = "Limits";
const PROCESS: &str = "Process";
const SAMPLING: &str = "Sampling";

/// The table, in the order of the help texts.
pub const FLAGS: &[Flag] = &[
    one("model", None, "DIR", MODEL, ALL, "Model directory (the same as MODEL)"),
    many(
        "served-model-name",
        "NAME",
        MODEL,
        FRONT | WORKER,
        "Name clients use [default: the directory's name]",
    ),
    one(
        "max-model-len",
        None,
        "TOKENS",
        MODEL,
        COMPUTE | RUN,
        "Longest prompt and output together [default: the model's]",
    ),
    one("host", Some("127.0.0.1"), "HOST", API, FRONT, "Address to listen on"),
    one("port", Some("8000"), "PORT", API, FRONT, "Port of the HTTP and gRPC APIs; 0 = any free one"),
    secret(many(
        "api-key",
        "KEY",
        API,
        FRONT,
        "Key that opens the API; may be given several times [default: open]",
    )),
    one(
        "listen",
        Some("127.0.0.1:9000"),
        "HOST:PORT",
        API,
        WORKER,
        "Address of the worker's gRPC service; port 0 = any free one",
    ),
    one("workers", None, "N", ENGINE, SERVE, "Worker processes [default: 2, with GPUs one for each]"),
    many(
        "routers",
        "HOST:PORT",
        ROUTERS,
        GATEWAY,
        "Addresses of the routers (their --host and --port), separated by commas",
    ),
    secret(many("router-api-key", "KEY", ROUTERS, GATEWAY, "API key of the routers, when they ask for one")),
    many(
        "workers",
        "HOST:PORT",
        ENGINE,
        ROUTER,
        "Addresses of the workers, separated by commas; or --discovery",
    ),
    one(
        "discovery",
        None,
        "SOURCE",
        CLUSTER,
        ROUTER | WORKER,
        "Where routers find workers: etcd://host:2379[,host:2379][/cluster], etcds:// for TLS, dns://name:port (routers)",
    ),
    one(
        "advertise",
        None,
        "HOST:PORT",
        CLUSTER,
        WORKER,
        "Address that routers find in etcd [default: the one of --listen]",
    ),
    one(
        "worker-id",
        None,
        "NAME",
        CLUSTER,
        WORKER,
        "Name in etcd, one for each worker [default: its address]",
    ),
    one(
        "etcd-lease-ttl",
        Some("10s"),
        "TIME",
        CLUSTER,
        WORKER,
        "How long a worker's entry outlives its last sign of life",
    ),
    one("etcd-user", None, "NAME", CLUSTER, ROUTER | WORKER, "User of etcd"),
    one("etcd-password-file", None, "FILE", CLUSTER, ROUTER | WORKER, "File with that user's password"),
    one(
        "etcd-ca",
        None,
        "FILE",
        CLUSTER,
        ROUTER | WORKER,
        "Who signed etcd's certificates (PEM); for etcds://",
    ),
    one(
        "etcd-cert",
        None,
        "FILE",
        CLUSTER,
        ROUTER | WORKER,
        "Our certificate (PEM), where etcd asks for one",
    ),
    one("etcd-key", None, "FILE", CLUSTER, ROUTER | WORKER, "Its key (PEM)"),
    one(
        "threads",
        None,
        "N",
        ENGINE,
        COMPUTE | RUN,
        "Compute threads of each worker [default: an even share of the cores]",
    ),
    one(
        "device",
        Some("auto"),
        "DEVICE",
        ENGINE,
        COMPUTE | RUN,
        "What computes: auto (a GPU if one can, else the CPU), cpu, cuda, cuda:N, or fake (no model; for tests)",
    ),
    one(
        "max-num-seqs",
        None,
        "N",
        ENGINE,
        COMPUTE,
        "Sequences that run at once in a worker [default: 64, on a GPU 256]",
    ),
    one(
        "max-num-batched-tokens",
        None,
        "TOKENS",
        ENGINE,
        COMPUTE,
        "Tokens in one step [default: 512, on a GPU 8192]",
    ),
    one("block-size", Some("16"), "TOKENS", ENGINE, COMPUTE, "Tokens in a block of the KV cache"),
    one(
        "kv-cache-memory-bytes",
        None,
        "BYTES",
        ENGINE,
        COMPUTE | RUN,
        "KV cache of each worker, for example 2GiB [default: by the model and free memory; on a GPU what is left of it]",
    ),
    one(
        "dtype",
        Some("auto"),
        "TYPE",
        ENGINE,
        COMPUTE | RUN,
        "Type of activations: auto (the weights'), bfloat16, or float32 (exact: nothing is rounded; CPU)",
    ),
    one(
        "quantization",
        None,
        "METHOD",
        ENGINE,
        COMPUTE | RUN,
        "Convert the weights at load: int8 or int4 on the CPU, fp8 on a GPU [default: keep them]",
    ),
    one(
        "kv-cache-dtype",
        Some("auto"),
        "TYPE",
        ENGINE,
        COMPUTE | RUN,
        "Type of cached keys and values: auto (the activations'), on the CPU float32, bfloat16, float16 or int8, on a GPU fp8",
    ),
    one(
        "packed-cache-dir",
        None,
        "DIR",
        ENGINE,
        COMPUTE | RUN,
        "Where weights laid out for the CPU are kept for the next start, or none [default: skein/packed in the user's cache]",
    ),
    switch("enable-prefix-caching", "true", ENGINE, COMPUTE, "Reuse the KV cache of equal prompt prefixes"),
    one(
        "gpu-memory-utilization",
        Some("0.9"),
        "SHARE",
        GPU,
        COMPUTE | RUN,
        "Share of the GPU's memory to use, what others use counted in",
    ),
    one(
        "load-format",
        Some("auto"),
        "FORMAT",
        GPU,
        COMPUTE | RUN,
        "Weights: auto (those of the model) or dummy (random ones, made on the GPU, for speed work)",
    ),
    switch(
        "batch-invariant",
        "false",
        GPU,
        COMPUTE | RUN,
        "Compute the same bits whatever else is in a batch, at some cost in speed; on the CPU it is always so",
    ),
    switch("enforce-eager", "false", GPU, COMPUTE | RUN, "Launch kernel by kernel, without CUDA graphs"),
    one(
        "step-timeout",
        Some("30s"),
        "TIME",
        GPU,
        COMPUTE | RUN,
        "A step that takes longer means a stuck GPU: the worker is restarted, its requests go on elsewhere",
    ),
    one(
        "max-num-queued-reqs",
        Some("1024"),
        "N",
        LIMITS,
        FRONT | WORKER,
        "Requests running or waiting; more are refused with 429",
    ),
    one(
        "max-num-queued-tokens",
        Some("4m"),
        "TOKENS",
        LIMITS,
        FRONT,
        "Prompt and expected output tokens running or waiting",
    ),
    one(
        "migration-limit",
        Some("3"),
        "N",
        LIMITS,
        FRONT,
        "Moves of a request to another worker without progress",
    ),
    one(
        "worker-timeout",
        Some("5s"),
        "TIME",
        LIMITS,
        FRONT,
        "A worker that says nothing for this long is lost: its requests go on elsewhere",
    ),
    one(
        "wedge-timeout",
        None,
        "TIME",
        LIMITS,
        FRONT,
        "A worker whose engine stands still for this long is lost [default: 5s, longer if its steps take long]",
    ),
    one(
        "stream-linger",
        Some("10s"),
        "TIME",
        LIMITS,
        FRONT,
        "How long a worker goes on with a request whose router is gone; 0s = it ends at once",
    ),
    one(
        "patience",
        Some("30s"),
        "TIME",
        LIMITS,
        FRONT,
        "How long an accepted request waits while no worker is ready",
    ),
    one(
        "max-index-bytes",
        Some("256MiB"),
        "BYTES",
        LIMITS,
        FRONT,
        "Memory for knowing which worker caches what",
    ),
    one("request-timeout", Some("1h"), "TIME", LIMITS, FRONT, "Longest life of a request"),
    one(
        "shutdown-timeout",
        Some("120s"),
        "TIME",
        LIMITS,
        FRONT | WORKER,
        "How long Ctrl-C lets running requests finish",
    ),
    one(
        "drain-grace",
        Some("5s"),
        "TIME",
        LIMITS,
        WORKER,
        "How long Ctrl-C lets a worker go on before its requests leave it, if another worker takes requests; 0s = at once",
    ),
    one("temperature", None, "T", SAMPLING, RUN, "0 = always the likeliest token [default: the model's]"),
    one("top-p", None, "P", SAMPLING, RUN, "Draw from the likeliest tokens that make up this probability"),
    one("top-k", None, "K", SAMPLING, RUN, "Draw from this many likeliest tokens"),
    one("min-p", None, "P", SAMPLING, RUN, "Drop tokens below this share of the likeliest one's probability"),
    one("repetition-penalty", None, "X", SAMPLING, RUN, "Above 1 = repeat less"),
    one("presence-penalty", None, "X", SAMPLING, RUN, "Above 0 = prefer tokens not said yet"),
    one("frequency-penalty", None, "X", SAMPLING, RUN, "Above 0 = prefer tokens said less often"),
    one("seed", None, "N", SAMPLING, RUN, "The same seed gives the same answer"),
    one("max-tokens", None, "N", SAMPLING, RUN, "Longest answer, in tokens [default: what fits]"),
    many("stop", "TEXT", SAMPLING, RUN, "End the answer at this text; may be given several times"),
    one("system", None, "TEXT", SAMPLING, RUN, "System message"),
    switch("raw", "false", SAMPLING, RUN, "Continue the prompt as it is, without the chat template"),
    one("config", None, "FILE", PROCESS, ALL, "TOML file with settings, by these flags' names"),
    one(
        "log-level",
        None,
        "LEVEL",
        PROCESS,
        ALL,
        "error, warn, info, debug, trace or a filter [default: RUST_LOG, else info, on a terminal warn]",
    ),
    one("log-format", Some("auto"), "FORMAT", PROCESS, ALL, "auto, human or json"),
];

const fn one(
    name: &'static str,
    default: Option<&'static str>,
    value: &'static str,
    group: &'static str,
    commands: u8,
    help: &'static str,
) -> Flag {
    Flag { key: Key { name, kind: Kind::One, default, secret: false }, value, group, commands, help }
}

const fn many(
    name: &'static str,
    value: &'static str,
    group: &'static str,
    commands: u8,
    help: &'static str,
) -> Flag {
    Flag { key: Key { name, kind: Kind::Many, default: None, secret: false }, value, group, commands, help }
}

/// A setting whose values are shown as stars.
const fn secret(flag: Flag) -> Flag {
    Flag { key: Key { secret: true, ..flag.key }, ..flag }
}

const fn switch(
    name: &'static str,
    default: &'static str,
    group: &'static str,
    commands: u8,
    help: &'static str,
) -> Flag {
    Flag {
        key: Key { name, kind: Kind::Switch, default: Some(default), secret: false },
        value: "",
        group,
        commands,
        help,
    }
}
