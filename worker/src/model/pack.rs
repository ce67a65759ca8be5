//! Weights as steps multiply with them: laid out, and rounded to small integers if asked, when a model is loaded. All of a
//! model's packed matrices are one run of bytes, so that they can be kept in one file: see [`super::packed_cache`].

use std::ops::Range;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cpu::packed::{self, Format, Layout, Packed};
use xxhash_rust::xxh3::Xxh3Default;

use super::LoadError;
use super::packed_cache::{Found, PackedCache};
use super::weights::Weights;

/// Matrices start at multiples of a page.
const PART_ALIGN: usize = 4096;
/// Weights that are not rounded are kept on disk from so many bytes on: laying fewer out takes some tens of milliseconds.
const LEAST_KEPT_BYTES: usize = 64 << 20;

/// A matrix that steps of a model multiply with, as it is stored.
pub struct Matrix {
    /// Its tensor's name.
    pub tensor: String,
    /// The matrix.
    pub weights: WeightMatrix,
    /// Whether it gives the logits.
    pub is_head: bool,
}

impl Matrix {
    /// Its format when weights are to be `rounded`.
    fn format(&self, rounded: Option<Format>) -> Format {
        match rounded {
            None => self.weights.storage().format(),
            Some(format) if self.is_head => head_format(format),
            Some(format) => format,
        }
    }
}

/// The head's format when the layers have `format`: a logit's error is seen by nothing that could make up for it, so that
/// the head never has less than 8 bits.
pub fn head_format(format: Format) -> Format {
    match format {
        Format::Int4 | Format::Int4Zero => Format::Int8,
        _ => format,
    }
}

/// Where each matrix lies in the packed bytes of a model.
struct Plan {
    parts: Vec<(Layout, Range<usize>)>,
    bytes: usize,
}

impl Plan {
    fn new(matrices: &[Matrix], rounded: Option<Format>) -> Self {
        let mut plan = Self { parts: Vec::new(), bytes: 0 };
        for matrix in matrices {
            let layout = Layout {
                format: matrix.format(rounded),
                rows: matrix.weights.rows(),
                cols: matrix.weights.cols(),
            };
            plan.parts.push((layout, plan.bytes..plan.bytes + layout.bytes()));
            plan.bytes = (plan.bytes + layout.bytes()).next_multiple_of(PART_ALIGN);
        }
        plan
    }

    /// Tells apart all that may lie in a file of packed weights. `source` tells models apart.
    fn key(&self, matrices: &[Matrix], source: u64) -> u64 {
        let mut hash = Xxh3Default::new();
        hash.update(&source.to_le_bytes());
        hash.update(&packed::VERSION.to_le_bytes());
        for (matrix, (layout, range)) in matrices.iter().zip(&self.parts) {
            hash.update(format!("{} {layout:?} {range:?}\n", matrix.tensor).as_bytes());
        }
        hash.digest()
    }
}

