//! The table of all settings: flag, environment variable, file key, default and help come from here. Names
//! follow vLLM where vLLM has the setting.

use skein_node::config::{Key, Kind};

/// One setting and its help.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Name, kind and default, for `skein_node::config`.
    pub key: Key,
    /// Placeholder of the value in help texts.
    pub value: &'static str,
    /// Heading in help texts.
    pub group: &'static str,
    /// Bits of the commands that read it: [`SERVE`], [`ROUTER`], [`WORKER`], [`RUN`], [`BENCH`], [`GATEWAY`],
    /// [`RUN_BATCH`], [`DOCTOR`].
    pub commands: u8,
    /// One line of help.
    pub help: &'static str,
    /// Whether it concerns text, tokens or our own workers, so that a router before OpenAI workers does not
    /// have it.
    pub needs_tokens: bool,
    /// Place in a worker's configuration (JSON pointer, RFC 6901) of a value that must be equal on all nodes
    /// of a group.
    pub same_on_nodes: Option<&'static str>,
}

/// Bit of `skein serve`.
pub const SERVE: u8 = 1;
/// Bit of `skein router`.
pub const ROUTER: u8 = 2;
/// Bit of `skein worker`.
pub const WORKER: u8 = 4;
/// Bit of `skein run`.
pub const RUN: u8 = 8;
/// Bit of `skein bench latency` and `skein bench throughput`.
pub const BENCH: u8 = 16;
/// Bit of `skein gateway`.
pub const GATEWAY: u8 = 32;
/// Bit of `skein run-batch`.
pub const RUN_BATCH: u8 = 64;
/// Bit of `skein doctor`, which also reads what `skein serve` does.
pub const DOCTOR: u8 = 128;

const FRONT: u8 = SERVE | ROUTER | GATEWAY;
const COMPUTE: u8 = SERVE | WORKER | BENCH | RUN_BATCH;
const TRACED: u8 = SERVE | ROUTER | WORKER | GATEWAY;
const NODES: u8 = SERVE | ROUTER | WORKER | GATEWAY;
const ALL: u8 = SERVE | ROUTER | WORKER | RUN | BENCH | GATEWAY | RUN_BATCH;

const API: &str = "API";
const MODEL: &str = "Model";
const ENGINE: &str = "Workers";
const ROUTERS: &str = "Routers";
/// Heading of the settings that only a router before OpenAI workers has.
pub const UPSTREAM: &str = "OpenAI workers";
const CLUSTER: &str = "Cluster";
const TLS: &str = "TLS";
const GPU: &str = "GPU";
const FAKE: &str = "Fake device";
const LIMITS: &str = "Limits";
const PROCESS: &str = "Process";
const TRACES: &str = "Traces";
const SAMPLING: &str = "Sampling";

