//! Matrices in codes: their forms, from the headers of the checkpoint, and their rows, for the upload.
//!
//! The matrices of a product are stacked, so they get one form, in which all can be stored without loss.

use std::collections::HashMap;
use std::ops::Range;

use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::blocks::{Block, BlockType};
use skein_kernels::cpu::matrix::{Storage, WeightMatrix};
use skein_kernels::cpu::packed::{Format, GivenRow, Layout, PackError, Packed};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::{LinearWeight, WeightValues};
use skein_kernels::cuda::ops::packed::{
    Form, Meaning, OCTET, Octets, PackedValues, Row, ScaleKind, Shape, Span, Table, pack,
};
use skein_kernels::cuda::{CudaError, Stream};

use super::network::Network;
use super::rank_tensor::{MergedChange, RankTensor};
use crate::LoadError;
use crate::checkpoint::quantised::CodedMatrix;
use crate::rank_matrix::RankMatrix;
use crate::tensors::{Columns, ColumnsOf, Kind, Product, StoredMatrix, Tensor};
use crate::weight_source::WeightSource;

/// Why routers are not packed.
const ROUTER: &str = "it chooses experts, and GPUs read such a matrix in 16 or 32 bits only; serve the model with \
    --device cpu";

/// Place of a matrix in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Matrix {
    /// The embedding table, and the head if they are tied.
    Table,
    /// The stacked matrices of a network's product, for all experts on the rank; the layer is `None` for the
    /// head.
    Product(Option<usize>, Network, Product),
}

impl Matrix {
    /// The matrix that `tensor` is a part of, if it can be packed: routers cannot, and the heads' matrices of
    /// latent attention are decoded, because a product has a matrix for each head.
    pub(super) fn of(tensor: &Tensor) -> Option<Self> {
        match tensor.kind {
            Kind::Table => Some(Self::Table),
            Kind::Matrix(product, _) if product.is_of_heads() => None,
            Kind::Matrix(product, _) if Network::of(tensor) != Network::Router => {
                Some(Self::Product(tensor.layer, Network::of(tensor), product))
            }
            Kind::Matrix(..) | Kind::Bias(..) | Kind::Norm | Kind::NormBias | Kind::Values => None,
        }
    }
}

/// The forms of all packed matrices of a rank; others have 16 bits.
#[derive(Debug, Clone, Default)]
pub struct Forms {
    forms: HashMap<Matrix, (Form, usize)>,
}

impl Forms {
    /// The form of a matrix.
    pub fn get(&self, matrix: Matrix) -> Option<Form> {
        self.forms.get(&matrix).map(|(form, _)| *form)
    }

    /// Whether no matrix is packed.
    pub fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Number of matrices whose inputs are sorted before the product.
    pub fn ordered(&self) -> usize {
        self.forms.values().filter(|(form, _)| form.orders > 0).count()
    }

    /// Most inputs of such a matrix: of the experts, or of others.
    pub fn ordered_inputs(&self, of_experts: bool) -> usize {
        let is_of = |matrix: &Matrix| matches!(matrix, Matrix::Product(_, Network::Experts, _)) == of_experts;
        let ordered = self.forms.iter().filter(|(matrix, (form, _))| form.orders > 0 && is_of(matrix));
        ordered.map(|(_, (_, inputs))| *inputs).max().unwrap_or_default()
    }
}

/// How the codes of a matrix are stored.
#[derive(Clone)]
pub(super) struct Coded {
    /// Form that preserves them.
    pub form: Form,
    /// Values of the codes, if they are looked up.
    pub table: Option<[f32; 16]>,
    /// Input of each column, if columns are not in the inputs' order.
    pub order: Option<Vec<u32>>,
    /// Name for messages.
    pub name: &'static str,
}

/// What is known of a matrix from those stacked in it so far.
struct Stack {
    /// Name and codes of its first part.
    name: String,
    first: Option<Coded>,
    /// Order of the first part of the last expert, whose parts have one order of inputs; without experts, of
    /// the first one.
    of_expert: (Option<usize>, Option<Vec<u32>>),
    experts: usize,
    form: Option<Form>,
}

