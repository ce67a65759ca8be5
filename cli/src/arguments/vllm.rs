//! How `skein` handles each flag of `vllm serve` that is not one of its own settings. A table, applied by
//! `mod.rs` and checked against the names that three releases of vLLM publish (`cli/tests/vllm`).

/// The values that follow a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// None; the flag also has a `--no-` form.
    Nothing,
    /// One value, which must follow.
    Value,
    /// Values up to the next flag.
    Values,
}

/// How a flag is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The flag is another name of this setting.
    Means(&'static str),
    /// Accepted without effect, because Skein already does it. The text says how.
    Taken(&'static str),
    /// Accepted with one of these values, which match what Skein does; any other value is refused with the
    /// text.
    Only(&'static [&'static str], &'static str),
    /// Refused. The text says why and names alternatives.
    Refused(&'static str),
    /// Speculative decoding; see `speculative`.
    Speculative,
    /// Options of constrained answers; see `structured_outputs`.
    StructuredOutputs,
}

/// Flags that are handled alike. Names lack the two leading dashes; one-dash flags keep theirs.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Names of the flags.
    pub names: &'static [&'static str],
    /// The values that follow each.
    pub takes: Takes,
    /// How they are handled.
    pub answer: Answer,
}

const fn row(names: &'static [&'static str], takes: Takes, answer: Answer) -> Row {
    Row { names, takes, answer }
}

use Answer::{Means, Only, Refused, Speculative, StructuredOutputs, Taken};
use Takes::{Nothing, Value, Values};

const ONE_DEVICE: &str = "a worker uses one device, or the CPU with --tensor-parallel-size and --pipeline-parallel-size; --workers N runs N full replicas";
const OTHER_MACHINES: &str =
    "for several machines start `skein worker` on each, and `skein router` in front of them";
const LEADER: &str = "give --leader HOST:PORT, the address of the machine with --node-rank 0";
const NO_RAY: &str = "workers are plain processes, Ray is not used; leave it out";
const TEXT_ONLY: &str = "Skein serves text only: no images, sound or video; leave it out";
const NO_LORA: &str = "LoRA adapters are served by --enable-lora, --lora-modules NAME=DIR, --max-loras, --max-cpu-loras and --max-lora-rank only";
const NO_MOE: &str = "with --tensor-parallel-size each expert is whole on one rank, and that is not configurable; leave it out";
const NO_MAMBA: &str =
    "only attention models are served, none with Mamba or linear-attention layers; leave it out";
const NO_DRAFT_METRICS: &str = "accepted drafts are counted for a worker, vllm:spec_decode_num_accepted_tokens_total, and not by request";
const TOOLS: &str = "tool calls and reasoning are parsed wherever the model's format is known";
const NO_PLUGIN: &str = "plugins are not supported; see --tool-call-parser and --reasoning-parser";
const NO_TOOL_OPTION: &str = "it has no counterpart; leave it out";
const NO_GRAMMAR: &str = "schemas and grammars work without it; leave it out";
const NO_TRANSFER: &str =
    "KV cache is not moved between workers: a request that moves is computed again; leave it out";
const NO_OFFLOAD: &str = "weights and KV cache stay on their device; for less memory see --quantization, \
                          --kv-cache-dtype and --kv-cache-memory-bytes";
const NO_POOLING: &str = "models generate text; embeddings and scores are not computed; leave it out";
const NO_PYTHON: &str =
    "there is no Python in Skein, so no Python class or plugin can be loaded; leave it out";
const ONE_REVISION: &str = "all files of a model come from one commit: --revision";
const CIPHERS: &str =
    "the cipher suites are those of rustls, TLS 1.2 and 1.3, all of them safe; leave it out";
const NO_SLEEP: &str = "a worker keeps its weights while it runs; stop it to free the device";
const SAFETENSORS: &str = "safetensors files are mapped and read in parallel by --threads threads";
const OWN_KERNELS: &str =
    "each device has one set of kernels, chosen by its properties; there is nothing to select";
const NO_COMPILER: &str = "the model is not compiled at start; CUDA graphs are recorded for the batch sizes in use, and \
                           --enforce-eager turns them off";
const SCHEDULER: &str = "steps are planned from their measured cost; --max-num-batched-tokens bounds them";
const NO_PROFILE: &str =
    "there are no such metrics; skein bench measures a worker, and --log-level debug says more";
