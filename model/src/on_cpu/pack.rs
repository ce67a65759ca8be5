//! Packs weights for the CPU's kernels at load: arranges them and, if configured, quantises them to small
//! integers. The packed matrices of a model are contiguous in memory, so that one file can hold them: see
//! [`super::packed_cache`].

use std::ops::Range;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::finite::{NonFinite, first_non_finite};
use skein_kernels::cpu::matrix::WeightMatrix;
use skein_kernels::cpu::packed::{self, Format, Layout, Order, PackError, Packed, pack_rows};
use skein_node::trace::PROCESS;
use tracing::field::Empty;
use tracing::info_span;
use xxhash_rust::xxh3::Xxh3Default;

use super::packed_cache::{Found, PackedCache};
use crate::LoadError;
use crate::adapter::Delta;
use crate::checkpoint::Weights;
use crate::rank_matrix::RankMatrix;
use crate::shard;
use crate::tensors::{ColumnsOf, StoredMatrix, Tensor};
use crate::weight_source::WeightSource;

/// Matrices start at multiples of a page.
const PART_ALIGN: usize = 4096;
/// Smallest total of unquantised weights that are cached on disk, in bytes: packing fewer takes only tens of
/// milliseconds.
const LEAST_KEPT_BYTES: usize = 64 << 20;

/// A stored matrix of the model, to be packed.
pub struct Matrix {
    /// Description of the tensor in the model.
    pub tensor: Tensor,
    /// Stored matrix, or the part of it that is packed; packing reorders its heads.
    pub weights: StoredMatrix,
    /// First row and column within the stored matrix; `None` = the whole matrix.
    pub part_at: Option<(usize, usize)>,
    /// Use of the matrix, which determines how it may be quantised.
    pub for_use: Use,
    /// Number of leaves of its product's sums.
    pub leaves: usize,
    /// Change by an adapter, if any.
    pub delta: Option<Delta>,
    /// Packed format that preserves its codes; `None` if the weights are stored as numbers.
    pub codes: Option<Format>,
}

/// Use of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Product with a layer's activations.
    Layer,
    /// Choice of experts; its weights are never quantised.
    Router,
    /// How much a state corrects and forgets: small matrices, not quantised at load.
    Rates,
    /// Product that computes logits.
    Head,
}

impl Matrix {
    /// The `part` of `tensor` in `source`, with the adapter's change.
    ///
    /// # Errors
    /// If it is missing, has the wrong shape, or has a form that cannot be divided, changed or used this way.
    pub(super) fn find(
        tensor: &Tensor,
        for_use: Use,
        part: shard::Part,
        source: WeightSource<'_>,
    ) -> Result<Self, LoadError> {
        let RankMatrix { whole, delta } = RankMatrix::find(tensor, &part, source)?;
        let part_at = (part.len() < tensor.len()).then_some((part.rows.start, part.cols.start));
        let (weights, mut leaves) = (whole.part(part.rows, part.cols)?, part.leaves);
        let mut codes = None;
        if let StoredMatrix::Codes(coded) = &weights {
            (codes, leaves) = (Some(coded.format(leaves)?), coded.leaves(leaves));
        }
        if for_use == Use::Router && codes.is_some_and(Format::is_integer) {
            let reason =
                "it chooses experts from activations that are not rounded, so it must be in 16 or 32 bits";
            return Err(LoadError::CodedTensor { tensor: tensor.name.clone(), reason: reason.to_owned() });
        }
        Ok(Self { tensor: tensor.clone(), weights, part_at, for_use, leaves, delta, codes })
    }

    /// `weights` with inputs in the model's order, if the checkpoint has another and products in `format` do
    /// not go by it.
    fn with_inputs_in_order(&self, weights: &WeightMatrix, format: Format) -> Option<WeightMatrix> {
        let order = self.tensor.input_order.as_ref().filter(|_| self.input_order(format).is_none())?;
        let is_in_blocks = weights.storage().blocks().is_some();
        let values = if is_in_blocks { &weights.widened() } else { weights };
        Some(values.with_columns(|input| order[input]))
    }

    /// Order of the inputs of this matrix packed in `format`, if products go by it: blocks of several inputs
    /// cannot be reordered.
    pub(super) fn input_order(&self, format: Format) -> Option<Order> {
        let order = self.tensor.input_order.as_ref().filter(|_| format.is_integer())?;
        let StoredMatrix::Numbers(numbers) = &self.weights else { return None };
        numbers.storage().blocks()?;
        let mut inputs = vec![0; order.len()];
        order.iter().enumerate().for_each(|(input, column)| inputs[*column] = input as u32);
        Some(inputs.into())
    }

