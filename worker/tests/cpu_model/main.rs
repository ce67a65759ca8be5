//! The model on the CPU backend: it agrees with transformers, and batch, chunks and threads never change a
//! bit.

#![allow(clippy::unwrap_used)] // a test may fail

mod adapters;
mod batches;
mod gguf;
mod golden;
mod goldens;
mod groups;
mod invariance;
mod latent;
mod long_context;
mod long_prompts;
mod made_adapters;
mod overlap;
mod pooling;
mod quantised;
mod rank_adapters;
mod ranks;
mod requests;
mod resume;
mod served_adapters;
mod speculation;
mod states;
mod windows;