impl Stack {
    fn new(name: String, expert: Option<usize>, first: Option<Coded>) -> Self {
        let order = first.as_ref().and_then(|coded| coded.order.clone());
        let form = first.as_ref().map(|coded| coded.form);
        Self { name, first, of_expert: (expert, order), experts: 1, form }
    }

    /// Adds another part. `None` if there is no form for all.
    fn add(&mut self, expert: Option<usize>, coded: Option<&Coded>) -> Option<()> {
        self.form = match (coded, &self.first, self.form) {
            (None, None, _) => None,
            (Some(coded), Some(first), Some(joined)) if has_same_values(coded.table, first.table) => {
                Some(join(coded.form, joined)?)
            }
            _ => return None,
        };
        let order = coded.and_then(|coded| coded.order.as_ref());
        if self.of_expert.0 != expert {
            self.of_expert = (expert, order.cloned());
            self.experts += 1;
            return Some(());
        }
        (order == self.of_expert.1.as_ref()).then_some(())
    }
}

/// Whether codes mean the same in both tables; without a table they are integers.
fn has_same_values(a: Option<[f32; 16]>, b: Option<[f32; 16]>) -> bool {
    a.is_none() || b.is_none() || a == b
}

/// The codes in the place of a part of a matrix, from files or without them.
pub(super) trait FindCoded {
    /// Codes of a matrix of layers or of a table; `None` if it has 16 bits on the device.
    ///
    /// # Errors
    /// If it is missing or unusable.
    fn coded<T: Activation>(&self, held: &RankTensor) -> Result<Option<Coded>, LoadError>;

    /// Whether a router is in codes.
    ///
    /// # Errors
    /// If it is missing or unusable.
    fn has_coded_router(&self, held: &RankTensor) -> Result<bool, LoadError>;
}

/// Codes of a checkpoint.
pub(super) struct FromFiles<'a> {
    pub source: WeightSource<'a>,
    /// Format to which matrices of layers in 16 or 32 bits are quantised.
    pub rounded: Option<Format>,
}

impl FindCoded for FromFiles<'_> {
    fn coded<T: Activation>(&self, held: &RankTensor) -> Result<Option<Coded>, LoadError> {
        let source = Source::find(held, self.source, self.rounded)?;
        source.map(|source| source.coded::<T>(held.leaf)).transpose()
    }

    fn has_coded_router(&self, held: &RankTensor) -> Result<bool, LoadError> {
        Ok(Source::find(held, self.source, None)?.is_some())
    }
}

/// The forms of a rank's matrices.
///
/// # Errors
/// If a tensor is missing or unusable, if the matrices of a product have no common form, or if the rank
/// cannot have its part.
pub(super) fn forms<T: Activation>(
    held: &[RankTensor],
    ranks: usize,
    codes: &impl FindCoded,
) -> Result<Forms, LoadError> {
    let mut stacks: HashMap<Matrix, Stack> = HashMap::new();
    for held in held.iter().filter(|held| !held.part.is_empty()) {
        let Some(matrix) = Matrix::of(&held.own) else {
            let is_router = Network::of(&held.own) == Network::Router;
            if matches!(held.own.kind, Kind::Matrix(..)) && is_router && codes.has_coded_router(held)? {
                return Err(refused(&held.whole.name, ROUTER.into()));
            }
            continue;
        };
        let coded = codes.coded::<T>(held)?;
        if let (Matrix::Table, Some(_), 2..) = (matrix, &coded, ranks) {
            let reason = "the embedding table is quantised, and ranks on GPUs have none in codes; serve the model with \
                          --tensor-parallel-size 1";
            return Err(refused(&held.whole.name, reason.into()));
        }
        let (name, expert) = (held.whole.name.clone(), held.whole.expert);
        let Some(stack) = stacks.get_mut(&matrix) else {
            stacks.insert(matrix, Stack::new(name, expert, coded));
            continue;
        };
        let (first_form, second_form) = (described(stack.first.as_ref()), described(coded.as_ref()));
        if stack.add(expert, coded.as_ref()).is_none() {
            let first = stack.name.clone();
            return Err(LoadError::MixedProduct { first, first_form, second: name, second_form });
        }
    }
    let cols = |matrix: Matrix| {
        held.iter().find(|held| Matrix::of(&held.own) == Some(matrix)).map_or(0, |held| held.own.cols)
    };
    let packed = stacks.into_iter().filter_map(|(matrix, stack)| {
        let form = stack.form?;
        // Each expert has an order.
        Some((matrix, (Form { orders: form.orders * stack.experts, ..form }, cols(matrix))))
    });
    Ok(Forms { forms: packed.collect() })
}

