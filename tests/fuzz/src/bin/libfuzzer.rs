//! All targets as one program for libFuzzer; `FUZZ_TARGET` names one. `FUZZ_SEEDS=DIR` writes its seeds and
//! ends. Built by `tests/fuzz/run`, with coverage.

#![no_main]
#![allow(unsafe_code)] // of the macro

use std::panic::catch_unwind;
use std::sync::{Once, OnceLock};

use skein_fuzz::{Target, target, targets};

fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let Some(target) = target(&name) else {
            for Target { name, about, .. } in targets() {
                println!("{name:<20}{about}");
            }
            std::process::exit(2);
        };
        if let Ok(directory) = std::env::var("FUZZ_SEEDS") {
            for (at, seed) in (target.seeds)().iter().enumerate() {
                let path = std::path::Path::new(&directory).join(format!("seed-{at:03}"));
                std::fs::write(path, seed).unwrap_or_else(|error| panic!("cannot write seeds: {error}"));
            }
            std::process::exit(0);
        }
        target
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Its hook ends the process at every panic, also where the product catches those of a library.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| drop(std::panic::take_hook()));
    if catch_unwind(|| (chosen().run)(data)).is_err() {
        std::process::abort();
    }
});