/// The table, in the order of the help texts.
pub const FLAGS: &[Flag] = &[
    tokens(one(
        "model",
        None,
        "MODEL",
        MODEL,
        ALL,
        "Model directory, GGUF file, or a name as organisation/model (the same as MODEL)",
    )),
    tokens(one(
        "revision",
        None,
        "REVISION",
        MODEL,
        ALL,
        "Branch, tag or commit of a model that is given by name [default: main]",
    )),
    tokens(many(
        "served-model-name",
        "NAME",
        MODEL,
        FRONT | WORKER | RUN_BATCH,
        "Model name that clients use [default: the model's name, or its directory's]",
    )),
    many(
        "lora-modules",
        "NAME=DIR",
        MODEL,
        COMPUTE | RUN,
        "LoRA adapters in PEFT's format, served as NAME: with --enable-lora several beside the model, else one, merged into the weights at load and served instead of it",
    ),
    switch(
        "enable-lora",
        "false",
        MODEL,
        COMPUTE | RUN,
        "Serve LoRA adapters beside the model; a request names its adapter as its model",
    ),
    one(
        "max-loras",
        Some("16"),
        "COUNT",
        MODEL,
        COMPUTE | RUN,
        "Most different adapters in use at once, on a GPU each in a slot of device memory; requests for further ones wait",
    ),
    one(
        "max-cpu-loras",
        None,
        "COUNT",
        MODEL,
        COMPUTE | RUN,
        "Most adapters in memory; those not in use are read again when asked for [default: --max-loras]",
    ),
    one(
        "max-lora-rank",
        Some("16"),
        "RANK",
        MODEL,
        COMPUTE | RUN,
        "Highest rank of an adapter; sets its memory",
    ),
    switch(
        "allow-runtime-lora-updating",
        "false",
        MODEL,
        FRONT | COMPUTE | RUN,
        "Let clients load and unload adapters (/v1/load_lora_adapter, /v1/unload_lora_adapter): trusted clients only",
    ),
    switch(
        "allow-runtime-model-updating",
        "false",
        MODEL,
        SERVE,
        "Let clients replace the model and pause generation (/update_weights_from_disk, /update_weights, /pause): trusted clients only; SIGHUP needs no flag",
    ),
    same_on_nodes(
        "/scheduler/max_model_len",
        one(
            "max-model-len",
            None,
            "TOKENS",
            MODEL,
            COMPUTE | RUN,
            "Most tokens of prompt and output together [default: the model's]",
        ),
    ),
    tokens(one(
        "tokenizer",
        None,
        "DIR",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Directory of the tokenizer's files and the chat template [default: the model's]",
    )),
    tokens(one(
        "chat-template",
        None,
        "FILE",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "File with a chat template, or the template itself [default: the model's]",
    )),
    tokens(one(
        "default-chat-template-kwargs",
        None,
        "JSON",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Default arguments of the chat template, for example {\"enable_thinking\": false}; a request's own override them",
    )),
    tokens(one(
        "tool-call-parser",
        None,
        "NAME",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Tool-call format of the model, by vLLM's name: hermes, qwen3_coder, llama3_json, mistral, … [default: detected from the chat template]",
    )),
    tokens(one(
        "reasoning-parser",
        None,
        "NAME",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Reasoning format of the model, by vLLM's name: qwen3, deepseek_r1, mistral, … [default: detected from the chat template]",
    )),
    tokens(switch(
        "structured-outputs-whitespace",
        "true",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Allow white space between the tokens of JSON that follows a schema. Equal on all routers",
    )),
    tokens(switch(
        "structured-outputs-additional-properties",
        "true",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Let objects whose schema lists properties have others where it does not say additionalProperties. Equal on all routers",
    )),
    tokens(one(
        "generation-config",
        Some("auto"),
        "SOURCE",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Defaults of sampling parameters: auto (the model's generation_config.json), none, or another directory",
    )),
    tokens(one(
        "override-generation-config",
        None,
        "JSON",
        MODEL,
        FRONT | RUN | RUN_BATCH,
        "Fields that replace those of generation_config.json, for example {\"temperature\": 0.5}",
    )),
    one("host", Some("127.0.0.1"), "HOST", API, FRONT, "Address to listen on"),
    one("port", Some("8000"), "PORT", API, FRONT, "Port of the HTTP and gRPC APIs; 0 = any free one"),
    secret(many(
        "api-key",
        "KEY",
        API,
        FRONT,
        "Key that clients must send; may be given several times [default: open to all]",
    )),
    tokens(secret(one(
        "admin-api-key",
        None,
        "KEY",
        API,
        FRONT,
        "Key that also loads adapters and replaces the model; without it, an --api-key does neither [default: none]",
    ))),
    one(
        "api-keys-file",
        None,
        "FILE",
        API,
        FRONT,
        "TOML file of keys with tenant, limits, models and expiry each (skein keys new); read again when it changes [default: none]",
    ),
    one(
        "usage-log",
        None,
        "FILE",
        API,
        FRONT,
        "Append a line of JSON with the tokens of each request to this file, which may be rotated [default: none]",
    ),
    many(
        "allowed-origins",
        "ORIGIN",
        API,
        FRONT,
        "Origins whose web pages may call the API, for example https://chat.example.org; * = all [default: none]",
    ),
    tokens(switch(
        "refuse-unknown-fields",
        "false",
        API,
        FRONT,
        "Refuse request fields that no API has, rather than list them in the answer's x-ignored-params",
    )),
    tokens(one(
        "batch-dir",
        None,
        "DIR",
        API,
        FRONT,
        "Directory for clients' files and batches (/v1/files, /v1/batches); each router needs its own [default: disabled]",
    )),
    tokens(one(
        "max-batch-files-per-key",
        Some("2000"),
        "N",
        API,
        FRONT,
        "Most uploaded files of one API key",
    )),
    tokens(one(
        "max-batches-per-key",
        Some("2000"),
        "N",
        API,
        FRONT,
        "Most batches of one API key; the oldest ended one is forgotten for a new one",
    )),
    tokens(one(
        "max-batch-bytes-per-key",
        Some("20GiB"),
        "BYTES",
        API,
        FRONT,
        "Uploads are refused while the files of their API key, results included, would have more bytes",
    )),
    tokens(one(
        "max-batch-bytes",
        Some("100GiB"),
        "BYTES",
        API,
        FRONT,
        "Uploads are refused while all files in --batch-dir would have more bytes",
    )),
    tokens(one(
        "endpoint-port",
        None,
        "PORT",
        API,
        ROUTER,
        "Act as an endpoint picker for Envoy (ext_proc): return the workers' hosts with this port [default: disabled]",
    )),
    tokens(switch(
        "follow-picks",
        "false",
        API,
        ROUTER,
        "Run requests on the worker that an endpoint picker names in the header x-skein-worker",
    )),
    one(
        "root-path",
        None,
        "PATH",
        API,
        FRONT,
        "Also serve the API under this path, for a proxy that forwards its own path",
    ),
    one(
        "metrics-port",
        None,
        "PORT",
        API,
        NODES,
        "Serve /metrics and health (/livez, /readyz, /health) on this port, in plain HTTP without keys; /metrics then leaves the main port [default: the main port has them]",
    ),
    one("metrics-host", None, "HOST", API, NODES, "Address of --metrics-port [default: the main port's]"),
    one(
        "listen",
        Some("127.0.0.1:9000"),
        "HOST:PORT",
        API,
        WORKER,
        "Address of the worker's gRPC service; port 0 = any free one",
    ),
    one(
        "tls-cert",
        None,
        "FILE",
        TLS,
        NODES,
        "PEM file of the certificate that this process shows to clients, with its issuers; the port then speaks HTTPS",
    ),
    one("tls-key", None, "FILE", TLS, NODES, "PEM file of its private key [default: --tls-cert has it]"),
    one(
        "tls-client-ca",
        None,
        "FILE",
        TLS,
        NODES,
        "PEM file of the CA whose certificates clients must show [default: clients need none]",
    ),
    one(
        "tls-client-certs",
        Some("required"),
        "KIND",
        TLS,
        NODES,
        "With --tls-client-ca: whether clients must show a certificate: required, optional or none",
    ),
    one(
        "workers",
        None,
        "N",
        ENGINE,
        SERVE | RUN_BATCH,
        "Number of worker processes [default: 2; with GPUs, one per GPU]",
    ),
    many(
        "routers",
        "HOST:PORT",
        ROUTERS,
        GATEWAY,
        "Addresses of the routers (their --host and --port), separated by commas",
    ),
    secret(many("router-api-key", "KEY", ROUTERS, GATEWAY, "API key of the routers, if they require one")),
    one(
        "policy",
        Some("first_token"),
        "NAME",
        ROUTERS,
        FRONT,
        "Routing policy: first_token (shortest predicted time to it), product, least_load, power_of_two, round_robin, consistent_hash",
    ),
    tokens(many(
        "workers",
        "HOST:PORT",
        ENGINE,
        ROUTER,
        "Addresses of the workers, separated by commas; or use --discovery",
    )),
    many(
        "worker-urls",
        "URL",
        UPSTREAM,
        ROUTER,
        "Route to servers that speak the OpenAI API instead (vLLM, llama.cpp, TGI, …) or, as grpc://HOST:PORT, KServe v2 (Triton), by their URLs, separated by commas; dns+http://NAME:PORT means each address of the name; needs no model",
    ),
    secret(one(
        "worker-api-key",
        None,
        "KEY",
        UPSTREAM,
        ROUTER,
        "With --worker-urls: API key of the workers [default: the client's key is passed on, unless --api-key is set]",
    )),
    one(
        "worker-ca",
        None,
        "FILE",
        UPSTREAM,
        ROUTER,
        "With --worker-urls: PEM file with the certificates to trust for https:// URLs [default: the system's]",
    ),
    switch(
        "resume-by-text",
        "false",
        UPSTREAM,
        ROUTER,
        "With --worker-urls: let another worker continue the streams of a lost one by their text, which is not exact; the header x-skein-resume decides for one request",
    ),
    one(
        "first-byte-timeout",
        Some("300s"),
        "TIME",
        UPSTREAM,
        ROUTER,
        "With --worker-urls: a worker that has not begun to answer a streaming request by then has failed it",
    ),
    one(
        "stall-timeout",
        Some("60s"),
        "TIME",
        UPSTREAM,
        ROUTER,
        "With --worker-urls: a stream that is silent for this long has failed",
    ),
    one(
        "cluster-ca",
        None,
        "FILE",
        CLUSTER,
        NODES,
        "PEM file of the cluster's CA: gateways, routers and workers speak mutual TLS with each other (see skein certs)",
    ),
    one(
        "cluster-cert",
        None,
        "FILE",
        CLUSTER,
        NODES,
        "PEM file of this node's certificate, issued by --cluster-ca",
    ),
    one("cluster-key", None, "FILE", CLUSTER, NODES, "PEM file of its private key"),
    one(
        "cluster-secret-file",
        None,
        "FILE",
        CLUSTER,
        NODES,
        "File with a secret that all gateways, routers and workers share, where TLS is not wanted or in addition",
    ),
    secret(one(
        "cluster-secret",
        None,
        "SECRET",
        CLUSTER,
        NODES,
        "The secret itself; better in SKEIN_CLUSTER_SECRET or a file, because other users can see command lines",
    )),
    switch(
        "insecure-cluster",
        "false",
        CLUSTER,
        SERVE | WORKER,
        "Let a worker listen on the network without certificates or a secret: anyone who reaches it can use it",
    ),
    tokens(one(
        "discovery",
        None,
        "SOURCE",
        CLUSTER,
        ROUTER | WORKER | DOCTOR,
        "Where routers find workers: etcd://host:2379[,host:2379][/cluster], etcds:// for TLS, dns://name:port (routers only)",
    )),
    one(
        "advertise",
        None,
        "HOST:PORT",
        CLUSTER,
        WORKER,
        "Address to publish in etcd for routers [default: that of --listen]",
    ),
    one(
        "worker-id",
        None,
        "NAME",
        CLUSTER,
        WORKER,
        "Name in etcd, unique for each worker [default: its address]",
    ),
    one(
        "etcd-lease-ttl",
        Some("10s"),
        "TIME",
        CLUSTER,
        WORKER,
        "How long a worker's entry in etcd survives without a keep-alive",
    ),
    tokens(one("etcd-user", None, "NAME", CLUSTER, ROUTER | WORKER | DOCTOR, "User name for etcd")),
    tokens(one(
        "etcd-password-file",
        None,
        "FILE",
        CLUSTER,
        ROUTER | WORKER | DOCTOR,
        "File with the password of --etcd-user",
    )),
    tokens(one(
        "etcd-ca",
        None,
        "FILE",
        CLUSTER,
        ROUTER | WORKER | DOCTOR,
        "Authority that signed etcd's certificates (PEM); for etcds://",
    )),
    tokens(one(
        "etcd-cert",
        None,
        "FILE",
        CLUSTER,
        ROUTER | WORKER | DOCTOR,
        "Client certificate (PEM), if etcd requires one",
    )),
    tokens(one(
        "etcd-key",
        None,
        "FILE",
        CLUSTER,
        ROUTER | WORKER | DOCTOR,
        "Private key of --etcd-cert (PEM)",
    )),
    same_on_nodes(
        "/ranks/tensor_parallel",
        one(
            "tensor-parallel-size",
            Some("1"),
            "N",
            ENGINE,
            SERVE | WORKER | RUN_BATCH,
            "Processes (ranks) that share each layer of a worker's model, each with a GPU on GPUs; a power of two",
        ),
    ),
    same_on_nodes(
        "/ranks/pipeline_parallel",
        one(
            "pipeline-parallel-size",
            Some("1"),
            "N",
            ENGINE,
            SERVE | WORKER | RUN_BATCH,
            "Stages that divide the layers of a worker's model, each with --tensor-parallel-size ranks",
        ),
    ),
    one(
        "nnodes",
        None,
        "N",
        ENGINE,
        SERVE | WORKER,
        "Number of machines that hold a worker's ranks; each runs skein worker [default: LWS_GROUP_SIZE, else 1]",
    ),
    one(
        "node-rank",
        None,
        "N",
        ENGINE,
        SERVE | WORKER,
        "Number of this machine among --nnodes; 0 leads [default: LWS_WORKER_INDEX, else 0]",
    ),
    one(
        "leader",
        None,
        "HOST:PORT",
        ENGINE,
        SERVE | WORKER,
        "Address where machine 0 waits for the others [default: LWS_LEADER_ADDRESS with port 9801]",
    ),
    secret(one(
        "group-secret",
        None,
        "SECRET",
        ENGINE,
        SERVE | WORKER,
        "Shared secret of a worker's machines; required unless --leader is this machine",
    )),
    switch(
        "plan",
        "false",
        ENGINE,
        SERVE | WORKER,
        "Print the memory that each rank of a worker would need, and exit; with --device cuda from the first GPU's memory",
    ),
    one(
        "threads",
        None,
        "N",
        ENGINE,
        COMPUTE | RUN,
        "Compute threads of each worker, shared by its ranks; 0 = the default [default: an even share of the cores]",
    ),
    one(
        "device",
        Some("auto"),
        "DEVICE",
        ENGINE,
        COMPUTE | RUN,
        "Device that computes: auto (a GPU if usable, else the CPU), cpu, cuda, cuda:N, or fake (no model; for tests)",
    ),
    same_on_nodes(
        "/scheduler/max_num_seqs",
        one(
            "max-num-seqs",
            None,
            "N",
            ENGINE,
            COMPUTE,
            "Most sequences that a worker runs at once [default: 128; on a GPU 256]",
        ),
    ),
    same_on_nodes(
        "/scheduler/max_num_batched_tokens",
        one(
            "max-num-batched-tokens",
            None,
            "TOKENS",
            ENGINE,
            COMPUTE,
            "Most tokens in one step [default: 512; on a GPU 8192]",
        ),
    ),
    same_on_nodes(
        "/scheduler/block_size",
        one("block-size", Some("16"), "TOKENS", ENGINE, COMPUTE, "Tokens in a block of the KV cache"),
    ),
    same_on_nodes(
        "/kv_cache_memory_bytes",
        one(
            "kv-cache-memory-bytes",
            None,
            "BYTES",
            ENGINE,
            COMPUTE | RUN,
            "KV cache of each worker, for example 2GiB [default: from the model and free memory; on a GPU all that is left]",
        ),
    ),
    same_on_nodes(
        "/precision/dtype",
        one(
            "dtype",
            Some("auto"),
            "TYPE",
            ENGINE,
            COMPUTE | RUN,
            "Type of activations: auto (that of the weights), bfloat16, or float32 (no rounding; CPU only)",
        ),
    ),
    same_on_nodes(
        "/precision/quantization",
        one(
            "quantization",
            None,
            "METHOD",
            ENGINE,
            COMPUTE | RUN,
            "Convert the weights at load: int8 or int4, on a GPU also fp8 [default: keep their format]",
        ),
    ),
    same_on_nodes(
        "/precision/kv_cache_dtype",
        one(
            "kv-cache-dtype",
            Some("auto"),
            "TYPE",
            ENGINE,
            COMPUTE | RUN,
            "Type of cached keys and values: auto (that of the activations); on the CPU float32, bfloat16, float16, int8 or fp8; on a GPU fp8",
        ),
    ),
    one(
        "packed-cache-dir",
        None,
        "DIR",
        ENGINE,
        COMPUTE | RUN,
        "Directory that keeps weights repacked for the CPU between starts, or none [default: skein/packed in the user's cache]",
    ),
    switch("enable-prefix-caching", "true", ENGINE, COMPUTE, "Reuse the KV cache of equal prompt prefixes"),
    one(
        "speculate",
        Some("auto"),
        "FROM",
        ENGINE,
        COMPUTE | RUN,
        "Verify several guessed tokens in a step where that is faster; answers stay the same: auto, off, guesses from the text itself (ngram), from finished texts too (suffix), or also from a smaller model (its directory or GGUF file; CPU only). On GPUs only with --batch-invariant",
    ),
    one(
        "gpu-memory-utilization",
        Some("0.9"),
        "SHARE",
        GPU,
        COMPUTE | RUN,
        "Share of the GPU's memory to use, including what other processes use",
    ),
    one(
        "load-format",
        Some("auto"),
        "FORMAT",
        GPU,
        COMPUTE | RUN,
        "Weights: auto (the model's) or dummy (random, generated on the GPU in the codes that config.json describes; for benchmarks)",
    ),
    switch(
        "batch-invariant",
        "false",
        GPU,
        COMPUTE | RUN,
        "Compute the same bits whatever else is in a batch, at some cost in speed; always so on the CPU",
    ),
    switch("enforce-eager", "false", GPU, COMPUTE | RUN, "Launch kernels one by one, without CUDA graphs"),
    switch(
        "disable-custom-all-reduce",
        "false",
        GPU,
        COMPUTE | RUN,
        "Sum between GPUs by NCCL only, not through their memory; the bits are the same",
    ),
    same_on_nodes(
        "/cuda/step_timeout",
        one(
            "step-timeout",
            Some("30s"),
            "TIME",
            GPU,
            COMPUTE | RUN,
            "A step that takes longer means a stuck GPU: the worker is restarted, its requests continue on others",
        ),
    ),
    one(
        "fake-step-time",
        None,
        "TIME",
        FAKE,
        WORKER,
        "With --device fake: fixed time of a step, for example 5ms [default: none]",
    ),
    one(
        "fake-token-time",
        None,
        "TIME",
        FAKE,
        WORKER,
        "With --device fake: time of each token of a step, for example 40us [default: none]",
    ),
    one(
        "fake-context-time",
        None,
        "TIME",
        FAKE,
        WORKER,
        "With --device fake: time of each thousand tokens of context that a step reads [default: none]",
    ),
    one(
        "fake-kv-blocks",
        None,
        "N",
        FAKE,
        WORKER,
        "With --device fake: blocks of the KV cache [default: those of a small model]",
    ),
    one(
        "fake-workers",
        Some("1"),
        "N",
        FAKE,
        WORKER,
        "With --device fake: workers in this process, at the port of --listen and those after it",
    ),
    one(
        "max-num-queued-reqs",
        Some("1024"),
        "N",
        LIMITS,
        FRONT | WORKER,
        "Most requests running or waiting; further ones are refused with 429",
    ),
    tokens(one(
        "max-num-queued-tokens",
        Some("4m"),
        "TOKENS",
        LIMITS,
        FRONT,
        "Most prompt and expected output tokens running or waiting",
    )),
    one(
        "timeout-keep-alive",
        Some("75s"),
        "TIME",
        LIMITS,
        FRONT,
        "How long a client's connection without a request stays open; longer than a proxy in front keeps it",
    ),
    one(
        "connection-threads",
        None,
        "N",
        LIMITS,
        FRONT,
        "Threads that serve connections, each with an event loop and connections to the workers of its own [default: one for each processor, at most 8]",
    ),
    one(
        "max-connections",
        Some("16384"),
        "N",
        LIMITS,
        FRONT,
        "Most connections of clients at once, within the file descriptors that the system allows; further ones wait",
    ),
    one(
        "max-connections-per-ip",
        Some("0"),
        "N",
        LIMITS,
        FRONT,
        "Most connections of one client's address; further ones are closed at once. 0 = no limit, as behind a proxy, where all clients have its address",
    ),
    one(
        "migration-limit",
        Some("3"),
        "N",
        LIMITS,
        FRONT,
        "Most moves of a request to another worker without progress",
    ),
    one(
        "worker-timeout",
        Some("5s"),
        "TIME",
        LIMITS,
        FRONT,
        "A worker that is silent for this long is lost: its requests continue on others",
    ),
    tokens(one(
        "wedge-timeout",
        None,
        "TIME",
        LIMITS,
        FRONT,
        "A worker whose engine makes no progress for this long is lost [default: 5s, longer if its steps take long]",
    )),
    tokens(one(
        "stream-linger",
        Some("10s"),
        "TIME",
        LIMITS,
        FRONT,
        "How long a worker continues a request whose router is gone; 0s = abort immediately",
    )),
    one(
        "queue-timeout",
        Some("30s"),
        "TIME",
        LIMITS,
        FRONT,
        "How long a request waits while all workers are full, or while none is ready after one was; then it gets 429 or 503",
    ),
    one(
        "max-index-bytes",
        Some("256MiB"),
        "BYTES",
        LIMITS,
        FRONT,
        "Memory for the index of which worker caches which prompt prefix",
    ),
    tokens(one(
        "max-logprobs",
        Some("20"),
        "N",
        LIMITS,
        FRONT,
        "Most log-probabilities per token that a request may ask for",
    )),
    one("request-timeout", Some("1h"), "TIME", LIMITS, FRONT, "Longest time a request may take"),
    one(
        "shutdown-timeout",
        Some("120s"),
        "TIME",
        LIMITS,
        FRONT | WORKER,
        "How long running requests may finish after Ctrl-C",
    ),
    one(
        "drain-grace",
        Some("5s"),
        "TIME",
        LIMITS,
        WORKER,
        "How long after Ctrl-C a worker keeps its requests before others take them over, if any can; 0s = not at all",
    ),
    one("temperature", None, "T", SAMPLING, RUN, "0 = always the most likely token [default: the model's]"),
    one(
        "top-p",
        None,
        "P",
        SAMPLING,
        RUN,
        "Sample from the most likely tokens that make up this probability",
    ),
    one("top-k", None, "K", SAMPLING, RUN, "Sample from this many most likely tokens"),
    one(
        "min-p",
        None,
        "P",
        SAMPLING,
        RUN,
        "Drop tokens below this share of the most likely token's probability",
    ),
    one("repetition-penalty", None, "X", SAMPLING, RUN, "Above 1 = repeat less"),
    one("presence-penalty", None, "X", SAMPLING, RUN, "Above 0 = prefer tokens not used yet"),
    one("frequency-penalty", None, "X", SAMPLING, RUN, "Above 0 = prefer tokens used less often"),
    one("seed", None, "N", SAMPLING, RUN, "The same seed gives the same answer"),
    tokens(one(
        "seed",
        None,
        "N",
        MODEL,
        FRONT,
        "Seed of requests without one: equal requests get equal answers [default: random for each request]",
    )),
    one("max-tokens", None, "N", SAMPLING, RUN, "Longest answer, in tokens [default: what fits]"),
    many("stop", "TEXT", SAMPLING, RUN, "End the answer at this text; may be given several times"),
    one("system", None, "TEXT", SAMPLING, RUN, "System message"),
    switch("raw", "false", SAMPLING, RUN, "Continue the prompt as it is, without the chat template"),
    one("config", None, "FILE", PROCESS, ALL, "TOML file with settings, named like these flags"),
    one(
        "log-level",
        None,
        "LEVEL",
        PROCESS,
        ALL,
        "error, warn, info, debug, trace or a filter [default: RUST_LOG, else info, for serve on a terminal warn and request lines]",
    ),
    one("log-format", Some("human"), "FORMAT", PROCESS, ALL, "human or json"),
    one(
        "otlp-endpoint",
        None,
        "URL",
        TRACES,
        TRACED,
        "OTLP collector of traces and gen_ai metrics [default: OTEL_EXPORTER_OTLP_ENDPOINT, else none]",
    ),
    tokens(one(
        "otlp-traces-endpoint",
        None,
        "URL",
        TRACES,
        TRACED,
        "OTLP collector of traces only, with the whole path",
    )),
    one(
        "otlp-protocol",
        None,
        "PROTOCOL",
        TRACES,
        TRACED,
        "grpc or http/protobuf [default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc]",
    ),
    one(
        "otlp-ca",
        None,
        "FILE",
        TRACES,
        TRACED,
        "PEM file: the CA of an https:// collector [default: OTEL_EXPORTER_OTLP_CERTIFICATE, else the system's CAs]",
    ),
    one(
        "otlp-cert",
        None,
        "FILE",
        TRACES,
        TRACED,
        "PEM file of a certificate to show an https:// collector [default: OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, else none]",
    ),
    one(
        "otlp-key",
        None,
        "FILE",
        TRACES,
        TRACED,
        "PEM file of the private key of --otlp-cert [default: --otlp-cert has it]",
    ),
    one(
        "trace-ratio",
        None,
        "RATIO",
        TRACES,
        TRACED,
        "Fraction of requests to sample unless the caller decides, 0 to 1 [default: OTEL_TRACES_SAMPLER, else 0.05]",
    ),
    one(
        "trace-slow",
        Some("10s"),
        "TIME",
        TRACES,
        TRACED,
        "Also keep unsampled traces of requests that wait this long for a token",
    ),
];

const fn one(
    name: &'static str,
    default: Option<&'static str>,
    value: &'static str,
    group: &'static str,
    commands: u8,
    help: &'static str,
) -> Flag {
    Flag {
        key: Key { name, kind: Kind::One, default, secret: false },
        value,
        group,
        commands,
        help,
        needs_tokens: false,
        same_on_nodes: None,
    }
}

const fn many(
    name: &'static str,
    value: &'static str,
    group: &'static str,
    commands: u8,
    help: &'static str,
) -> Flag {
    Flag {
        key: Key { name, kind: Kind::Many, default: None, secret: false },
        value,
        group,
        commands,
        help,
        needs_tokens: false,
        same_on_nodes: None,
    }
}

/// Marks a setting whose values are printed as stars.
const fn secret(flag: Flag) -> Flag {
    Flag { key: Key { secret: true, ..flag.key }, ..flag }
}

/// Marks a setting about text, tokens or our own workers.
const fn tokens(flag: Flag) -> Flag {
    Flag { needs_tokens: true, ..flag }
}

/// Marks a setting whose value at `pointer` of a worker's configuration must be equal on all nodes of a
/// group.
const fn same_on_nodes(pointer: &'static str, flag: Flag) -> Flag {
    Flag { same_on_nodes: Some(pointer), ..flag }
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
        needs_tokens: false,
        same_on_nodes: None,
    }
}
