//! Matrices of codes in products: matrices that read the same input are multiplied together.

use std::collections::{HashMap, HashSet};

use skein_kernels::cpu::packed::{Format, Order, Packed};

use super::pack::{Matrix, Use};
use crate::LoadError;
use crate::tensors::{Kind, StoredMatrix};

/// Refuses products whose matrices differ in storage or in the order of their inputs.
pub(super) fn check(matrices: &[Matrix]) -> Result<(), LoadError> {
    let mut firsts: HashMap<_, &Matrix> = HashMap::new();
    for matrix in matrices {
        let Kind::Matrix(product, _) = matrix.tensor.kind else { continue };
        let at = (matrix.tensor.layer, matrix.tensor.expert, product);
        let first = *firsts.entry(at).or_insert(matrix);
        if first.codes != matrix.codes
            || is_integer(first) != is_integer(matrix)
            || order(first) != order(matrix)
        {
            return Err(LoadError::MixedProduct {
                first: first.tensor.name.clone(),
                first_form: form(first),
                second: matrix.tensor.name.clone(),
                second_form: form(matrix),
            });
        }
    }
    Ok(())
}

fn order(matrix: &Matrix) -> Option<&Order> {
    match &matrix.weights {
        StoredMatrix::Codes(codes) => codes.order(),
        StoredMatrix::Numbers(_) | StoredMatrix::Columns(_) => None,
    }
}

/// Whether the matrix is multiplied as integers when nothing is quantised at load.
fn is_integer(matrix: &Matrix) -> bool {
    match matrix.codes {
        Some(format) => format.is_integer(),
        None => matrix.for_use != Use::Router && matrix.weights.is_quantised(),
    }
}

/// Storage of a matrix, for messages.
fn form(matrix: &Matrix) -> String {
    let name = match (&matrix.weights, matrix.codes) {
        (_, Some(format)) => format.name(),
        (StoredMatrix::Numbers(numbers), None) if matrix.weights.is_quantised() => numbers.storage().name(),
        _ => "16 or 32 bits",
    };
    if order(matrix).is_some() { format!("{name} in activation order") } else { name.to_owned() }
}

/// Packed `matrices` with the order of their inputs, which decoded ones do not have. Equal orders are shared.
pub(super) fn in_order(matrices: &[Matrix], packed: Vec<Packed>) -> Vec<Packed> {
    let mut orders: HashSet<Order> = HashSet::new();
    let mut shared = |order: &Order| match orders.get(order) {
        Some(known) => known.clone(),
        None => {
            orders.insert(order.clone());
            order.clone()
        }
    };
    let with_order = |(matrix, packed): (&Matrix, Packed)| {
        let format = packed.layout().format;
        let order = order(matrix).filter(|_| format != Format::F32).cloned();
        packed.with_order(order.or_else(|| matrix.input_order(format)).as_ref().map(&mut shared))
    };
    matrices.iter().zip(packed).map(with_order).collect()
}

#[cfg(test)]
mod tests {
    use skein_kernels::cpu::Cpu;
    use skein_kernels::cpu::blocks::BlockType;
    use skein_kernels::cpu::input::{Encoding, Input};
    use skein_kernels::cpu::matmul::{Linear, Write, matmul};
    use skein_kernels::cpu::matrix::{Storage, WeightMatrix};

    use super::*;
    use crate::checkpoint::Weights;
    use crate::on_cpu::pack::pack;
    use crate::on_cpu::packed_cache::PackedCache;
    use crate::tensors::{Place, Product, Role, Stored, Tensor};

    const ROWS: usize = 5;
    const COLS: usize = 128;

    /// Product of `weights`, whose columns are in the order of `input_order`, with its bits.
    fn product(weights: WeightMatrix, input_order: Option<Vec<usize>>, rounded: Option<Format>) -> Vec<f32> {
        let (shape, place) = (vec![ROWS, COLS], Place::Rows);
        let stored = vec![Stored { name: "output".into(), shape, first_row: 0, place }];
        let tensor = Tensor {
            name: "output".into(),
            layer: None,
            expert: None,
            head: None,
            role: Role::StateOutput,
            kind: Kind::Matrix(Product::AttentionOutput, 0),
            rows: ROWS,
            cols: COLS,
            stored,
            order: None,
            input_order,
        };
        let (weights, delta, cpu) = (StoredMatrix::Numbers(weights), None, &mut Cpu::new(1));
        let for_use = Use::Layer;
        let matrices = [Matrix { tensor, weights, part_at: None, for_use, leaves: 1, delta, codes: None }];
        let files = Weights::open(&skein_golden::path("models/qwen3")).unwrap(); // not read
        let cache = PackedCache::none();
        let packed = pack(cpu, &matrices, rounded, &files, &cache, 0, &mut |_, _| {}).unwrap();
        let packed = in_order(&matrices, packed).remove(0);
        let x: Vec<f32> = (0..COLS).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.02).collect();
        let (mut input, mut y) = (Input::default(), vec![0.0; ROWS]);
        input.set_order(packed.order().cloned());
        let encoding = if packed.layout().format.is_integer() { Encoding::Int8 } else { Encoding::F32 };
        input.set(cpu, encoding, &x, COLS);
        matmul(cpu, &input, &[Linear { weights: &packed, bias: None }], &mut y, Write::Set);
        y
    }

    #[test]
    fn inputs_in_another_order_meet_their_weights() {
        // Two heads of 64 inputs in blocks of 32, stored the other way round.
        let order: Vec<usize> = (0..COLS).map(|input| (input + 64) % COLS).collect();
        let bytes: Vec<u8> = (0..ROWS * COLS / 32)
            .flat_map(|block| {
                let scale = half::f16::from_f32(0.01 * (1 + block % 3) as f32).to_le_bytes();
                scale.into_iter().chain((0..32).map(move |i| ((block * 32 + i) * 29 % 251) as u8))
            })
            .collect();
        let blocks = WeightMatrix::new(Storage::Blocks(BlockType::Q8_0, bytes.into()), ROWS, COLS);
        let numbers = blocks.widened();
        let expected = product(numbers.with_columns(|input| order[input]), None, None);
        let most = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
        let off = |got: Vec<f32>| {
            let worst = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs());
            worst.fold(0f32, f32::max) / most
        };
        assert_eq!(product(numbers.clone(), Some(order.clone()), None), expected);
        let rounded = product(numbers.with_columns(|input| order[input]), None, Some(Format::INT8));
        assert_eq!(product(numbers, Some(order.clone()), Some(Format::INT8)), rounded);
        for rounded in [None, Some(Format::F32)] {
            let got = off(product(blocks.clone(), Some(order.clone()), rounded));
            assert!(got < 0.05, "{rounded:?}: {got}");
        }
        assert!(off(product(blocks, None, None)) > 0.2, "the order matters");
    }
}