/// A form for both. GGUF's tables have integer values, so that they can be joined with integers.
fn join(a: Form, b: Form) -> Option<Form> {
    let as_integers = |form: Form| {
        let is_table = form.meaning == Meaning::Table;
        let integers = Form {
            bits: 8,
            meaning: Meaning::Integers,
            zero: Some(LOOKED_UP_ZERO),
            scales: if form.scales == ScaleKind::Power { ScaleKind::F32 } else { form.scales },
            ..form
        };
        if is_table { integers } else { form }
    };
    if a.meaning == b.meaning { a.join(b) } else { as_integers(a).join(as_integers(b)) }
}

fn described(coded: Option<&Coded>) -> String {
    coded.map_or("16 or 32 bits", |coded| coded.name).to_owned()
}

pub(super) fn refused(tensor: &str, reason: String) -> LoadError {
    LoadError::CodedTensor { tensor: tensor.to_owned(), reason }
}

/// The code of zero in blocks whose codes are looked up.
const LOOKED_UP_ZERO: u8 = 128;

/// A rank's rows of a matrix in codes.
#[derive(Clone)]
pub struct Source {
    /// The whole matrix; its rows are read in the order of the device.
    tensor: Tensor,
    /// First row of the rank's part.
    first: usize,
    rows: Rows,
    /// Change by an adapter, merged before numbers are quantised.
    change: Option<MergedChange>,
}

#[derive(Clone)]
enum Rows {
    /// Codes of another library, all rows, the rank's columns.
    Codes(CodedMatrix),
    /// Blocks of GGUF, likewise.
    Blocks(BlockType, WeightMatrix),
    /// Numbers to quantise, the rank's part in the device's order.
    Rounded(Format, Numbers),
}

/// Numbers to quantise.
#[derive(Clone)]
enum Numbers {
    Rows(WeightMatrix),
    /// Copied when they are read, because there may be as many as the model has.
    Columns(Columns),
}

impl Numbers {
    /// The numbers of some outputs.
    fn rows(&self, rows: Range<usize>) -> WeightMatrix {
        match self {
            Self::Rows(numbers) => numbers.part(rows, 0..numbers.cols()),
            Self::Columns(Columns { stored: ColumnsOf::Numbers(stored), first, every, .. }) => {
                stored.columns(first + rows.start * every, *every, rows.len())
            }
            Self::Columns(_) => unreachable!("codes are not quantised again"),
        }
    }
}

impl Source {
    /// The rank's part of a matrix; `None` if it has 16 bits on the device.
    pub(super) fn find(
        held: &RankTensor,
        source: WeightSource<'_>,
        rounded: Option<Format>,
    ) -> Result<Option<Self>, LoadError> {
        let RankTensor { whole, part, .. } = held;
        let RankMatrix { whole: stored, delta } = RankMatrix::find(whole, part, source)?;
        let change = delta.map(|delta| MergedChange::new(delta, held));
        let found = match &stored {
            StoredMatrix::Codes(codes) => {
                let rows = 0..codes.rows();
                Some(Rows::Codes(codes.part(rows, part.cols.clone())?))
            }
            StoredMatrix::Numbers(numbers) => match numbers.storage() {
                Storage::Blocks(kind, _) => {
                    Some(Rows::Blocks(*kind, numbers.part(0..numbers.rows(), part.cols.clone())))
                }
                Storage::Bf16(_) | Storage::F16(_) | Storage::F32(_) => None,
            },
            StoredMatrix::Columns(Columns { stored: ColumnsOf::Numbers(numbers), .. })
                if numbers.storage().blocks().is_none() =>
            {
                None
            }
            StoredMatrix::Columns(_) => {
                return Err(refused(
                    &whole.name,
                    "its codes have inputs as rows, which CUDA does not read; serve the model with --device cpu".into(),
                ));
            }
        };
        let is_of_layer = whole.layer.is_some();
        let rows = match (found, rounded.filter(|_| is_of_layer)) {
            (Some(rows), _) => rows,
            (None, None) => return Ok(None),
            (None, Some(format)) => {
                let (rows, cols) = (part.rows.clone(), part.cols.clone());
                Rows::Rounded(
                    format,
                    match stored.part(rows.clone(), cols.clone())? {
                        StoredMatrix::Columns(columns) => Numbers::Columns(columns),
                        _ => Numbers::Rows(whole.find(source.weights)?.part(rows, cols)),
                    },
                )
            }
        };
        Ok(Some(Self { tensor: whole.clone(), first: part.rows.start, rows, change }))
    }