const ONE_FRONT: &str = "one process answers HTTP on several cores (--connection-threads); for more of them see skein router and skein gateway";
const JSON_LOGS: &str = "the log has no configuration file; see --log-level and --log-format";
const PROMPTS: &str = "prompts and answers are never logged";
const USAGE: &str = "usage with prompt and cached tokens is in every answer, and in streams that ask for it \
                     (stream_options.include_usage)";
const REQUEST_IDS: &str = "every answer has an X-Request-Id header";

/// All flags, by subject.
pub const TABLE: &[Row] = &[
    // Other names of settings.
    row(&["data-parallel-size", "-dp"], Value, Means("workers")),
    row(&["device-memory-utilization"], Value, Means("gpu-memory-utilization")),
    row(&["-q"], Value, Means("quantization")),
    // One device, one machine.
    row(&["-tp"], Value, Means("tensor-parallel-size")),
    row(&["-pp"], Value, Means("pipeline-parallel-size")),
    row(&["decode-context-parallel-size", "-dcp"], Value, Only(&["1"], ONE_DEVICE)),
    row(&["prefill-context-parallel-size", "-pcp"], Value, Only(&["1"], ONE_DEVICE)),
    row(&["-n"], Value, Means("nnodes")),
    row(&["-r"], Value, Means("node-rank")),
    row(&["master-addr", "master-port"], Value, Refused(LEADER)),
    row(
        &["dcp-comm-backend", "dcp-kv-cache-interleave-size", "cp-kv-cache-interleave-size", "ubatch-size"],
        Value,
        Refused(ONE_DEVICE),
    ),
    row(
        &["dcp-q-replicate", "enable-dbo", "enable-hc-sp", "enable-batch-sharded-sampling"],
        Nothing,
        Refused(ONE_DEVICE),
    ),
    row(&["dbo-decode-token-threshold", "dbo-prefill-token-threshold"], Value, Refused(ONE_DEVICE)),
    row(&["distributed-timeout-seconds", "cpu-distributed-timeout-seconds"], Value, Refused(OTHER_MACHINES)),
    row(
        &[
            "data-parallel-rank",
            "-dpn",
            "data-parallel-start-rank",
            "-dpr",
            "data-parallel-size-local",
            "-dpl",
            "data-parallel-address",
            "-dpa",
            "data-parallel-rpc-port",
            "-dpp",
            "data-parallel-supervisor-port",
            "dp-supervisor-probe-interval-s",
            "dp-supervisor-probe-timeout-s",
            "dp-supervisor-probe-failure-threshold",
            "dp-sync-interval",
            "elastic-ep-max-dp-size",
        ],
        Value,
        Refused(OTHER_MACHINES),
    ),
    row(
        &[
            "data-parallel-hybrid-lb",
            "-dph",
            "data-parallel-external-lb",
            "-dpe",
            "data-parallel-multi-port-external-lb",
            "-dpm",
            "headless",
            "enable-elastic-ep",
            "enable-scale-out",
        ],
        Nothing,
        Refused(OTHER_MACHINES),
    ),
    row(&["distributed-executor-backend"], Value, Only(&["mp", "uni"], NO_RAY)),
    row(&["data-parallel-backend", "-dpb"], Value, Only(&["mp"], NO_RAY)),
    row(&["ray-workers-use-nsight"], Nothing, Refused(NO_RAY)),
    row(&["disable-nccl-for-dp-synchronization"], Nothing, Taken("replicas run on their own, without NCCL")),
    row(&["enable-nccl-comm-suspend"], Nothing, Refused(ONE_DEVICE)),
    row(&["numa-bind"], Nothing, Taken("compute threads are placed on neighbouring cores")),
    row(
        &["numa-bind-nodes", "numa-bind-cpus"],
        Values,
        Refused("threads are placed by themselves; start the process under taskset or numactl to confine it"),
    ),
    row(
        &["device-ids"],
        Values,
        Refused("name one GPU with --device cuda:N, or several in CUDA_VISIBLE_DEVICES"),
    ),
    // The model and its files.
    row(
        &["trust-remote-code"],
        Nothing,
        Refused(
            "Skein never runs code from a model's directory; families it knows need none, and others are refused at start",
        ),
    ),
    row(&["code-revision", "tokenizer-revision"], Value, Refused(ONE_REVISION)),
    row(
        &["download-dir"],
        Value,
        Refused("HF_HUB_CACHE or HF_HOME selects the cache of models; set one of them"),
    ),
    row(
        &["hf-token"],
        Value,
        Refused(
            "tokens come from HF_TOKEN or the file that `hf auth login` writes, never from a command line",
        ),
    ),
    row(
        &["ignore-patterns"],
        Values,
        Refused("only the files that Skein reads are downloaded; leave it out"),
    ),
    row(
        &["hf-config-path", "hf-overrides", "rope-scaling", "rope-theta", "model-class-overrides"],
        Value,
        Refused("a model's configuration is its config.json; change it there, in a copy of the directory"),
    ),
    row(&["config-format"], Value, Only(&["auto", "hf"], "models are read in Hugging Face's layout")),
    row(&["model-impl"], Value, Only(&["auto", "vllm"], "Skein's own implementation is the only one")),
    row(
        &["tokenizer-mode"],
        Value,
        Only(
            &["auto", "hf"],
            "the tokenizer is tokenizer.json, or what a model has instead, as Hugging Face's library reads it",
        ),
    ),
    row(
        &["skip-tokenizer-init"],
        Nothing,
        Refused("the router needs the tokenizer; token ids as a prompt work beside it"),
    ),
    row(&["tokenizer-pool-size"], Value, Taken("prompts are tokenised on all cores")),
    row(&["tokenizer-pool-type", "tokenizer-pool-extra-config"], Value, Refused(NO_RAY)),
    row(&["renderer-num-workers"], Value, Taken("prompts are tokenised on all cores")),
    row(
        &["runner", "task"],
        Value,
        Only(&["auto", "generate"], "models generate text; embeddings and scores are not computed"),
    ),
    row(
        &["convert"],
        Value,
        Only(&["auto", "none"], "models generate text; embeddings and scores are not computed"),
    ),
    row(&["pooler-config", "override-pooler-config", "io-processor-plugin"], Value, Refused(NO_POOLING)),
    row(&["enable-flash-late-interaction"], Nothing, Refused(NO_POOLING)),
    row(
        &["safetensors-load-strategy", "safetensors-prefetch-num-threads", "safetensors-prefetch-block-size"],
        Value,
        Taken(SAFETENSORS),
    ),
    row(&["max-parallel-loading-workers"], Value, Taken(SAFETENSORS)),
    row(&["model-loader-extra-config", "pt-load-map-location"], Value, Refused(SAFETENSORS)),
    row(
        &["use-tqdm-on-load"],
        Nothing,
        Taken("a terminal shows a bar while the weights load, elsewhere there is one line"),
    ),
    row(
        &["disable-sliding-window"],
        Nothing,
        Refused("a model's window is part of it; set sliding_window in its config.json to null to drop it"),
    ),
    row(
        &["allow-deprecated-quantization"],
        Nothing,
        Refused("see --quantization for the methods that are there"),
    ),
    row(
        &["quantization-config"],
        Value,
        Refused("--quantization int8, int4 or fp8 converts at load; it has no further options"),
    ),
    row(&["calculate-kv-scales"], Nothing, Taken("scales of an 8-bit KV cache are taken from the values")),
    row(&["kv-cache-dtype-skip-layers"], Values, Refused("--kv-cache-dtype is for all layers")),
    row(&["override-attention-dtype"], Value, Refused("see --dtype")),
    row(&["enable-prompt-embeds"], Nothing, Refused("a prompt is text or token ids, not embeddings")),
    // The KV cache and the scheduler.
    row(&["enable-chunked-prefill"], Nothing, Taken("prompts are always computed in chunks")),
    row(&["async-scheduling"], Nothing, Taken("the next step is always planned while the device computes")),
    row(&["disable-async-output-proc"], Nothing, Refused("output is always sent while the device computes")),
    row(&["use-v2-block-manager"], Nothing, Taken("blocks are always managed in one way")),
    row(&["multi-step-stream-outputs"], Nothing, Taken("every token is streamed")),
    row(
        &["num-scheduler-steps"],
        Value,
        Only(&["1"], "each step is planned anew, while the one before computes"),
    ),
    row(&["num-lookahead-slots"], Value, Only(&["0"], "drafts take blocks as they come")),
    row(
        &["stream-interval"],
        Value,
        Only(&["1"], "every token is streamed; tokens that wait go out together"),
    ),
    row(
        &["scheduling-policy"],
        Value,
        Only(
            &["fcfs", "priority"],
            "requests go by their `priority`, and those of equal priority share each step",
        ),
    ),
    row(&["scheduler-cls"], Value, Refused(NO_PYTHON)),
    row(&["scheduler-delay-factor"], Value, Only(&["0", "0.0"], SCHEDULER)),
    row(
        &[
            "max-num-partial-prefills",
            "max-long-partial-prefills",
            "long-prefill-token-threshold",
            "max-num-scheduled-tokens",
            "prefill-schedule-interval",
        ],
        Value,
        Refused(SCHEDULER),
    ),
    row(
        &["long-prefill-token-threshold-adaptive", "scheduler-reserve-full-isl"],
        Nothing,
        Refused(SCHEDULER),
    ),
    row(
        &["max-num-active-seqs"],
        Value,
        Refused("see --max-num-seqs, the sequences that run at once in a worker"),
    ),
    row(
        &["preemption-mode"],
        Value,
        Only(&["recompute"], "a sequence that gives its blocks back is computed again"),
    ),
    row(
        &["swap-space"],
        Value,
        Taken("no swap space is needed: a sequence that gives its blocks back is computed again"),
    ),
    row(
        &["num-gpu-blocks-override"],
        Value,
        Refused("see --kv-cache-memory-bytes, or --gpu-memory-utilization on a GPU"),
    ),
    row(
        &["watermark", "prefix-cache-retention-interval", "prefix-match-unit"],
        Value,
        Refused(
            "the prefix cache keeps whole blocks, least recently used first out; it has no further options",
        ),
    ),
    row(
        &["prefix-caching-hash-algo"],
        Value,
        Taken("a cache hit compares the tokens themselves, so no hash needs to be trusted"),
    ),
    row(&["disable-hybrid-kv-cache-manager"], Nothing, Taken("all layers have the same KV cache")),
    row(
        &["swa-bounded-replay", "kv-sharing-fast-prefill"],
        Nothing,
        Refused("all layers have the same KV cache"),
    ),
    row(
        &["disable-cascade-attn"],
        Nothing,
        Taken("attention is always computed for each sequence by itself"),
    ),
    row(
        &["cpu-offload-gb", "offload-group-size", "offload-num-in-group", "offload-prefetch-step"],
        Value,
        Only(&["0", "0.0"], NO_OFFLOAD),
    ),
    row(&["kv-offloading-size", "kv-offloading-backend", "offload-backend"], Value, Refused(NO_OFFLOAD)),
    row(&["cpu-offload-params", "offload-params"], Values, Refused(NO_OFFLOAD)),
    row(
        &["kv-transfer-config", "kv-events-config", "ec-transfer-config", "ec-manager-config"],
        Value,
        Refused(NO_TRANSFER),
    ),
    row(&["weight-transfer-config"], Value, Refused("weights change with a restart of the worker")),
    row(
        &["enable-sleep-mode", "sleep-mode-offload-cudagraph", "enable-cumem-allocator"],
        Nothing,
        Refused(NO_SLEEP),
    ),
    row(&["sleep-mode-backend"], Value, Refused(NO_SLEEP)),
    row(&["sleep-preserve-parameter-names"], Values, Refused(NO_SLEEP)),
    // Kernels and graphs.
    row(
        &[
            "attention-backend",
            "linear-backend",
            "sparse-indexer-topk-backend",
            "attention-config",
            "-ac",
            "kernel-config",
            "ir-op-priority",
        ],
        Value,
        Refused(OWN_KERNELS),
    ),
    row(&["enable-flashinfer-autotune", "monokernel"], Nothing, Refused(OWN_KERNELS)),
    row(
        &["compilation-config", "-cc", "optimization-level", "-O", "performance-mode"],
        Value,
        Taken(NO_COMPILER),
    ),
    row(&["max-seq-len-to-capture", "max-cudagraph-capture-size"], Value, Taken(NO_COMPILER)),
    row(&["cuda-graph-sizes", "cudagraph-capture-sizes"], Values, Taken(NO_COMPILER)),
    row(&["enable-shm-tensor-arena"], Nothing, Refused(ONE_DEVICE)),
    row(&["use-fp64-gumbel"], Nothing, Refused("tokens are drawn by Philox4x32-10 and 32-bit probabilities")),
    row(&["override-neuron-config"], Value, Refused("see --device: the CPU and NVIDIA GPUs compute")),
    // Kinds of models that are not served.
    row(
        &["moe-backend", "all2all-backend", "expert-placement-strategy", "eplb-config"],
        Value,
        Refused(NO_MOE),
    ),
    row(&["eplb-window-size", "eplb-step-interval", "num-redundant-experts"], Value, Refused(NO_MOE)),
    row(
        &[
            "enable-expert-parallel",
            "-ep",
            "enable-ep-weight-filter",
            "enable-eplb",
            "eplb-log-balancedness",
            "enable-return-routed-experts",
        ],
        Nothing,
        Refused(NO_MOE),
    ),
    row(
        &[
            "mamba-backend",
            "mamba-ssu-algorithm",
            "mamba-cache-philox-rounds",
            "mamba-cache-dtype",
            "mamba-ssm-cache-dtype",
            "mamba-block-size",
            "mamba-cache-mode",
            "replayssm-buffer-len",
            "gdn-prefill-backend",
            "kda-prefill-backend",
            "kda-decode-backend",
        ],
        Value,
        Refused(NO_MAMBA),
    ),
    row(
        &["enable-mamba-cache-stochastic-rounding", "enable-mamba-shared-prefix-checkpoint", "use-replayssm"],
        Nothing,
        Refused(NO_MAMBA),
    ),
    row(
        &["diffusion-config", "-dc", "engram-config"],
        Value,
        Refused("only models that generate token by token are served; leave it out"),
    ),
    row(
        &[
            "allowed-local-media-path",
            "limit-mm-per-prompt",
            "media-io-kwargs",
            "mm-processor-kwargs",
            "mm-processor-cache-gb",
            "mm-processor-cache-type",
            "mm-hasher-algorithm",
            "mm-shm-cache-max-object-size-mb",
            "mm-encoder-tp-mode",
            "mm-encoder-attn-backend",
            "mm-encoder-attn-dtype",
            "mm-encoder-fp8-scale-path",
            "mm-encoder-fp8-scale-save-path",
            "mm-encoder-fp8-scale-save-margin",
            "video-pruning-rate",
            "video-pruning-method",
            "mm-tensor-ipc",
            "mm-processor-device",
            "mm-ipc-gpu-memory-gb",
        ],
        Value,
        Refused(TEXT_ONLY),
    ),
    row(&["allowed-media-domains"], Values, Refused(TEXT_ONLY)),
    row(
        &[
            "enable-mm-embeds",
            "mm-encoder-only",
            "interleave-mm-strings",
            "mm-device-do-normalize",
            "enable-multimodal-encoder-data-parallel",
            "trust-request-mm-kwargs",
        ],
        Nothing,
        Refused(TEXT_ONLY),
    ),
    row(
        &[
            "language-model-only",
            "skip-mm-profiling",
            "disable-chunked-mm-input",
            "disable-mm-preprocessor-cache",
        ],
        Nothing,
        Taken("Skein serves text only"),
    ),
    row(
        &[
            "enable-lora-bias",
            "fully-sharded-loras",
            "enable-tower-connector-lora",
            "specialize-active-lora",
            "enable-mixed-moe-lora-format",
            "enable-moe-shared-loras",
            "enable-prompt-adapter",
        ],
        Nothing,
        Refused(NO_LORA),
    ),
    row(
        &[
            "lora-dtype",
            "lora-extra-vocab-size",
            "default-mm-loras",
            "max-lora-cls-labels",
            "max-prompt-adapters",
            "max-prompt-adapter-token",
            "qlora-adapter-name-or-path",
        ],
        Value,
        Refused(NO_LORA),
    ),
    row(&["lora-target-modules", "long-lora-scaling-factors", "prompt-adapters"], Values, Refused(NO_LORA)),
    row(&["speculative-config", "-sc", "spec-method", "spec-model", "spec-tokens"], Value, Speculative),
    row(&["per-request-spec-decode-metrics"], Value, Only(&["none"], NO_DRAFT_METRICS)),
    // Requests and answers.
    row(
        &["chat-template-content-format"],
        Value,
        Only(&["auto"], "whether a template takes strings or parts is detected from the template"),
    ),
    row(
        &["trust-request-chat-template"],
        Nothing,
        Refused("a request cannot bring a template, which is a program; see --chat-template"),
    ),
    row(&["response-role"], Value, Only(&["assistant"], "answers have the role assistant")),
    row(
        &["logprobs-mode"],
        Value,
        Only(&["raw_logprobs"], "log-probabilities are the model's own, before penalties and temperature"),
    ),
    row(&["return-tokens-as-token-ids"], Nothing, Refused("answers have tokens as text; leave it out")),
    row(
        &["return-sampling-mask", "tokens-only"],
        Nothing,
        Refused("answers have no such field; leave it out"),
    ),
    row(&["enable-auto-tool-choice", "enable-reasoning"], Nothing, Taken(TOOLS)),
    row(
        &["exclude-tools-when-tool-choice-none"],
        Nothing,
        Refused("the model sees the tools of a request; leave them out of requests that need none"),
    ),
    row(&["tool-parser-plugin", "reasoning-parser-plugin"], Value, Refused(NO_PLUGIN)),
    row(&["tool-server"], Value, Refused("the server runs no tools itself; leave it out")),
    row(
        &[
            "tool-strict-level",
            "reasoning-config",
            "reasoning-effort-map",
            "anthropic-disabled-thinking-effort",
            "cohere-format",
        ],
        Value,
        Refused(NO_TOOL_OPTION),
    ),
    row(&["cohere-is-reasoning-model"], Nothing, Refused(NO_TOOL_OPTION)),
    row(&["structured-outputs-config"], Value, StructuredOutputs),
    row(&["guided-decoding-backend", "logits-processor-pattern"], Value, Refused(NO_GRAMMAR)),
    row(&["logits-processors"], Values, Refused(NO_PYTHON)),
    row(
        &["aux-output-config", "watermark-config"],
        Value,
        Refused("answers have no such field; leave it out"),
    ),
    row(&["enable-prompt-tokens-details", "enable-force-include-usage"], Nothing, Taken(USAGE)),
    row(&["enable-request-id-headers"], Nothing, Taken(REQUEST_IDS)),
    row(
        &["enable-per-request-metrics"],
        Nothing,
        Refused("answers carry no times; skein bench serve measures them from the client's side"),
    ),
    row(
        &["sse-keep-alive-interval"],
        Value,
        Only(&["15"], "a silent stream gets a comment every 15 s, which cannot be changed"),
    ),
    row(
        &["fingerprint-mode", "fingerprint-value"],
        Value,
        Refused("system_fingerprint is Skein's version and cannot be changed; leave it out"),
    ),
    row(
        &["enable-tokenizer-info-endpoint"],
        Nothing,
        Refused("there is no /tokenizer_info; see /tokenize and /detokenize"),
    ),
    // The server.
    row(&["api-server-count", "-asc"], Value, Only(&["1"], ONE_FRONT)),
    row(&["disable-frontend-multiprocessing"], Nothing, Taken("one process answers HTTP on several cores")),
    row(&["grpc"], Nothing, Taken("gRPC is always there, on the same port as HTTP")),
    row(&["grpc-port"], Value, Refused("gRPC is on the same port as HTTP: --port")),
    row(&["uds"], Value, Refused("Skein listens on TCP; see --host and --port")),
    row(&["ssl-certfile"], Value, Means("tls-cert")),
    row(&["ssl-keyfile"], Value, Means("tls-key")),
    row(&["ssl-ca-certs"], Value, Means("tls-client-ca")),
    row(&["ssl-cert-reqs"], Value, Means("tls-client-certs")),
    row(&["ssl-ciphers"], Value, Refused(CIPHERS)),
    row(
        &["enable-ssl-refresh"],
        Nothing,
        Taken("certificates are always read again when their files change"),
    ),
    row(&["middleware"], Values, Refused(NO_PYTHON)),
    row(&["worker-cls", "worker-extension-cls", "additional-config"], Value, Refused(NO_PYTHON)),
    row(
        &["allow-credentials"],
        Nothing,
        Refused("browsers send the key in the Authorization header; cookies are not read"),
    ),
    row(
        &["allowed-methods", "allowed-headers"],
        Values,
        Only(&["*", "[\"*\"]"], "origins that are allowed may use every method and header of the API"),
    ),
    row(&["disable-fastapi-docs"], Nothing, Taken("there are no documentation pages on the server")),
    row(&["enable-offline-docs"], Nothing, Refused("there are no documentation pages on the server")),
    row(
        &["h11-max-incomplete-event-size", "h11-max-header-count"],
        Value,
        Refused("bodies are bounded at 8 MiB, headers at 100 lines and 64 KiB; leave it out"),
    ),
    row(
        &["enable-fault-tolerance"],
        Nothing,
        Taken("a request always survives the death of its worker, and a worker that dies is restarted"),
    ),
    row(
        &["fault-tolerance-config", "watchdog-config"],
        Value,
        Refused("see --worker-timeout, --wedge-timeout, --step-timeout and --migration-limit"),
    ),
    // The log and metrics.
    row(&["disable-log-stats"], Nothing, Taken("there is no line of statistics")),
    row(&["disable-log-requests"], Nothing, Taken(PROMPTS)),
    row(&["enable-log-requests", "enable-log-outputs", "enable-log-deltas"], Nothing, Refused(PROMPTS)),
    row(&["max-log-len"], Value, Taken(PROMPTS)),
    row(&["disable-uvicorn-access-log"], Nothing, Taken("there is no access log")),
    row(&["disable-access-log-for-endpoints"], Value, Taken("there is no access log")),
    row(&["uvicorn-log-level"], Value, Means("log-level")),
    row(&["log-config-file", "logging-config"], Value, Refused(JSON_LOGS)),
    row(
        &["aggregate-engine-logging"],
        Nothing,
        Taken("all workers log to one place, each line with its name"),
    ),
    row(&["log-error-stack"], Nothing, Refused("an error is one line that says what to do")),
    row(&["fail-on-environ-validation"], Nothing, Taken("unknown SKEIN_ variables are always refused")),
    row(
        &[
            "show-hidden-metrics-for-version",
            "kv-cache-metrics-sample",
            "custom-histogram-buckets",
            "profiler-config",
            "jit-monitor-mode",
        ],
        Value,
        Refused(NO_PROFILE),
    ),
    row(&["collect-detailed-traces"], Values, Taken("a traced request always has the spans of its phases")),
    row(
        &[
            "kv-cache-metrics",
            "cudagraph-metrics",
            "enable-layerwise-nvtx-tracing",
            "enable-mfu-metrics",
            "enable-logging-iteration-details",
            "enable-server-load-tracking",
            "enable-trace-replay",
            "jit-monitor-verbose",
        ],
        Nothing,
        Refused(NO_PROFILE),
    ),
];

