//! The matrices that adapters may change while the model serves, and their places in products.

use super::LoadError;
use super::adapter::{Adapter, Delta, changeable};
use super::role::{Product, Role};
use super::spec::Spec;
use super::tensors::{self, Kind, Tensor};
use crate::shard::Shard;

/// Why a matrix cannot be changed while the model serves.
const NOT_BESIDE: &str = "changes a matrix that cannot be changed beside the model: served adapters change \
    attention (not latent, and no queries with gates), dense feed-forward networks and an untied head, and \
    nothing in layers with states; one \
    adapter may be merged into the weights at load instead (--lora-modules without --enable-lora)";

/// Place of a matrix: its product, and which of the product's matrices it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The layer, and the index in [`Product::OF_A_LAYER`]; `None` = the head.
    pub of_layer: Option<(usize, usize)>,
    /// 0 to 2.
    pub nth: usize,
}

impl Place {
    /// The place of `tensor`, if it is in a product of attention, of a dense network, or the head.
    fn of(tensor: &Tensor) -> Option<Self> {
        let Kind::Matrix(product, _) = tensor.kind else { return None };
        let nth = match tensor.role {
            Role::Query | Role::AttentionOutput | Role::Gate | Role::Down | Role::Head => 0,
            Role::Key | Role::Up => 1,
            Role::Value => 2,
            _ => return None,
        };
        if tensor.role == Role::Head {
            return Some(Self { of_layer: None, nth });
        }
        let product = Product::OF_A_LAYER.iter().position(|of| *of == product)?;
        Some(Self { of_layer: Some((tensor.layer?, product)), nth })
    }
}

/// Matrices that served adapters may change, among all `tensors` of the model of `spec`.
pub fn may_change<'a>(spec: &Spec, tensors: &'a [Tensor]) -> impl Iterator<Item = (&'a Tensor, Place)> {
    let is_latent = spec.attention.latent.is_some();
    tensors.iter().filter_map(move |tensor| {
        let of_attention =
            !matches!(tensor.role, Role::Gate | Role::Up | Role::Down | Role::Head) && is_latent;
        Some((tensor, Place::of(tensor).filter(|_| !of_attention)?))
    })
}

/// First row of `tensor` in the rank's stacked product.
pub(super) fn first_on_rank(all: &[Tensor], spec: &Spec, shard: &Shard, tensor: &Tensor) -> usize {
    let product = |tensor: &Tensor| match tensor.kind {
        Kind::Matrix(product, first) => Some((tensor.layer, tensor.expert, product, first)),
        _ => None,
    };
    let Some((layer, expert, of, own)) = product(tensor) else { return 0 };
    let before = all.iter().filter(|other| {
        product(other).is_some_and(|(its_layer, its_expert, its, first)| {
            (its_layer, its_expert, its) == (layer, expert, of) && first < own
        })
    });
    before.map(|tensor| shard.part(spec, tensor).rows.len()).sum()
}

/// Calls `found` with each change of `adapter` to the model of `spec`.
///
/// # Errors
/// If it is for another model, has a rank above `max_rank`, or changes other matrices than [`may_change`]
/// lists; and errors of `found`.
pub fn for_each_change(
    adapter: &Adapter,
    spec: &Spec,
    max_rank: usize,
    mut found: impl FnMut(&Tensor, Place, &Delta) -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    let all = tensors::all(&spec.as_published());
    let known = changeable(&all);
    adapter.check_is_used(&known)?;
    let allowed: Vec<(&Tensor, Place)> = may_change(spec, &all).collect();
    for tensor in known {
        let Some(delta) = adapter.delta(tensor)? else { continue };
        let Some((_, place)) =
            allowed.iter().find(|(it, _)| it.name == tensor.name && it.role == tensor.role)
        else {
            return Err(adapter.refused(&tensor.name, NOT_BESIDE));
        };
        let rank = delta.rank();
        if rank > max_rank.min(super::adapter::MAX_SERVED_RANK) {
            let reason = format!("has rank {rank} there, and --max-lora-rank is {max_rank}");
            return Err(adapter.refused(&tensor.name, &reason));
        }
        found(tensor, *place, &delta)?;
    }
    Ok(())
}

/// Checks `adapter` without reading its weights.
///
/// # Errors
/// As [`for_each_change`].
pub fn check(adapter: &Adapter, spec: &Spec, max_rank: usize) -> Result<(), LoadError> {
    for_each_change(adapter, spec, max_rank, |_, _, _| Ok(()))
}
