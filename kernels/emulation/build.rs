//! Compiles the kernels with a C++ compiler and links them with the emulated driver to `libcuda.so.1`. Also
//! builds `libcublasLt.so.13`, `libnvrtc.so.13` and `libnccl.so.2`.
//!
//! Without a C++ compiler the crate still builds, and its users skip the tests that need it. `EMU_FLAGS` adds
//! flags (sanitizers). A file is recompiled if it or a file that it includes has changed, according to
//! `-MMD`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

/// Folders of C++ sources, library, and link arguments.
const LIBRARIES: [(&[&str], &str, &[&str]); 5] = [
    (&["../cu", "cpp/emulation", "cpp/driver", "cpp/selftest"], "libcuda.so.1", &[]),
    (&["cpp/cublaslt"], "libcublasLt.so.13", &["-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"]),
    (&["cpp/nvrtc"], "libnvrtc.so.13", &[]),
    (&["cpp/nccl"], "libnccl.so.2", &["-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"]),
    (&["cpp/nccl_old"], "libnccl-old.so.2", &[]),
];

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=../cu");
    println!("cargo:rerun-if-env-changed=CXX");
    println!("cargo:rerun-if-env-changed=EMU_FLAGS");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    match build(&out) {
        Ok(()) => println!("cargo:rustc-env=EMU_LIBRARIES={}", out.display()),
        Err(why) => {
            println!("cargo:rustc-env=EMU_LIBRARIES=");
            println!("cargo:warning=no CUDA emulation, its tests will be skipped: {why}");
        }
    }
}

fn build(out: &Path) -> Result<(), String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    if let Err(error) = Command::new(&compiler).arg("--version").output() {
        return Err(format!("{compiler} does not run ({error}); install a C++ compiler"));
    }
    let same_flags = std::fs::read_to_string(out.join("flags")).ok().as_deref() == Some(&flags());
    remove_objects(out, same_flags)?;
    std::fs::write(out.join("flags"), flags()).map_err(|error| error.to_string())?;
    for (folders, library, link_flags) in LIBRARIES {
        let sources =
            folders.iter().map(|folder| sources_in(folder)).collect::<Result<Vec<_>, _>>()?.concat();
        compile_all(&compiler, &sources, out);
        let objects = sources.iter().map(|source| object_of(source, out)).filter(|object| object.exists());
        let mut link = base(&compiler);
        link.arg("-shared").arg(format!("-Wl,-soname,{library}")).arg("-L").arg(out);
        run(link.args(objects).args(link_flags).arg("-o").arg(out.join(library)))?;
    }
    Ok(())
}

fn sources_in(folder: &str) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
    let is_source =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "cu" || extension == "cpp");
    let mut sources: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_source).collect();
    sources.sort();
    Ok(sources)
}

/// Path of the object file: `out/<folder>_<name>.o`.
fn object_of(source: &Path, out: &Path) -> PathBuf {
    let folder = source.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    out.join(format!("{folder}_{}.o", source.file_stem().unwrap_or_default().to_string_lossy()))
}

/// Compiles all sources. A kernel that does not compile is missing from the library, so every check that
/// launches it fails.
fn compile_all(compiler: &str, sources: &[PathBuf], out: &Path) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(source) = sources.get(next.fetch_add(1, Relaxed)) {
                    compile(compiler, source, &object_of(source, out));
                }
            });
        }
    });
}

fn compile(compiler: &str, source: &Path, object: &Path) {
    if is_fresh(object) {
        return;
    }
    let mut command = base(compiler);
    command.args(["-DSKEIN_EMULATED", "-Icpp", "-I../cu", "-MMD", "-x", "c++", "-c"]);
    let is_kernel = source.extension().is_some_and(|extension| extension == "cu");
    command.args(if is_kernel {
        ["-fvisibility=hidden", "-fno-gnu-unique"]
    } else {
        ["-O2", "-fno-gnu-unique"]
    });
    let made = run(command.arg(source).arg("-o").arg(object));
    if let Err(error) = made.and_then(|()| if is_kernel { isolate(object) } else { Ok(()) }) {
        let _ = std::fs::remove_file(object);
        for line in error.lines().filter(|line| line.contains("error")).take(20) {
            println!("cargo:warning={line}");
        }
    }
}

/// Makes every symbol of an object local unless the object exports it. nvcc compiles each file on its own,
/// but here device functions are inline: if two files have one of the same name, the linker would use one of
/// them for both files.
fn isolate(object: &Path) -> Result<(), String> {
    let joined = object.with_extension("joined");
    run(Command::new("ld").args(["-r", "--force-group-allocation", "-o"]).arg(&joined).arg(object))?;
    run(Command::new("objcopy").arg("--localize-hidden").arg(&joined).arg(object))?;
    std::fs::remove_file(joined).map_err(|error| error.to_string())
}

/// Whether `object` is newer than every file that it was built from.
fn is_fresh(object: &Path) -> bool {
    let (Some(made), Ok(rule)) = (modified(object), std::fs::read_to_string(object.with_extension("d")))
    else {
        return false;
    };
    let Some((_, inputs)) = rule.split_once(':') else { return false };
    let mut inputs = inputs.split_whitespace().filter(|word| *word != "\\");
    inputs.all(|input| modified(Path::new(input)).is_some_and(|changed| changed < made))
}

/// Removes the objects of deleted sources, or all objects.
fn remove_objects(out: &Path, keep_current: bool) -> Result<(), String> {
    let folders = LIBRARIES.iter().flat_map(|(folders, ..)| folders.iter());
    let sources = folders.map(|folder| sources_in(folder)).collect::<Result<Vec<_>, _>>()?.concat();
    let current: Vec<_> = sources.iter().map(|source| object_of(source, out)).collect();
    let entries = std::fs::read_dir(out).map_err(|error| error.to_string())?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is_object = path.extension().is_some_and(|extension| extension == "o");
        if is_object && !(keep_current && current.contains(&path)) {
            std::fs::remove_file(path).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

fn flags() -> String {
    std::env::var("EMU_FLAGS").unwrap_or_default()
}

/// With line numbers for sanitizers but no variables, which would take a quarter of the compiler's time.
fn base(compiler: &str) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-g1", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas"]);
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
