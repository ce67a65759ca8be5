//! A router before servers that speak the OpenAI API over HTTP (vLLM, llama.cpp, TGI and others) or KServe v2
//! over gRPC (Triton). It needs no model files.
//!
//! It passes requests and streams on as they are. `prompt` reads from a body only what a choice depends on,
//! `servers` and `prefixes` choose a worker, purely: what a worker caches is assumed from what was sent to
//! it. `exchange` sends one request and waits for the head of its response, `attempt` and `reading` are one
//! attempt, `forward` repeats it elsewhere, `stream` passes a response on and, on request, continues it by
//! `continuation` from its `transcript` if its worker is lost, as often as `moves` allows. `shared` is what
//! all requests need: the `servers`, the `link` to each, the counters. `health` checks the workers, `names`
//! follows the addresses of those given by a name, `tally` counts the tokens of an answer for limits and the
//! usage log. `pool` keeps connections, with TLS for `https`; to a server that speaks KServe v2, a connection
//! is a pipe to `kserve`, which translates.
//!
//! No code here tokenises. Of `skein_choice` it uses the policy, the breaker, the load in `ledger` and
//! receipts; of `skein_router` its `config`, `drain`, `refusal`, the loop of `serve` and the count of
//! refusals; of the `api` there what all HTTP shares, OpenAI's form of errors and the elements of KServe's
//! tensors.

mod answers;
mod attempt;
mod body;
mod config;
mod continuation;
mod events;
mod exchange;
mod forward;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod headers;
mod health;
mod kserve;
mod link;
mod metrics;
mod moves;
mod names;
mod pool;
mod prefixes;
mod prompt;
mod reading;
mod rights;
mod routes;
mod running;
mod serve;
mod servers;
mod shared;
mod stream;
mod tally;
mod transcript;
mod upstreams;
mod worker_url;

pub use config::UpstreamConfig;
pub use serve::serve;
pub use upstreams::Upstreams;
pub use worker_url::WorkerUrl;
