//! A packed matrix in the device's memory.

use super::form::{Form, Places, Shape};
use super::pack::{Octets, Table};
use crate::cuda::launch::Args;
use crate::cuda::{CudaError, DeviceSlice, Stream};

/// A packed matrix on the device.
#[derive(Debug, Clone, Copy)]
pub struct PackedValues {
    /// How it is stored.
    pub form: Form,
    /// [`Shape::bytes`] bytes.
    pub memory: DeviceSlice<u8>,
}

impl PackedValues {
    /// Adds the arguments that describe the matrix: `MATRIX_PARAMETERS` of `cu/packed.cuh`.
    pub(in crate::cuda::ops) fn args(&self, places: &Places, args: Args<'static>) -> Args<'static> {
        let address = |place: &std::ops::Range<usize>| {
            if place.is_empty() { 0 } else { self.memory.address() + place.start as u64 }
        };
        args.u64(address(&places.codes))
            .u64(address(&places.scales))
            .u64(address(&places.units))
            .u64(address(&places.minima))
            .u64(address(&places.minimum_units))
            .u64(address(&places.zeros))
            .u64(address(&places.table))
            .u32(u32::from(self.form.zero.unwrap_or(0)))
            .size(self.form.meaning as usize)
            .size(self.form.scales as usize)
            .size(self.form.span.code())
            .size(self.form.parts)
    }

    /// Copies octets from `first` on to their places, and waits for the copies.
    pub fn write_octets(
        &self,
        stream: &Stream,
        shape: &Shape,
        first: usize,
        octets: &Octets,
    ) -> Result<(), CudaError> {
        let Places { codes, scales, units, minima, minimum_units, zeros, .. } = shape.places();
        let places = [codes, scales, units, minima, minimum_units, zeros];
        for (place, (bytes, each)) in places.into_iter().zip(&octets.parts) {
            if !bytes.is_empty() {
                let start = first * each;
                self.memory.slice(place).slice(start..start + bytes.len()).write(stream, bytes)?;
            }
        }
        Ok(())
    }

    /// Copies the table of the codes' values, and waits for the copy.
    pub fn write_table(&self, stream: &Stream, shape: &Shape, table: &Table) -> Result<(), CudaError> {
        self.memory.slice(shape.places().table).write(stream, &table.bytes())
    }

    /// Copies the input of each column of order `index`, and waits for the copy.
    pub fn write_order(
        &self,
        stream: &Stream,
        shape: &Shape,
        index: usize,
        order: &[u32],
    ) -> Result<(), CudaError> {
        self.orders(shape).slice(index * shape.k..(index + 1) * shape.k).write(stream, order)
    }

    /// Input of each column, `[orders, k]`; empty if columns are in the inputs' order.
    pub fn orders(&self, shape: &Shape) -> DeviceSlice<u32> {
        self.memory.slice(shape.places().order).cast()
    }
}