/// Value of a Skein setting that vLLM spells differently.
#[derive(Debug, Clone, Copy)]
pub struct ValueRow {
    /// Name of the setting.
    pub name: &'static str,
    /// vLLM's spellings of the value.
    pub given: &'static [&'static str],
    /// The same value in Skein's spelling.
    pub ours: &'static str,
    /// A note for the log; empty if the values mean the same.
    pub note: &'static str,
}

const WEIGHTS_TYPE: &str = "activations follow the weights' own type; nothing is converted to float16";

/// All values that vLLM spells differently.
pub const VALUES: &[ValueRow] = &[
    ValueRow { name: "dtype", given: &["half", "float16"], ours: "auto", note: WEIGHTS_TYPE },
    ValueRow { name: "dtype", given: &["float"], ours: "float32", note: "" },
    ValueRow { name: "load-format", given: &["safetensors", "hf"], ours: "auto", note: "" },
    ValueRow { name: "kv-cache-dtype", given: &["fp8_e4m3"], ours: "fp8", note: "" },
    ValueRow { name: "generation-config", given: &["vllm"], ours: "none", note: "" },
    ValueRow { name: "log-level", given: &["critical"], ours: "error", note: "" },
    ValueRow { name: "log-level", given: &["warning"], ours: "warn", note: "" },
];

/// Our settings that take several values after one flag, as in vLLM.
pub const LISTS: [&str; 4] = ["served-model-name", "lora-modules", "api-key", "allowed-origins"];