    /// Candidate layouts when weights are converted to `rounded`, best first. The best one may be unable to
    /// represent the matrix. [`Format::F32`] decodes codes and blocks, and keeps 16-bit numbers, which
    /// lose nothing.
    fn layouts(&self, rounded: Option<Format>) -> Vec<Layout> {
        let decodes = rounded == Some(Format::F32);
        let rounded = rounded.filter(|_| !decodes);
        let formats = match (&self.weights, rounded, self.for_use) {
            _ if decodes && self.weights.is_quantised() => vec![Format::F32],
            (StoredMatrix::Codes(_), ..) => self.codes.into_iter().collect(),
            (StoredMatrix::Numbers(numbers), _, Use::Router) if numbers.storage().blocks().is_some() => {
                vec![Format::F32]
            }
            (_, Some(format), Use::Head) => vec![format.of_head()],
            (_, Some(format), Use::Layer) => vec![format],
            // Rates keep their form whatever `rounded` says.
            (StoredMatrix::Numbers(numbers), ..) => Format::keeping(numbers.storage()).to_vec(),
            (StoredMatrix::Columns(columns), ..) => match &columns.stored {
                ColumnsOf::Numbers(numbers) if numbers.storage().blocks().is_none() => {
                    Format::keeping(numbers.storage()).to_vec()
                }
                ColumnsOf::Numbers(_) | ColumnsOf::Codes(_) => vec![Format::F32],
            },
        };
        let (rows, cols, leaves) = (self.weights.rows(), self.weights.cols(), self.leaves);
        let layout = |format| Layout { format, rows, cols, leaves };
        formats.into_iter().map(layout).collect()
    }
}

/// Candidate layouts of a model's matrices. Packing makes the choice and stores it before the matrices, as
/// one byte each.
struct Plan {
    layouts: Vec<Vec<Layout>>,
}

impl Plan {
    fn new(matrices: &[Matrix], rounded: Option<Format>) -> Self {
        Self { layouts: matrices.iter().map(|matrix| matrix.layouts(rounded)).collect() }
    }

    /// Offset of the first matrix.
    fn start(&self) -> usize {
        self.layouts.len().next_multiple_of(PART_ALIGN)
    }

    /// Upper bound on the size of the matrices, in bytes.
    fn most_bytes(&self) -> usize {
        let largest = |layouts: &Vec<Layout>| layouts.iter().map(Layout::bytes).max().unwrap_or_default();
        self.layouts.iter().fold(self.start(), |end, layouts| part_after(end, largest(layouts)).end)
    }

    /// Layout and byte range of each matrix under the `chosen` layouts; `None` if a choice does not exist.
    fn parts(&self, chosen: &[u8]) -> Option<Vec<(Layout, Range<usize>)>> {
        let mut end = self.start();
        let part = |(layouts, chosen): (&Vec<Layout>, &u8)| {
            let layout = *layouts.get(usize::from(*chosen))?;
            let range = part_after(end, layout.bytes());
            end = range.end;
            Some((layout, range))
        };
        self.layouts.iter().zip(chosen).map(part).collect()
    }

    /// Cache key of the packed bytes: different whenever they may differ. `source` identifies the model.
    fn key(&self, matrices: &[Matrix], source: u64) -> u64 {
        let mut hash = Xxh3Default::new();
        hash.update(&source.to_le_bytes());
        hash.update(&packed::VERSION.to_le_bytes());
        for (matrix, layouts) in matrices.iter().zip(&self.layouts) {
            let (Tensor { name, stored, .. }, part_at) = (&matrix.tensor, matrix.part_at);
            hash.update(format!("{name} {} {part_at:?} {layouts:?}\n", stored[0].first_row).as_bytes());
        }
        hash.digest()
    }
}

/// Bytes that [`pack`] allocates for `matrices` if they are not cached.
pub fn most_bytes(matrices: &[Matrix], rounded: Option<Format>) -> u64 {
    Plan::new(matrices, rounded).most_bytes() as u64
}

/// The range of `bytes` bytes after a part that ends at `end`.
fn part_after(end: usize, bytes: usize) -> Range<usize> {
    let start = end.next_multiple_of(PART_ALIGN);
    start..start + bytes
}

