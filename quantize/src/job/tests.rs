//! Experts are calibrated with the rows that choose them.

use std::path::{Path, PathBuf};

use skein_kernels::cpu::matrix::{Storage, WeightMatrix};

use super::*;

/// Tiny models with experts, alone or fused, some beside a shared network.
const MIXTURES: [&str; 8] =
    ["qwen3-moe", "olmoe", "mixtral", "mixtral-v5", "qwen2-moe", "glm4-moe-v5", "ernie4-5-moe", "minimax-m2"];
/// The first layer of each that has experts.
const LAYERS: [usize; MIXTURES.len()] = [0, 0, 0, 0, 0, 1, 1, 0];

fn golden(name: &str) -> PathBuf {
    skein_golden::path(format!("models/{name}"))
}

/// Windows of 64 tokens that look random.
fn windows(count: usize, source: &Original) -> Vec<Vec<u32>> {
    let mut state = 7u64;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % source.spec.vocab_size
    };
    (0..count).map(|_| (0..64).map(|_| token()).collect()).collect()
}

fn with_job<T>(
    name: &str,
    scheme: &Scheme,
    count: usize,
    work: impl FnOnce(&mut Job<'_>, &Original) -> T,
) -> T {
    with_job_on(&golden(name), scheme, count, work)
}

/// A copy of a golden model in which some inputs of the experts are 16 times as large.
fn with_outliers(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden(name)).unwrap().map(Result::unwrap) {
        let mut bytes = std::fs::read(entry.path()).unwrap();
        if entry.path().extension().is_some_and(|end| end == "safetensors")
            && entry.file_name() != "goldens.safetensors"
        {
            let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            for (name, info) in metadata.tensors() {
                let norm = name.ends_with("post_attention_layernorm.weight").then(|| {
                    assert_eq!(info.dtype, safetensors::Dtype::BF16);
                    8 + header + info.data_offsets.0..8 + header + info.data_offsets.1
                });
                for value in bytes[norm.unwrap_or_default()].as_chunks_mut::<2>().0.iter_mut().step_by(17) {
                    let times_16 = u16::from_le_bytes(*value) + (4 << 7); // four more in the exponent
                    *value = times_16.to_le_bytes();
                }
            }
        }
        std::fs::write(copy.path().join(entry.file_name()), bytes).unwrap();
    }
    copy
}

