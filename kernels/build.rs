//! Embeds the CUDA kernels: always their sources, and one fatbin each if an nvcc of CUDA 13 is found.
//!
//! nvcc is looked for in `NVCC`, then on `PATH`, then in the Python environment `VIRTUAL_ENV` (NVIDIA's
//! wheels). Without it nothing is lost but time: the binary compiles the sources with NVRTC when it first
//! starts. `SKEIN_CUDA_TARGETS=90a` compiles for some targets only, which takes a fraction of the time.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Architectures in a fatbin: a name for `SKEIN_CUDA_TARGETS`, and nvcc's. A cubin runs on later minor
/// versions of its own major version, an `a` one only on its exact version: sm_80 serves 8.0, 8.6 and 8.7,
/// sm_89 has FP8 conversions, sm_90a has wgmma, sm_100 is Blackwell in data centres (10.0 and 10.3; no kernel
/// uses what only sm_100a has). PTX for 8.0 is left out, because every device it could serve has a cubin. The
/// driver compiles the PTX for 9.0 on later devices (11.0, 12.0).
const TARGETS: [(&str, &str); 5] = [
    ("80", "arch=compute_80,code=sm_80"),
    ("89", "arch=compute_89,code=sm_89"),
    ("90a", "arch=compute_90a,code=sm_90a"),
    ("100", "arch=compute_100,code=sm_100"),
    ("90-ptx", "arch=compute_90,code=compute_90"),
];
/// Names of targets, separated by commas; all if unset.
const TARGETS_VARIABLE: &str = "SKEIN_CUDA_TARGETS";
/// fatbinary's compression requires a driver version that the kernels require anyway.
const FLAGS: &[&str] = &["-std=c++17", "-O3", "--compress-mode=size", "--fatbin"];
const MIN_NVCC: (u32, u32) = (13, 0);

fn main() {
    for variable in ["NVCC", "VIRTUAL_ENV", TARGETS_VARIABLE] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    println!("cargo:rerun-if-changed=cu");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let sources = Sources::read(&root.join("cu"));
    let targets = targets().unwrap_or_else(|why| fail(&why));
    let nvcc = find_nvcc().unwrap_or_else(|why| fail(&why));
    match &nvcc {
        Some(nvcc) => compile_all(nvcc, &targets, &sources, &out).unwrap_or_else(|why| fail(&why)),
        None => sources.kernels.iter().for_each(|kernel| write(&fatbin(&out, kernel), b"")),
    }
    let release = nvcc.as_ref().and_then(Nvcc::release).unwrap_or((0, 0));
    write(&out.join("images.rs"), table(&sources, &targets, release).as_bytes());
}

/// The targets that `SKEIN_CUDA_TARGETS` names, in the table's order.
fn targets() -> Result<Vec<(&'static str, &'static str)>, String> {
    let named = std::env::var(TARGETS_VARIABLE).unwrap_or_default();
    let names: Vec<&str> = named.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if let Some(unknown) = names.iter().find(|name| TARGETS.iter().all(|target| target.0 != **name)) {
        let known = TARGETS.map(|target| target.0).join(", ");
        return Err(format!("{TARGETS_VARIABLE}={named}: there is no target {unknown}, only {known}"));
    }
    let chosen = TARGETS.into_iter().filter(|target| names.is_empty() || names.contains(&target.0));
    Ok(chosen.collect())
}

/// Ends the build with one line instead of a panic's backtrace.
fn fail(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1)
}

fn write(path: &Path, content: &[u8]) {
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return; // keeps the modification time, so that dependents are not recompiled
    }
    std::fs::write(path, content).unwrap_or_else(|error| fail(&format!("{}: {error}", path.display())));
}

struct Sources {
    headers: Vec<PathBuf>,
    kernels: Vec<PathBuf>,
}

