//! Compiles the kernels and the driver around them with the C++ compiler into `libcuda.so.1`.
//!
//! Without a C++ compiler the crate still builds, and its users skip what needs it. `SKEIN_CUDA_EMULATION_FLAGS` adds flags
//! (sanitizers, planted bugs).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=../cu");
    println!("cargo:rerun-if-env-changed=CXX");
    println!("cargo:rerun-if-env-changed=SKEIN_CUDA_EMULATION_FLAGS");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    match build(&out) {
        Ok(()) => println!("cargo:rustc-env=SKEIN_CUDA_EMULATION_DIR={}", out.display()),
        Err(why) => {
            println!("cargo:rustc-env=SKEIN_CUDA_EMULATION_DIR=");
            println!("cargo:warning=no CUDA emulation, its tests will be skipped: {why}");
        }
    }
}

fn build(out: &Path) -> Result<(), String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    if let Err(error) = Command::new(&compiler).arg("--version").output() {
        return Err(format!("{compiler} does not run ({error}); install a C++ compiler"));
    }
    let mut sources: Vec<PathBuf> = std::fs::read_dir("../cu")
        .map_err(|error| error.to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    sources.sort();
    sources.push("cpp/driver.cpp".into());
    let objects: Vec<PathBuf> = sources
        .iter()
        .map(|source| out.join(source.file_stem().unwrap_or_default()).with_extension("o"))
        .collect();
    let newest_header = ["cpp", "../cu"].iter().filter_map(|folder| newest(folder, &["h", "cuh"])).max();
    let is_fresh = |source: &Path, object: &Path| {
        let made = modified(object);
        made.is_some() && made > modified(source) && made > newest_header && !flags_changed(out)
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    let stale: Vec<_> =
        sources.iter().zip(&objects).filter(|(source, object)| !is_fresh(source, object)).collect();
    for group in stale.chunks(threads) {
        let compile = &|source: &Path, object: &Path| {
            let mut command = base(&compiler);
            command.args(["-DSKEIN_EMULATED", "-Icpp", "-I../cu", "-x", "c++", "-c"]);
            run(command.arg(source).arg("-o").arg(object))
        };
        std::thread::scope(|scope| {
            let start = |&(source, object): &(&'_ PathBuf, &'_ PathBuf)| {
                let (source, object) = (source.clone(), object.clone());
                (object.clone(), scope.spawn(move || compile(&source, &object)))
            };
            for (object, thread) in group.iter().map(start).collect::<Vec<_>>() {
                if let Err(error) = thread.join().expect("compiling does not panic") {
                    // Its kernels are then not found, which fails every check that launches one.
                    let _ = std::fs::remove_file(object);
                    for line in error.lines().filter(|line| line.contains("error")).take(20) {
                        println!("cargo:warning={line}");
                    }
                }
            }
        });
    }
    let objects: Vec<PathBuf> = objects.into_iter().filter(|object| object.exists()).collect();
    std::fs::write(out.join("flags"), flags()).map_err(|error| error.to_string())?;
    let mut link = base(&compiler);
    link.args(["-shared", "-Wl,-soname,libcuda.so.1", "-ldl", "-o"]).arg(out.join("libcuda.so.1"));
    run(link.args(&objects))
}

fn flags() -> String {
    std::env::var("SKEIN_CUDA_EMULATION_FLAGS").unwrap_or_default()
}

fn flags_changed(out: &Path) -> bool {
    std::fs::read_to_string(out.join("flags")).unwrap_or_default() != flags()
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

fn newest(folder: &str, extensions: &[&str]) -> Option<SystemTime> {
    let paths = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let wanted = |path: &PathBuf| {
        path.extension().is_some_and(|it| extensions.iter().any(|extension| it == *extension))
    };
    paths.filter(wanted).filter_map(|path| modified(&path)).max()
}

fn base(compiler: &str) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-g", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas"]);
    command.args(flags().split_whitespace());
    command
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr)))
}