fn with_job_on<T>(
    model: &Path,
    scheme: &Scheme,
    count: usize,
    work: impl FnOnce(&mut Job<'_>, &Original) -> T,
) -> T {
    let out = tempfile::tempdir().unwrap();
    let source = Original::open(model).unwrap();
    let calibration = windows(count, &source);
    let request = Request { model, out: out.path(), scheme, calibration: &calibration, hessian_bytes: None };
    work(&mut Job::new(&request, &source).unwrap(), &source)
}

fn nothing(_: Phase, _: usize, _: usize) {}

/// Statistics of `layer` and what is quantised there; the layers before it stay as they are.
fn calibrated(job: &mut Job<'_>, layer: usize) -> (Vec<Target>, OfReaders) {
    for before in 0..layer {
        job.calibrate(before, |_| true, &mut nothing).unwrap();
        let none = LayerAsQuantised { matrices: &Vec::new(), scales: &Scales::default() };
        job.propagate(before, &[], none, &mut nothing).unwrap();
    }
    (job.source.targets(layer).unwrap(), job.calibrate(layer, |_| true, &mut nothing).unwrap())
}

/// All matrices of a layer with these statistics.
fn gptq_of_all(job: &Job<'_>, targets: &[Target], statistics: OfReaders) -> Matrices {
    let readers = targets.iter().map(|target| target.reader).collect();
    let mut matrices = vec![None; targets.len()];
    job.gptq_of(&readers, targets, statistics, &mut matrices, &mut nothing).unwrap();
    matrices.into_iter().map(Option::unwrap).collect()
}

/// Squared error of a product on rows with this Hessian.
fn error(weights: &[f32], matrix: &Quantised, hessian: &[f32]) -> f64 {
    let (change, cols) = (matrix.widen(), matrix.cols);
    let change: Vec<f64> = change.iter().zip(weights).map(|(a, b)| f64::from(*a) - f64::from(*b)).collect();
    let of_row = |row: &[f64]| -> f64 {
        let sum =
            |i: usize| row.iter().zip(&hessian[i * cols..]).map(|(a, h)| a * f64::from(*h)).sum::<f64>();
        (0..cols).map(|i| row[i] * sum(i)).sum()
    };
    change.chunks_exact(cols).map(of_row).sum()
}

#[test]
fn gptq_has_a_smaller_error_than_rounding_on_the_rows_of_each_expert() {
    for (name, layer) in MIXTURES.into_iter().zip(LAYERS) {
        let scheme = Scheme::of(Method::Gptq, None);
        with_job(name, &scheme, 16, |job, source| {
            let (targets, statistics) = calibrated(job, layer);
            let of_gates = |(reader, _): &(&Reader, &Statistics)| {
                matches!(reader.network, Network::Expert(_)) && reader.product == Product::GateUp
            };
            let rows: usize = statistics.iter().filter(of_gates).map(|(_, statistics)| statistics.rows).sum();
            let experts = source.spec.layers[layer].feed_forward.experts.unwrap();
            assert_eq!(
                rows,
                16 * 64 * experts.routing.per_token,
                "{name}: each row is counted once an expert"
            );
            let hessians: HashMap<Reader, Vec<f32>> =
                statistics.iter().map(|(reader, of)| (*reader, of.hessian.clone())).collect();
            let matrices = gptq_of_all(job, &targets, statistics);
            let (mut of_experts, mut nearest_of_experts, mut unread) = (0.0, 0.0, 0);
            for (target, matrix) in targets.iter().zip(&matrices) {
                let Some(hessian) = hessians.get(&target.reader) else {
                    assert_ne!(target.reader.network, Network::Layer, "{name}: all rows are read");
                    unread += 1;
                    continue;
                };
                let weights = source.widen(target).unwrap();
                let got = error(&weights, matrix, hessian);
                let nearest = error(&weights, &job.nearest(target).unwrap(), hessian);
                assert!(got < nearest, "{name}: {}: {got} of {nearest}", target.name);
                if target.reader.network != Network::Layer {
                    (of_experts, nearest_of_experts) = (of_experts + got, nearest_of_experts + nearest);
                }
            }
            println!("{name}: {:.3} of rounding to the nearest", of_experts / nearest_of_experts);
            assert!(2 * unread < targets.len(), "{name}: {unread} matrices of experts without rows");
            assert!(of_experts < 0.8 * nearest_of_experts, "{name}: {of_experts} {nearest_of_experts}");
        });
    }
}

#[test]
fn an_expert_that_no_row_chose_is_rounded_to_the_nearest() {
    for order in [ActOrder::Static, ActOrder::Group] {
        let scheme = Scheme { order, ..Scheme::of(Method::Gptq, Some(16)) };
        with_job("qwen3-moe", &scheme, 4, |job, source| {
            let (targets, mut statistics) = calibrated(job, 0);
            let unread = Network::Expert(3);
            statistics.retain(|reader, _| reader.network != unread);
            report_experts(0, &targets, &rows_of(&statistics));
            let matrices = gptq_of_all(job, &targets, statistics);
            let mut count = 0;
            for (target, matrix) in targets.iter().zip(&matrices) {
                let rule = scheme.rule(source.kind);
                let plain = round_to_nearest(&source.widen(target).unwrap(), target.cols, rule, 16);
                let is_plain = plain.codes == matrix.codes;
                assert_eq!(is_plain, target.reader.network == unread, "{}", target.name);
                assert_eq!(
                    matrix.group_of.is_some(),
                    order == ActOrder::Group,
                    "as other matrices are written"
                );
                count += usize::from(is_plain);
            }
            assert_eq!(count, 3, "gate, up and down");
        });
    }
}

#[test]
fn hessians_fit_the_memory_given_and_the_number_of_passes_changes_no_bit() {
    let scheme = Scheme::of(Method::Gptq, None);
    for (name, layer) in MIXTURES.into_iter().zip(LAYERS) {
        with_job(name, &scheme, 8, |job, source| {
            let (targets, _) = calibrated(job, layer);
            let size = |reader: &Reader| {
                4 * targets.iter().find(|it| it.reader == *reader).unwrap().cols.pow(2) as u64
            };
            let readers: BTreeSet<Reader> = targets.iter().map(|target| target.reader).collect();
            let (all, largest): (u64, u64) =
                (readers.iter().map(size).sum(), readers.iter().map(size).max().unwrap());
            let mut found: Vec<(usize, Matrices)> = Vec::new();
            for budget in [u64::MAX, all, all - 1, largest, 0] {
                let passes = passes::of_layer(&targets, budget);
                assert!(passes.iter().flatten().eq(&readers), "{name}: each reader once, in order");
                for pass in &passes {
                    let sum: u64 = pass.iter().map(size).sum();
                    assert!(sum <= budget || pass.len() == 1, "{name}: {sum} of {budget}");
                }
                job.hessian_bytes = budget;
                found.push((passes.len(), job.gptq(layer, &targets, &mut nothing).unwrap()));
            }
            let counts: Vec<usize> = found.iter().map(|(passes, _)| *passes).collect();
            assert!(counts[..3] == [1, 1, 2] && counts[3] > 2 && counts[4] == readers.len(), "{counts:?}");
            let (_, at_once) = &found[0];
            assert!(
                found.iter().all(|(_, matrices)| matrices == at_once),
                "{name}: the same codes and grids"
            );
            let need = |budget| passes::peak(&targets, 2, budget);
            assert!(need(0) <= need(all) && need(all) == need(u64::MAX), "{name}");
            let weights: u64 = targets.iter().map(|target| (target.rows * target.cols) as u64).sum();
            assert!(need(0) > 5 * weights && source.layers() > layer, "{name}");
        });
    }
}

#[test]
fn scales_before_experts_do_not_change_the_choice_of_experts() {
    for (name, layer) in MIXTURES.into_iter().zip(LAYERS) {
        let scheme = Scheme::of(Method::Awq, None);
        let model = with_outliers(name);
        with_job_on(model.path(), &scheme, 16, |job, source| {
            let (targets, statistics) = calibrated(job, layer);
            let (_, scales) = job.awq(layer, &targets, &statistics, &mut nothing).unwrap();
            let of_gates = targets.iter().filter(|target| target.reader.product == Product::GateUp);
            let mut factors: Vec<&[f32]> =
                of_gates.map(|target| scales.of_inputs(target.reader).expect("a scale")).collect();
            factors.dedup();
            let [factors] = factors[..] else { panic!("{name}: all networks share their input's scales") };
            assert!(factors.iter().all(|factor| factor.log2().fract() == 0.0), "{name}: powers of two");
            assert!(factors.iter().any(|factor| *factor != 1.0), "{name}: some input is scaled");
            let router = source.tensor(layer, Role::Router, None, |_| true).unwrap();
            let written = source.written(router).unwrap().name;
            let scaled = scales.replaced.iter().find(|it| it.name == written).expect("the router is scaled");
            let stored = router.find_stored(&source.weights).unwrap();
            let scaled =
                WeightMatrix::new(of_bytes(&scaled.bytes, stored.storage()), router.rows, router.cols);
            let (mut before, mut after) = (vec![0f32; router.cols], vec![0f32; router.cols]);
            for row in 0..router.rows {
                stored.widen_row(row, &mut before);
                scaled.widen_row(row, &mut after);
                for (col, factor) in factors.iter().enumerate() {
                    assert_eq!(after[col], before[col] * factor, "{name}: router {row} {col}");
                }
            }
        });
    }
}

/// `bytes` as numbers of the type of `like`.
fn of_bytes(bytes: &[u8], like: &Storage) -> Storage {
    match like {
        Storage::F16(_) => Storage::F16(bytes.to_vec().into()),
        Storage::F32(_) => Storage::F32(bytes.to_vec().into()),
        Storage::Bf16(_) | Storage::Blocks(..) => Storage::Bf16(bytes.to_vec().into()),
    }
}
