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
        let order = order(matrix).filter(|_| packed.layout().format != Format::F32);
        packed.with_order(order.map(&mut shared))
    };
    matrices.iter().zip(packed).map(with_order).collect()
}
