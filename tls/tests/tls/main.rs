//! The crate over files and loopback.

#![allow(clippy::unwrap_used, missing_docs)]

mod blocking;
mod files;
mod handshakes;
#[path = "../../../tests/src/pki.rs"]
mod pki;
mod ports;
