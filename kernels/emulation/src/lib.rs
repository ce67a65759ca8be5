//! The CUDA driver API over kernels that run on the CPU, so that everything that talks to a GPU is tested without one.
//!
//! `cpp/emulation.h` runs the unchanged `kernels/cu/*.cu`, one fiber a CUDA thread; `cpp/driver.cpp` is a
//! `libcuda.so.1` around them. A process that finds it in place of NVIDIA's runs the same Rust code, call by call.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where the libraries lie: for `LD_LIBRARY_PATH` of other processes. `None` when there was no C++ compiler.
pub fn directory() -> Option<PathBuf> {
    let directory = env!("SKEIN_CUDA_EMULATION_DIR");
    (!directory.is_empty()).then(|| directory.into())
}

/// Makes this process find the emulation as `libcuda.so.1`. Says why not and returns false when there is none.
pub fn load() -> bool {
    static LOADED: OnceLock<bool> = OnceLock::new();
    *LOADED.get_or_init(|| {
        let Some(directory) = directory() else {
            eprintln!("SKIPPED: no CUDA emulation; install a C++ compiler (g++) and build again");
            return false;
        };
        load_from(&directory)
    })
}

fn load_from(directory: &Path) -> bool {
    // SAFETY: our own library; its constructors do nothing.
    let library = unsafe { libloading::Library::new(directory.join("libcuda.so.1")) };
    match library {
        // A library once loaded is found by its name from then on; it stays for the process's life.
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(error) => panic!("the CUDA emulation does not load: {error}"),
    }
}