impl Sources {
    fn read(folder: &Path) -> Self {
        let entries =
            std::fs::read_dir(folder).unwrap_or_else(|error| fail(&format!("{}: {error}", folder.display())));
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        let of = |extension: &str| -> Vec<PathBuf> {
            paths.iter().filter(|path| path.extension().is_some_and(|it| it == extension)).cloned().collect()
        };
        Self { headers: of("cuh"), kernels: of("cu") }
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn fatbin(out: &Path, kernel: &Path) -> PathBuf {
    out.join(stem(kernel)).with_extension("fatbin")
}

/// Rust source of the two tables included by `src/cuda/images.rs`. Folders are named by variables, which
/// rustc tracks, so that a target directory can be used from another checkout.
fn table(sources: &Sources, targets: &[(&str, &str)], release: (u32, u32)) -> String {
    let source = |name: &str| format!(r#"include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cu/{name}"))"#);
    let names = targets.iter().map(|target| target.0).collect::<Vec<_>>().join(", ");
    let mut text = format!("pub(super) const TARGETS: &str = {names:?};\n");
    let _ = writeln!(text, "pub(super) const NVCC_RELEASE: (u32, u32) = {release:?};");
    text += "pub(super) const HEADERS: &[Header] = &[\n";
    for header in &sources.headers {
        let name = format!("{}.cuh", stem(header));
        let _ = writeln!(text, "    Header {{ name: {name:?}, source: {} }},", source(&name));
    }
    text += "];\npub(super) const KERNELS: &[Image] = &[\n";
    for kernel in &sources.kernels {
        let name = format!("{}.cu", stem(kernel));
        let image = format!(r#"*include_bytes!(concat!(env!("OUT_DIR"), "/{}.fatbin"))"#, stem(kernel));
        let fatbin = format!("&Aligned({image})");
        let _ =
            writeln!(text, "    Image {{ name: {name:?}, source: {}, fatbin: {fatbin} }},", source(&name));
    }
    text + "];\n"
}

struct Nvcc {
    path: PathBuf,
    version: String,
}

/// Finds nvcc. An unusable `NVCC` is an error; other candidates that are too old are skipped.
fn find_nvcc() -> Result<Option<Nvcc>, String> {
    if let Some(path) = std::env::var_os("NVCC").filter(|path| !path.is_empty()).map(PathBuf::from) {
        let nvcc = Nvcc::at(path.clone()).ok_or_else(|| {
            format!("NVCC={} does not run; unset it or name CUDA 13's nvcc", path.display())
        })?;
        if nvcc.release() < Some(MIN_NVCC) {
            return Err(format!(
                "NVCC={} is older than CUDA 13.0; unset it or name a newer one",
                path.display()
            ));
        }
        return Ok(Some(nvcc));
    }
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path).map(|folder| folder.join("nvcc")).collect::<Vec<_>>();
    let found = on_path.into_iter().chain(in_python_environment()).filter(|path| path.is_file());
    Ok(found.filter_map(Nvcc::at).find(|nvcc| nvcc.release() >= Some(MIN_NVCC)))
}

fn in_python_environment() -> Option<PathBuf> {
    let library = PathBuf::from(std::env::var_os("VIRTUAL_ENV")?).join("lib");
    let pythons = std::fs::read_dir(library).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    pythons.map(|python| python.join("site-packages/nvidia/cu13/bin/nvcc")).find(|path| path.is_file())
}

impl Nvcc {
    fn at(path: PathBuf) -> Option<Self> {
        let output =
            Command::new(&path).arg("--version").output().ok().filter(|output| output.status.success())?;
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(Self { path, version })
    }

    /// (13, 0) of "... release 13.0, V13.0.88".
    fn release(&self) -> Option<(u32, u32)> {
        let (_, rest) = self.version.split_once("release ")?;
        let (major, minor) = rest.split(',').next()?.split_once('.')?;
        Some((major.trim().parse().ok()?, minor.trim().parse().ok()?))
    }

    fn compile(&self, targets: &[(&str, &str)], kernel: &Path, to: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        command.args(FLAGS).args(targets.iter().map(|target| format!("-gencode={}", target.1)));
        let output = command.arg("-o").arg(to).arg(kernel).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// Compiles kernels whose inputs changed, as many at once as cargo allows.
fn compile_all(nvcc: &Nvcc, targets: &[(&str, &str)], sources: &Sources, out: &Path) -> Result<(), String> {
    let headers: String = sources.headers.iter().map(|path| read(path)).collect();
    let jobs = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1usize);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(kernel) = sources.kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
            compile_if_stale(nvcc, targets, kernel, &headers, out)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("compiling does not panic"))
    })
}

/// Recompiles a kernel if any of its inputs changed; they are stored beside the fatbin.
fn compile_if_stale(
    nvcc: &Nvcc,
    targets: &[(&str, &str)],
    kernel: &Path,
    headers: &str,
    out: &Path,
) -> Result<(), String> {
    let (to, note) = (fatbin(out, kernel), out.join(stem(kernel)).with_extension("inputs"));
    let codes = targets.iter().map(|target| target.1).collect::<Vec<_>>().join(" ");
    let made_from = [&nvcc.version, &FLAGS.join(" "), &codes, headers, &read(kernel)].join("\n");
    if to.metadata().is_ok_and(|it| it.len() > 0)
        && std::fs::read_to_string(&note).is_ok_and(|it| it == made_from)
    {
        return Ok(());
    }
    nvcc.compile(targets, kernel, &to)?;
    write(&note, made_from.as_bytes());
    Ok(())
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| fail(&format!("{}: {error}", path.display())))
}