    /// Values of the codes, if they are looked up.
    pub fn table(&self) -> Option<[f32; 16]> {
        match &self.rows {
            Rows::Codes(codes) => codes.table().copied(),
            Rows::Blocks(kind, _) => table_of_blocks(*kind),
            Rows::Rounded(..) => None,
        }
    }

    /// Input of each column, if columns are not in the inputs' order.
    pub fn order(&self) -> Option<&[u32]> {
        match &self.rows {
            Rows::Codes(codes) => codes.order().map(|order| &order[..]),
            Rows::Blocks(..) | Rows::Rounded(..) => None,
        }
    }

    /// How the codes are stored, for leaves of `leaf` inputs.
    fn coded<T: Activation>(&self, leaf: usize) -> Result<Coded, LoadError> {
        match &self.rows {
            Rows::Codes(codes) => Coded::of_codes::<T>(codes, leaf),
            Rows::Blocks(kind, _) => Ok(Coded::of_blocks(*kind, leaf)),
            Rows::Rounded(format, _) => Ok(Coded::of_rounded(*format)),
        }
    }

    /// Reads `rows` of the rank's part in the form of `shape`, whose table has the unit `unit`.
    ///
    /// # Errors
    /// If a weight is not a finite number.
    fn reader<'a>(
        &'a self,
        shape: &'a Shape,
        rows: Range<usize>,
        unit: f32,
    ) -> Result<Reader<'a>, LoadError> {
        let rounded = match &self.rows {
            Rows::Rounded(format, numbers) => {
                let numbers = numbers.rows(rows.clone());
                let numbers = match &self.change {
                    None => numbers,
                    Some(change) => change.merged(&numbers, rows.start),
                };
                let layout = Layout { leaves: shape.leaves(), ..Layout::new(*format, rows.len(), shape.k) };
                let packed = Packed::in_layout(&mut Cpu::new(1), &numbers, layout);
                Some(packed.map_err(|source| self.failed(source, rows.start))?)
            }
            Rows::Codes(_) | Rows::Blocks(..) => None,
        };
        let starts = shape.span_starts();
        Ok(Reader { source: self, shape, starts, first: rows.start, rounded, unit, blocks: Vec::new() })
    }

    fn failed(&self, source: PackError, first: usize) -> LoadError {
        let source = match source {
            PackError::NotFinite(mut at) => {
                at.row += self.first + first;
                PackError::NotFinite(at)
            }
            other => other,
        };
        LoadError::UnpackedTensor { tensor: self.tensor.name.clone(), source }
    }
}

/// Reads rows of a [`Source`].
struct Reader<'a> {
    source: &'a Source,
    shape: &'a Shape,
    starts: Vec<Option<usize>>,
    /// First row that was announced.
    first: usize,
    rounded: Option<Packed>,
    unit: f32,
    blocks: Vec<Block>,
}

