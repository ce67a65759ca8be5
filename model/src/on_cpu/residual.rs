//! The residual stream, and products that are added to it: their inputs are divided among ranks.

use skein_kernels::collective::Lost;
use skein_kernels::cpu::Cpu;
use skein_kernels::cpu::aligned::Aligned;
use skein_kernels::cpu::input::Input;
use skein_kernels::cpu::matmul::{Linear, Write, matmul};
use skein_kernels::cpu::norm::rms_norm_add;
use skein_kernels::cpu::rows::{Rows, RowsMut};

use super::adapter::{AdapterRows, ChangedProduct};
use super::exchange::Exchange;

/// Changes by adapters to a product with the input `x`.
pub(super) struct Change<'a> {
    pub adapters: &'a AdapterRows,
    pub at: ChangedProduct,
    pub x: Rows<'a>,
    /// Memory for the products with A.
    pub inner: &'a mut Aligned<f32>,
}

impl Change<'_> {
    /// Adds the changes to a product divided among ranks by its inputs: each rank's products with A, joined
    /// like the model's, then the product with B on every rank.
    fn add_to(self, cpu: &mut Cpu, exchange: Exchange<'_>, y: RowsMut<'_>) -> Result<(), Lost> {
        let Self { adapters, at, x, inner } = self;
        if !adapters.change(at) {
            return Ok(());
        }
        let Exchange { shared, ranks } = exchange;
        if ranks.count() == 1 {
            adapters.add_to(cpu, at, x, y);
            return Ok(());
        }
        let (rows, components) = adapters.components(at);
        inner.grow(rows * components);
        let inner = &mut inner[..rows * components];
        let sum = |cpu: &mut Cpu, own: &mut [f32]| {
            adapters.inner(cpu, at, x, RowsMut { values: own, stride: components });
        };
        let whole = RowsMut { values: &mut *inner, stride: components };
        shared.sum(cpu, ranks, None, whole, Write::Set, sum)?;
        adapters.add_outer(cpu, at, Rows { values: inner, stride: components }, y);
        Ok(())
    }
}

/// The residual stream.
pub(super) struct Residual<'a> {
    pub x: &'a mut [f32],
    /// Output that is normalised before it is added.
    pub added: &'a mut Aligned<f32>,
    pub exchange: Exchange<'a>,
    pub eps: f32,
}

impl Residual<'_> {
    /// Adds a product divided among ranks by its inputs, normalised if `norm` is given.
    pub fn add(
        self,
        cpu: &mut Cpu,
        input: &Input,
        linear: Linear<'_>,
        norm: Option<&[f32]>,
        change: Change<'_>,
    ) -> Result<(), Lost> {
        let (Self { x, added, mut exchange, eps }, stride) = (self, linear.weights.rows());
        let Some(norm) = norm else {
            product(cpu, &mut exchange, input, linear, x, Write::Add)?;
            return change.add_to(cpu, exchange, RowsMut { values: x, stride });
        };
        let added = &mut added[..x.len()];
        product(cpu, &mut exchange, input, linear, added, Write::Set)?;
        change.add_to(cpu, exchange, RowsMut { values: &mut *added, stride })?;
        rms_norm_add(cpu, added, norm, eps, x);
        Ok(())
    }
}

/// Product divided among ranks by its inputs: the sum of all ranks' leaves, then the bias, then `y`.
fn product(
    cpu: &mut Cpu,
    exchange: &mut Exchange<'_>,
    input: &Input,
    linear: Linear<'_>,
    y: &mut [f32],
    write: Write,
) -> Result<(), Lost> {
    let Exchange { shared, ranks } = exchange;
    if ranks.count() == 1 {
        matmul(cpu, input, &[linear], y, write);
        return Ok(());
    }
    let own = Linear { bias: None, ..linear };
    let sum = |cpu: &mut Cpu, to: &mut [f32]| matmul(cpu, input, &[own], to, Write::Set);
    let y = RowsMut { values: y, stride: linear.weights.rows() };
    shared.sum(cpu, *ranks, linear.bias, y, write, sum)
}
