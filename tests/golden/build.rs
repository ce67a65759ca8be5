//! Does nothing: only crates with a build script have an `OUT_DIR`, where complete directories are kept.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
