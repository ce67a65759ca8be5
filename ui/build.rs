//! Compresses the page's files and writes the table of them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use xxhash_rust::xxh3::xxh3_64;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let page = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("page");
    println!("cargo:rerun-if-changed=page");
    let mut files = Vec::new();
    collect(&page, &page, &mut files);
    files.sort();
    let mut table = String::from("&[\n");
    for (at, name) in files.iter().enumerate() {
        println!("cargo:rerun-if-changed=page/{name}");
        let bytes = fs::read(page.join(name)).expect("the file can be read");
        // No time and no name inside, so that each build has the same bytes.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes).expect("memory takes it");
        fs::write(out.join(format!("{at}.gz")), encoder.finish().expect("memory takes it"))
            .expect("OUT_DIR is writable");
        let tag = format!("W/\\\"{:016x}\\\"", xxh3_64(&bytes));
        writeln!(
            table,
            "    (\"{name}\", \"{tag}\", include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{at}.gz\"))),"
        )
        .expect("memory takes it");
    }
    table.push(']');
    fs::write(out.join("files.rs"), table).expect("OUT_DIR is writable");
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("the page's folder is there") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("it is below").to_str().expect("ASCII names");
            files.push(name.replace('\\', "/"));
        }
    }
}
