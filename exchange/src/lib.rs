//! Calls of `Generate` and `Attach` over one long-lived stream between a router and a worker (`Exchange` in
//! worker.proto). A call then costs frames in messages that many calls share, and no HTTP/2 stream of its
//! own.
//!
//! Each call has its own credit, so that a reader that stops holds up nothing but its own call: both ends
//! always read what the other sends. This crate moves no bytes and spawns no tasks: [`client`] and [`server`]
//! turn frames into calls and calls into frames, over gRPC or over a simulated network.

pub mod client;
pub mod limits;
pub mod metadata;
mod prompt;
pub mod server;