/// Packs `matrices`, which lie in `weights`: takes what `cache` has, or makes what it keeps. `rounded` is the format of the
/// layers' weights; without it they stay as stored. `source` tells this model's weights from all others. `progress` gets (bytes
/// done, bytes in all).
///
/// # Errors
/// Weights to be rounded that are no numbers, no memory.
pub fn pack(
    cpu: &mut Cpu,
    matrices: &[Matrix],
    rounded: Option<Format>,
    weights: &Weights,
    (cache, source): (&PackedCache, u64),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Packed>, LoadError> {
    let plan = Plan::new(matrices, rounded);
    let name = format!("{:016x}-{}.packed", plan.key(matrices, source), rounded.map_or(STORED, name));
    let no_room = |source| LoadError::Packing { bytes: plan.bytes as u64, source };
    let is_worth_keeping = rounded.is_some() || plan.bytes >= LEAST_KEPT_BYTES;
    let none = PackedCache::none();
    let cache = if is_worth_keeping { cache } else { &none };
    let kept = match cache.find(cpu, &name, plan.bytes).map_err(no_room)? {
        Found::Whole(kept) => kept,
        Found::Blank(mut blank) => {
            fill(cpu, matrices, &plan, weights, blank.bytes(), progress)?;
            blank.keep(cpu).map_err(no_room)?
        }
    };
    // The originals are read again only where an embedding's row is.
    weights.release();
    progress(plan.bytes as u64, plan.bytes as u64);
    let packed = |(layout, range): &(Layout, Range<usize>)| Packed::new(*layout, kept.bytes(range.clone()));
    Ok(plan.parts.iter().map(packed).collect())
}

fn fill(
    cpu: &mut Cpu,
    matrices: &[Matrix],
    plan: &Plan,
    weights: &Weights,
    to: &mut [u8],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    weights.will_need();
    for (matrix, (layout, range)) in matrices.iter().zip(&plan.parts) {
        pack_one(cpu, matrix, *layout, &mut to[range.clone()])?;
        weights.release(); // what was read is not read again: it need not lie beside what came of it
        progress(range.end as u64, plan.bytes as u64);
    }
    Ok(())
}

fn pack_one(cpu: &mut Cpu, matrix: &Matrix, layout: Layout, to: &mut [u8]) -> Result<(), LoadError> {
    let packed = packed::pack(cpu, &matrix.weights, layout, to);
    packed.map_err(|source| LoadError::NotFiniteTensor { tensor: matrix.tensor.clone(), source })
}

/// Weights that are not rounded, in file names.
const STORED: &str = "stored";

/// In file names.
fn name(format: Format) -> &'static str {
    match format {
        Format::Bf16 | Format::F16 | Format::F32 => STORED,
        Format::Int8 => "int8",
        Format::Int8Group => "int8-group",
        Format::Int4 => "int4",
        Format::Int4Zero => "int4-zero",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirEntryExt;
    use std::path::Path;

    use skein_kernels::cpu::matrix::Storage;

    use super::*;

    fn matrix(rows: usize, cols: usize, value: impl Fn(usize) -> f32) -> WeightMatrix {
        let bytes: Vec<u8> = (0..rows * cols).flat_map(|i| value(i).to_le_bytes()).collect();
        WeightMatrix::new(Storage::F32(bytes.into()), rows, cols)
    }

    #[test]
    fn the_head_has_8_bits_and_parts_do_not_overlap() {
        let [layer, head] = [matrix(5, 40, |i| i as f32), matrix(3, 8, |i| -(i as f32))];
        let matrices = [
            Matrix { tensor: "layer".into(), weights: layer, is_head: false },
            Matrix { tensor: "head".into(), weights: head, is_head: true },
        ];
        let plan = Plan::new(&matrices, Some(Format::Int4));
        let formats: Vec<_> = plan.parts.iter().map(|(layout, _)| layout.format).collect();
        assert_eq!(formats, [Format::Int4, Format::Int8]);
        let [(_, first), (_, second)] = &plan.parts[..] else { panic!("two parts") };
        assert!(
            first.end <= second.start && second.start.is_multiple_of(PART_ALIGN) && second.end <= plan.bytes
        );
        let key = plan.key(&matrices, 1);
        assert_ne!(plan.key(&matrices, 2), key, "another model's");
        assert_ne!(Plan::new(&matrices, None).key(&matrices, 1), key, "weights as stored");
        assert_ne!(Plan::new(&matrices, Some(Format::Int4Zero)).key(&matrices, 1), key, "another format's");
    }

    #[test]
    fn weights_as_stored_are_kept_where_that_saves_time_and_are_the_same_afterwards() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/skein-7m");
        let weights = Weights::open(&shipped).expect("the shipped model is there");
        let (directory, cpu) = (tempfile::tempdir().unwrap(), &mut Cpu::new(2));
        let cache = PackedCache::at(directory.path().to_owned());
        let cols = 1024;
        // The first is too small to be worth a file; the second is just large enough.
        for (rows, files) in [(LEAST_KEPT_BYTES / 2 / cols - 64, 0), (LEAST_KEPT_BYTES / 2 / cols, 1)] {
            let bytes: Vec<u8> =
                (0..rows * cols).flat_map(|i| [i as u8, 0x3c | (i >> 9) as u8 & 0x83]).collect();
            let stored = WeightMatrix::new(Storage::Bf16(bytes.into()), rows, cols);
            let matrices = [Matrix { tensor: "head".into(), weights: stored, is_head: true }];
            let mut kept = Vec::new();
            for start in 0..2 {
                let packed = pack(cpu, &matrices, None, &weights, (&cache, 7), &mut |_, _| {}).unwrap();
                let (mut got, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
                for row in [0, 17, rows - 1] {
                    packed[0].widen_row(row, &mut got);
                    matrices[0].weights.widen_row(row, &mut expected);
                    assert_eq!(got, expected, "row {row}, start {start}");
                }
                let entries = std::fs::read_dir(directory.path()).unwrap();
                kept.push(entries.map(|entry| entry.unwrap().ino()).collect::<Vec<_>>());
            }
            assert_eq!(kept[0].len(), files, "{rows} rows");
            assert_eq!(kept[0], kept[1], "{rows} rows: the second start makes no file");
        }
    }

    #[test]
    fn a_weight_that_is_no_number_is_refused_by_its_tensors_name() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let weights = matrix(40, 33, |i| if i == 39 * 33 { bad } else { 0.5 });
            let matrix = Matrix { tensor: "model.layers.3.x".into(), weights, is_head: false };
            let layout = Layout { format: Format::Int8, rows: 40, cols: 33 };
            let rounded = pack_one(&mut Cpu::new(2), &matrix, layout, &mut vec![0; layout.bytes()]);
            let said = rounded.unwrap_err().to_string();
            assert!(said.contains("model.layers.3.x") && said.contains("only finite ones"), "{said}");
        }
    }
}
