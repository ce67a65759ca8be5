//! Compiles the kernels and the driver around them with the C++ compiler into `libcuda.so.1`.
//!
//! Without a C++ compiler the crate still builds, and its users skip what needs it. `SKEIN_CUDA_EMULATION_FLAGS` adds flags
//! (sanitizers, planted bugs).

use std::path::{Path, PathBuf};
use std::process::Command;

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
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    for group in sources.iter().zip(&objects).collect::<Vec<_>>().chunks(threads) {
        std::thread::scope(|scope| {
            let compile = |&(source, object): &(&PathBuf, &PathBuf)| {
                let mut command = base(&compiler);
                command.args(["-DSKEIN_EMULATED", "-Icpp", "-I../cu", "-x", "c++", "-c"]);
                run(command.arg(source).arg("-o").arg(object))
            };
            let running: Vec<_> = group.iter().map(|pair| scope.spawn(move || compile(pair))).collect();
            running
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| "compiling panicked".to_owned())?)
        })?;
    }
    let mut link = base(&compiler);
    link.args(["-shared", "-Wl,-soname,libcuda.so.1", "-ldl", "-o"]).arg(out.join("libcuda.so.1"));
    run(link.args(&objects))
}

fn base(compiler: &str) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-g", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas"]);
    if let Ok(flags) = std::env::var("SKEIN_CUDA_EMULATION_FLAGS") {
        command.args(flags.split_whitespace());
    }
    command
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    // A kernel that does not compile is an error of the source, not a missing tool.
    panic!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}