impl Reader<'_> {
    /// Writes row `row` of the rank's part to `to`.
    ///
    /// # Errors
    /// If a weight is not a finite number.
    fn read(&mut self, row: usize, to: &mut Row) -> Result<(), LoadError> {
        let Source { tensor, first, rows, .. } = self.source;
        let stored = tensor.stored_row(first + row);
        match rows {
            Rows::Codes(codes) => codes
                .device_row(stored, self.shape.form.scales, &self.starts, self.unit, to)
                .map_err(|source| LoadError::UnpackedTensor { tensor: tensor.name.clone(), source }),
            Rows::Blocks(kind, matrix) => {
                self.read_blocks(*kind, matrix.row(stored), to);
                Ok(())
            }
            Rows::Rounded(..) => {
                let Some(packed) = &self.rounded else { unreachable!("rows were quantised") };
                let starts: Vec<usize> = self.starts.iter().flatten().copied().collect();
                let (mut scales, mut zeros) = (vec![0.0; starts.len()], vec![0; starts.len()]);
                let given = GivenRow {
                    codes: &mut to.codes,
                    scales: &mut scales,
                    zeros: &mut zeros,
                    starts: &starts,
                };
                packed.codes_of_row(row - self.first, given);
                let places = self.starts.iter().enumerate().filter(|(_, start)| start.is_some());
                for ((i, _), (scale, zero)) in places.zip(scales.into_iter().zip(zeros)) {
                    (to.scales[i], to.zeros[i]) = (scale, zero);
                }
                Ok(())
            }
        }
    }

    fn read_blocks(&mut self, kind: BlockType, bytes: &[u8], to: &mut Row) {
        let (form, target) = (kind.form(), self.shape.form);
        let all = bytes.chunks_exact(form.bytes);
        self.blocks.resize(all.len(), Block::default());
        let is_table = target.meaning == Meaning::Table;
        for ((bytes, block), codes) in all.zip(&mut self.blocks).zip(to.codes.chunks_mut(form.values)) {
            kind.decode(bytes, block);
            for (code, found) in codes.iter_mut().zip(&block.codes) {
                let index = |table: &[i8; 16]| {
                    let value = (found ^ 0x80) as i8;
                    table.iter().position(|known| *known == value).unwrap_or_default() as u8
                };
                *code = kind.table().filter(|_| is_table).map_or(*found, index);
            }
        }
        let times = if is_table { self.unit / table_scale(kind) } else { 1.0 };
        for (i, start) in self.starts.iter().enumerate() {
            let Some(start) = *start else { continue };
            let (block, group) = (&self.blocks[start / form.values], start % form.values / form.group);
            to.zeros[i] = form.zero;
            let factors = [block.factors[group], block.minimum_factors[group]].map(f32::from);
            (to.scales[i], to.minima[i]) = match (target.scales, form.has_factors) {
                (ScaleKind::Factor, _) => (factors[0], factors[1]),
                (_, true) => (block.scale * factors[0], -(block.minimum * factors[1])),
                (_, false) => (block.scale * times, block.minimum),
            };
        }
        if target.scales == ScaleKind::Factor {
            for (i, start) in self.shape.block_starts().into_iter().enumerate() {
                let block = &self.blocks[start / form.values];
                (to.units[i], to.minimum_units[i]) = (block.scale, -block.minimum);
            }
        }
    }
}

/// MXFP4's integer codes are twice their E2M1 values. Halving them here keeps the scales powers of two, which
/// fit
/// 8 bits.
fn table_scale(kind: BlockType) -> f32 {
    if kind == BlockType::Mxfp4 { 0.5 } else { 1.0 }
}

/// Values of the codes of blocks, if they are looked up.
pub(super) fn table_of_blocks(kind: BlockType) -> Option<[f32; 16]> {
    let half = table_scale(kind);
    kind.table().map(|table| table.map(|value| f32::from(value) * half))
}

impl Coded {
    /// Codes of another library, for leaves of `leaf` inputs.
    ///
    /// # Errors
    /// If no form preserves them.
    pub fn of_codes<T: Activation>(codes: &CodedMatrix, leaf: usize) -> Result<Self, LoadError> {
        let order = codes.order().map(|order| order.to_vec());
        let leaf = if order.is_some() { 0 } else { leaf };
        let (form, table) = (codes.device_form::<T>(leaf)?, codes.table().copied());
        Ok(Self { form, table, order, name: "codes" })
    }

    /// Blocks of GGUF.
    pub fn of_blocks(kind: BlockType, leaf: usize) -> Self {
        let table = table_of_blocks(kind);
        Self { form: form_of_blocks(kind, leaf), table, order: None, name: kind.name() }
    }

    /// Codes to which numbers are quantised.
    pub fn of_rounded(format: Format) -> Self {
        Self { form: form_of_rounded(format), table: None, order: None, name: format.name() }
    }
}

