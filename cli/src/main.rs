//! Skein.
fn main() {}
