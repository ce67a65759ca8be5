//! The whole model without cuBLASLt, with our own matrix kernels. A separate process, because a loaded
//! library stays loaded.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "cuda_model/models.rs"]
#[allow(dead_code)]
mod models;
#[path = "cuda_model/runs.rs"]
#[allow(dead_code)]
mod runs;
#[path = "cuda_model/scores.rs"]
mod scores;

use skein_kernels::cuda::{BlasLt, Device};
use skein_worker::backend::cuda::Fp8;

use models::{LLAMA, QWEN2};
use runs::{eager, on_cpu, on_cuda, on_cuda_in};
use scores::{TOLERANCE, compare, scores};

#[test]
fn a_model_runs_without_cublaslt() {
    if !skein_cuda_emulation::load_without_cublaslt() {
        return;
    }
    if BlasLt::open(&Device::open(0).unwrap()).unwrap().is_some() {
        eprintln!("SKIPPED: this machine has a cuBLASLt of its own");
        return;
    }
    for (name, tiny) in [("llama", LLAMA), ("qwen2, biases", QWEN2)] {
        let dir = tiny.make(7);
        let expected = scores(&mut on_cpu(dir.path()), &[39], false);
        let cuda = &mut on_cuda(dir.path(), eager());
        compare(&format!("{name} at once"), &scores(cuda, &[39], false), &expected, TOLERANCE);
        compare(&format!("{name} in chunks"), &scores(cuda, &[7, 1, 20, 1, 10], true), &expected, TOLERANCE);
    }
    fp8_weights_stay_near();
}

/// Weights with three bits of mantissa, unchanged activations.
fn fp8_weights_stay_near() {
    let dir = LLAMA.make(7);
    let expected = scores(&mut on_cpu(dir.path()), &[39], false);
    let fp8 = Fp8 { weights: true, kv_cache: false };
    let got = scores(&mut on_cuda_in(dir.path(), eager(), fp8).unwrap(), &[20, 19], true);
    let mean = got.iter().zip(&expected).map(|(a, b)| (a.logprob - b.logprob).abs()).sum::<f32>() / 39.0;
    assert!(mean < 0.15 && mean > 0.0, "log-probabilities differ by {mean} on average");
}