/// Packs `matrices` of `weights`, or takes them from `cache`. The layers' weights are converted to `rounded`;
/// `None` keeps their values and codes. `source` identifies the model's weights. `progress` receives (bytes
/// done, total bytes) of the stored weights.
///
/// # Errors
/// Fails if a weight to be quantised is not finite, or if memory runs out.
pub fn pack(
    cpu: &mut Cpu,
    matrices: &[Matrix],
    rounded: Option<Format>,
    weights: &Weights,
    cache: &PackedCache,
    source: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Packed>, LoadError> {
    let stored = stored_bytes(matrices);
    let span = info_span!(
        target: PROCESS, "pack weights", skein.weight_bytes = stored, skein.from_cache = Empty
    );
    let _packing = span.enter();
    let plan = Plan::new(matrices, rounded);
    let name =
        format!("{:016x}-{}.packed", plan.key(matrices, source), rounded.map_or(STORED, Format::file_name));
    let most_bytes = plan.most_bytes();
    let no_room = |source| LoadError::Packing { bytes: most_bytes as u64, source };
    let is_worth_keeping = rounded.is_some() || most_bytes >= LEAST_KEPT_BYTES;
    let none = PackedCache::none();
    let cache = if is_worth_keeping { cache } else { &none };
    let found = cache.find(cpu, &name, most_bytes).map_err(no_room)?;
    span.record("skein.from_cache", matches!(found, Found::Whole(_)));
    let kept = match found {
        Found::Whole(kept) => kept,
        Found::Blank(mut blank) => {
            let bytes = fill(cpu, matrices, &plan, weights, blank.bytes(), progress)?;
            blank.keep(cpu, bytes).map_err(no_room)?
        }
    };
    // From now on, only embedding rows are read from the stored weights.
    weights.release();
    progress(stored, stored);
    let parts = plan.parts(&kept.bytes(0..matrices.len()));
    let parts = parts.unwrap_or_else(|| unreachable!("its checksums say that it is what was made"));
    let packed = |(layout, range): &(Layout, Range<usize>)| Packed::new(*layout, kept.bytes(range.clone()));
    Ok(parts.iter().map(packed).collect())
}

/// Size of the stored matrices, in bytes.
fn stored_bytes(matrices: &[Matrix]) -> u64 {
    matrices.iter().map(|matrix| matrix.weights.len_bytes() as u64).sum()
}

/// Packs all matrices in order and returns the number of bytes used.
fn fill(
    cpu: &mut Cpu,
    matrices: &[Matrix],
    plan: &Plan,
    weights: &Weights,
    to: &mut [u8],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<usize, LoadError> {
    if matrices.iter().all(|matrix| matrix.part_at.is_none()) {
        weights.will_need(); // other ranks read the rest
    }
    let (mut end, mut done, all) = (plan.start(), 0, stored_bytes(matrices));
    for (i, (matrix, layouts)) in matrices.iter().zip(&plan.layouts).enumerate() {
        let (chosen, bytes) = pack_one(cpu, matrix, layouts, &mut to[end.next_multiple_of(PART_ALIGN)..])?;
        (to[i], end) = (chosen, part_after(end, bytes).end);
        weights.release(); // not read again, so free it while the packed weights grow
        done += matrix.weights.len_bytes() as u64;
        progress(done, all);
    }
    Ok(end)
}

/// Packs a matrix in the first of `layouts` that can represent it. Returns the layout's index and size.
fn pack_one(
    cpu: &mut Cpu,
    matrix: &Matrix,
    layouts: &[Layout],
    to: &mut [u8],
) -> Result<(u8, usize), LoadError> {
    let mut chosen = 0;
    let failed = |source| LoadError::UnpackedTensor { tensor: matrix.tensor.name.clone(), source };
    let weights = match &matrix.weights {
        StoredMatrix::Numbers(numbers) => {
            let (row, col) = matrix.part_at.unwrap_or_default();
            let merged = matrix.delta.as_ref().map(|delta| delta.merged(numbers, row, col));
            matrix.tensor.in_order(merged.unwrap_or_else(|| numbers.clone()))
        }
        StoredMatrix::Codes(_) if layouts[0].format == Format::F32 => {
            matrix.tensor.in_order(matrix.weights.numbers(cpu)?)
        }
        StoredMatrix::Columns(_) => matrix.tensor.in_order(matrix.weights.numbers(cpu)?),
        StoredMatrix::Codes(codes) => {
            let (rows, layout) = (codes.in_order(|row| matrix.tensor.stored_row(row)), layouts[0]);
            pack_rows(cpu, &rows, layout, &mut to[..layout.bytes()]).map_err(failed)?;
            return Ok((0, layout.bytes()));
        }
    };
    // Formats that round say it themselves.
    if !layouts[0].format.is_integer() || weights.storage().blocks().is_some() {
        check_finite(cpu, &matrix.tensor, &weights, matrix.part_at.unwrap_or_default())?;
    }
    loop {
        let layout = layouts[chosen];
        let to = &mut to[..layout.bytes()];
        let with_inputs = matrix.with_inputs_in_order(&weights, layout.format);
        match packed::pack(cpu, with_inputs.as_ref().unwrap_or(&weights), layout, to) {
            Ok(()) => return Ok((chosen as u8, layout.bytes())),
            Err(why @ (PackError::ManyExponents { .. } | PackError::WideScale { .. }))
                if chosen + 1 < layouts.len() =>
            {
                tracing::debug!(tensor = matrix.tensor.name, %why, "the matrix needs a larger layout");
                to.fill(0);
                chosen += 1;
            }
            Err(source) => return Err(failed(source)),
        }
    }
}

/// Refuses NaN and infinite values in `weights`, which begin at row and column `at` of `tensor`. A row of a
/// batch may meet them long after the load: in an expert, or in a token's embedding.
pub(super) fn check_finite(
    cpu: &mut Cpu,
    tensor: &Tensor,
    weights: &WeightMatrix,
    at: (usize, usize),
) -> Result<(), LoadError> {
    let Some(NonFinite { row, col, value }) = first_non_finite(cpu, weights) else { return Ok(()) };
    let (row, col) = (at.0 + tensor.stored_row(row), at.1 + col);
    Err(LoadError::NonFiniteWeight { tensor: tensor.name.clone(), row, col, value })
}

/// Format in the file name of unquantised weights.
const STORED: &str = "stored";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirEntryExt;

    use skein_kernels::cpu::matrix::Storage;

    use super::*;
    use crate::tensors::{Kind, Product, Role, Stored};

    fn matrix(rows: usize, cols: usize, value: impl Fn(usize) -> f32) -> WeightMatrix {
        let bytes: Vec<u8> = (0..rows * cols).flat_map(|i| value(i).to_le_bytes()).collect();
        WeightMatrix::new(Storage::F32(bytes.into()), rows, cols)
    }

    /// A matrix of layer 3.
    fn of(weights: WeightMatrix, for_use: Use) -> Matrix {
        let (name, shape) = ("model.layers.3.mlp.up_proj.weight", vec![weights.rows(), weights.cols()]);
        let tensor = Tensor {
            name: name.into(),
            layer: Some(3),
            expert: None,
            head: None,
            role: Role::Up,
            kind: Kind::Matrix(Product::GateUp, 0),
            rows: weights.rows(),
            cols: weights.cols(),
            stored: vec![Stored {
                name: name.into(),
                shape,
                first_row: 0,
                place: crate::tensors::Place::Rows,
            }],
            order: None,
            input_order: None,
        };
        let weights = StoredMatrix::Numbers(weights);
        Matrix { tensor, weights, part_at: None, for_use, leaves: 1, delta: None, codes: None }
    }

    fn widen_row(matrix: &Matrix, row: usize, to: &mut [f32]) {
        let StoredMatrix::Numbers(numbers) = &matrix.weights else { panic!("numbers") };
        numbers.widen_row(row, to);
    }

    #[test]
    fn the_head_has_8_bits_and_parts_do_not_overlap() {
        let [layer, head] = [matrix(5, 40, |i| i as f32), matrix(3, 8, |i| -(i as f32))];
        let matrices = [of(layer, Use::Layer), of(head, Use::Head)];
        let plan = Plan::new(&matrices, Some(Format::INT4));
        let parts = plan.parts(&[0, 0]).expect("each has a layout");
        let formats: Vec<_> = parts.iter().map(|(layout, _)| layout.format).collect();
        assert_eq!(formats, [Format::INT4, Format::INT8]);
        let [(_, first), (_, second)] = &parts[..] else { panic!("two parts") };
        assert!(matrices.len() <= first.start && first.end <= second.start);
        assert!(second.start.is_multiple_of(PART_ALIGN) && second.end == plan.most_bytes());
        assert!(plan.parts(&[0, 1]).is_none(), "there is no second layout");
        let key = plan.key(&matrices, 1);
        assert_ne!(plan.key(&matrices, 2), key, "another model's");
        assert_ne!(Plan::new(&matrices, None).key(&matrices, 1), key, "weights as stored");
        assert_ne!(Plan::new(&matrices, Some(Format::INT4_ZERO)).key(&matrices, 1), key, "another format's");
    }

    #[test]
    fn a_matrix_whose_exponents_do_not_fold_keeps_16_bits() {
        let bf16 = |value: &dyn Fn(usize) -> u16| {
            let bytes: Vec<u8> = (0..256 * 512).flat_map(|i| value(i).to_le_bytes()).collect();
            of(WeightMatrix::new(Storage::Bf16(bytes.into()), 256, 512), Use::Layer)
        };
        let folds = |i: usize| 0x3c00 | (i * 7 % 0x1ff) as u16;
        let spread = |i: usize| 0x0100 + (i * 0x311 % 0x7000) as u16;
        let matrices = [bf16(&folds), bf16(&spread), bf16(&folds)];
        let shipped = skein_golden::shipped();
        let (weights, cpu) = (Weights::open(&shipped).expect("it is there"), &mut Cpu::new(2));
        let mut progress = Vec::new();
        let packed = pack(cpu, &matrices, None, &weights, &PackedCache::none(), 0, &mut |done, all| {
            progress.push((done, all));
        });
        let packed = packed.unwrap();
        let formats: Vec<_> = packed.iter().map(|packed| packed.layout().format).collect();
        assert_eq!(formats, [Format::BF16_FOLDED, Format::BF16, Format::BF16_FOLDED]);
        for (packed, matrix) in packed.iter().zip(&matrices) {
            let (mut got, mut expected) = (vec![0.0; 512], vec![0.0; 512]);
            for row in [0, 100, 255] {
                packed.widen_row(row, &mut got);
                widen_row(matrix, row, &mut expected);
                assert_eq!(got, expected, "row {row}");
            }
        }
        assert_eq!(progress, [1, 2, 3, 3].map(|done| (done << 18, 3 << 18)));
    }

    #[test]
    fn unquantised_weights_are_cached_if_large_and_read_back_unchanged() {
        let shipped = skein_golden::shipped();
        let weights = Weights::open(&shipped).expect("the shipped model is there");
        let (directory, cpu) = (tempfile::tempdir().unwrap(), &mut Cpu::new(2));
        let cache = PackedCache::at(directory.path().to_owned());
        let cols = 1024;
        // The first is too small to be worth a file; the second is just large enough.
        for (rows, files) in [(LEAST_KEPT_BYTES / 2 / cols - 64, 0), (LEAST_KEPT_BYTES / 2 / cols, 1)] {
            let bytes: Vec<u8> =
                (0..rows * cols).flat_map(|i| [i as u8, 0x3c | (i >> 9) as u8 & 0x83]).collect();
            let stored = WeightMatrix::new(Storage::Bf16(bytes.into()), rows, cols);
            let matrices = [of(stored, Use::Head)];
            let mut kept = Vec::new();
            for start in 0..2 {
                let packed = pack(cpu, &matrices, None, &weights, &cache, 7, &mut |_, _| {}).unwrap();
                let (mut got, mut expected) = (vec![0.0; cols], vec![0.0; cols]);
                for row in [0, 17, rows - 1] {
                    packed[0].widen_row(row, &mut got);
                    widen_row(&matrices[0], row, &mut expected);
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
    fn a_weight_that_is_not_finite_is_refused_by_its_tensors_name() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let weights = matrix(40, 33, |i| if i == 39 * 33 { bad } else { 0.5 });
            let matrix = of(weights, Use::Layer);
            let layout = Layout::new(Format::INT8, 40, 33);
            let rounded = pack_one(&mut Cpu::new(2), &matrix, &[layout], &mut vec![0; layout.bytes()]);
            let said = rounded.unwrap_err().to_string();
            assert!(
                said.contains("model.layers.3.mlp.up_proj.weight") && said.contains("only finite weights"),
                "{said}"
            );
            let kept = Layout::new(Format::F32, 40, 33);
            let kept = pack_one(&mut Cpu::new(2), &matrix, &[kept], &mut vec![0; kept.bytes()]);
            let said = kept.unwrap_err().to_string();
            assert!(said.contains(&format!("the value {bad} in row 39, column 0")), "{said}");
        }
    }
}