fn form_of_blocks(kind: BlockType, leaf: usize) -> Form {
    use BlockType::{Iq4Nl, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let of = kind.form();
    // 5 bits take 6.
    let bits = match kind {
        Q4_0 | Q4_1 | Q2K | Q3K | Q4K | Iq4Nl | Mxfp4 => 4,
        Q5_0 | Q5_1 | Q5K | Q6K => 6,
        Q8_0 => 8,
    };
    let meaning = if kind.table().is_some() { Meaning::Table } else { Meaning::Integers };
    // A block of the device's must be inside one of GGUF's.
    let has_units = of.has_factors && leaf.is_multiple_of(skein_kernels::cuda::ops::packed::BLOCK);
    let scales = match kind {
        Mxfp4 => ScaleKind::Power,
        _ if has_units => ScaleKind::Factor,
        _ if of.has_factors => ScaleKind::F32,
        _ => ScaleKind::F16,
    };
    let zero = if meaning == Meaning::Table { 0 } else { of.zero };
    let form = Form::new(bits, meaning, scales, Span::Inputs(of.group));
    Form { zero: Some(zero), has_minima: of.has_minimum, ..form }
}

fn form_of_rounded(format: Format) -> Form {
    if format == Format::INT8 {
        let form = Form::new(8, Meaning::Integers, ScaleKind::F32, Span::Leaf);
        return Form { zero: Some(128), ..form };
    }
    let form = Form::new(4, Meaning::Integers, ScaleKind::F16, Span::Inputs(32));
    Form { zero: None, ..form }
}

/// A packed matrix on the device and the rows of the checkpoint that are stacked in it.
pub struct PackedCopy<T> {
    /// Its place on the device.
    pub to: LinearWeight<T>,
    /// Rows of the checkpoint, with the first row of each in the stack.
    pub from: Vec<(usize, Source)>,
}

impl<T: Activation> PackedCopy<T> {
    /// The values on the device, and their shape.
    pub fn place(&self) -> (PackedValues, Shape) {
        let LinearWeight { n, k, leaf, values, .. } = self.to;
        let WeightValues::Packed(values) = values else { unreachable!("only packed matrices are copied") };
        (values, Shape { form: values.form, n, k, leaf })
    }

    /// Arranges `octets` of the matrix for the device.
    ///
    /// # Errors
    /// If a weight is not a finite number.
    pub fn arrange(&self, octets: Range<usize>) -> Result<Octets, LoadError> {
        let (_, shape) = self.place();
        let unit = self.table(shape.form).map_or(1.0, |table| table.unit);
        let rows = octets.start * OCTET..(octets.end * OCTET).min(shape.n);
        // The matrices among whose rows these are, with their first rows.
        let ends = self.from.iter().skip(1).map(|(start, _)| *start).chain([shape.n]);
        let mut readers: Vec<(usize, Reader<'_>)> = Vec::new();
        for ((start, source), end) in self.from.iter().zip(ends) {
            let own = rows.start.max(*start)..rows.end.min(end);
            if !own.is_empty() {
                readers.push((*start, source.reader(&shape, own.start - start..own.end - start, unit)?));
            }
        }
        pack(&shape, octets, |row, to| {
            let at = readers.partition_point(|(start, _)| *start <= row).saturating_sub(1);
            let (start, reader) = &mut readers[at];
            reader.read(row - *start, to)
        })
    }

    /// Copies arranged octets from `first` on to the device, and waits for the copies. The first ones take
    /// table and order with them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn write(&self, stream: &Stream, first: usize, octets: &Octets) -> Result<(), CudaError> {
        let (values, shape) = self.place();
        values.write_octets(stream, &shape, first, octets)?;
        if first == 0 {
            if let Some(table) = self.table(shape.form) {
                values.write_table(stream, &shape, &table)?;
            }
            let rows = shape.n / shape.form.orders.max(1);
            for index in 0..shape.form.orders {
                let of_rows = self.from.iter().find(|(start, _)| *start == index * rows);
                if let Some(order) = of_rows.and_then(|(_, source)| source.order()) {
                    values.write_order(stream, &shape, index, order)?;
                }
            }
        }
        Ok(())
    }

    /// Values of the codes, if the form looks them up.
    fn table(&self, form: Form) -> Option<Table> {
        if form.meaning != Meaning::Table {
            return None;
        }
        let values = self.from.iter().find_map(|(_, source)| source.table());
        let table = values.and_then(|values| Table::of::<T>(&values));
        Some(table.unwrap_or_else(|| unreachable!("the form was made from the table")))
    }
}
