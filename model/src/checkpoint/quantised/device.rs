//! A matrix of codes for a device whose products read [packed forms](skein_kernels::cuda::ops::packed).

use safetensors::tensor::Dtype;
use skein_kernels::cpu::packed::{GivenRow, GivenRows, PackError};
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::packed::{self, Form, Row, ScaleKind, Span};

use super::matrix::{CodedMatrix, Meaning, Scales, Zeros};
use crate::LoadError;

impl CodedMatrix {
    /// Form that preserves all codes, zero points and scales, for sums in leaves of `leaf` inputs; 0: without
    /// leaves.
    ///
    /// # Errors
    /// If groups are not multiples of 16 inputs.
    pub fn device_form<T: Activation>(&self, leaf: usize) -> Result<Form, LoadError> {
        let stored = self.stored();
        let is_single = stored.group >= stored.cols;
        let is_cut = leaf > 0 || self.cols() < stored.cols;
        let leaf_inputs = if leaf > 0 { leaf } else { self.cols() };
        let fits = |length: &usize| {
            stored.group.is_multiple_of(*length) && (!is_cut || leaf_inputs.is_multiple_of(*length))
        };
        let span =
            if is_single { Some(Span::Leaf) } else { Span::LENGTHS.into_iter().find(fits).map(Span::Inputs) };
        let wrong = |reason| LoadError::CodedTensor { tensor: self.name().to_owned(), reason };
        let span = span.ok_or_else(|| {
            let group = stored.group;
            wrong(format!(
                "it has groups of {group} inputs; CUDA has groups of a multiple of 16 and of all inputs"
            ))
        })?;
        let scales = match &stored.scales {
            Scales::Grid(grid) if grid.dtype == Dtype::F16 => ScaleKind::F16,
            Scales::Grid(grid) if grid.dtype == Dtype::U8 => ScaleKind::Power,
            Scales::Divided(grid, _) | Scales::Multiplied(grid, _) if grid.dtype == Dtype::F8_E4M3 => {
                ScaleKind::E4m3
            }
            Scales::Grid(_) | Scales::Divided(..) | Scales::Multiplied(..) | Scales::Nested { .. } => {
                ScaleKind::F32
            }
        };
        let (bits, meaning) = match stored.meaning {
            Meaning::Int4 => (4, packed::Meaning::Integers),
            Meaning::Int8 => (8, packed::Meaning::Integers),
            Meaning::Fp8 => (8, packed::Meaning::E4m3),
            Meaning::Table => (4, packed::Meaning::Table),
        };
        let form = Form::new(bits, meaning, scales, span);
        if meaning == packed::Meaning::Table {
            let table = packed::Table::of::<T>(&stored.table).ok_or_else(|| {
                let type_of = T::SUFFIX;
                wrong(format!("its codes have values that are not sums of a few numbers in {type_of}"))
            })?;
            let scales = if table.unit == 1.0 { scales } else { ScaleKind::F32 };
            return Ok(Form { scales, parts: table.parts, ..form });
        }
        let zero = match &stored.zeros {
            Zeros::All(zero) => Some(*zero),
            _ => None,
        };
        Ok(Form { zero, orders: usize::from(self.order().is_some()), ..form })
    }

    /// Values of the codes, if they are looked up.
    pub fn table(&self) -> Option<&[f32; 16]> {
        (self.stored().meaning == Meaning::Table).then_some(&self.stored().table)
    }

    /// Writes output `row` to `to`, whose scales are of the kind `scales`, have these first inputs, and are
    /// multiplied by `unit`.
    ///
    /// # Errors
    /// If a code or scale is not a finite number.
    pub fn device_row(
        &self,
        row: usize,
        scales: ScaleKind,
        starts: &[Option<usize>],
        unit: f32,
        to: &mut Row,
    ) -> Result<(), PackError> {
        let known: Vec<usize> = starts.iter().flatten().copied().collect();
        let (mut values, mut zeros) = (vec![0.0; known.len()], vec![0; known.len()]);
        let given = GivenRow { codes: &mut to.codes, scales: &mut values, zeros: &mut zeros, starts: &known };
        self.in_order(|row| row).row(row, given)?;
        let places = starts.iter().enumerate().filter(|(_, start)| start.is_some()).map(|(i, _)| i);
        for (i, (scale, zero)) in places.zip(values.iter().zip(zeros)) {
            (to.scales[i], to.zeros[i]) = (scale * unit, zero);
        }
        if let (ScaleKind::E4m3, Some(relative)) = (scales, self.relative_scales(row, &known)) {
            to.units[0] = match self.stored().scales {
                Scales::Divided(_, by) => by,
                Scales::Multiplied(_, by) => -by, // the form's sign of a factor
                Scales::Grid(_) | Scales::Nested { .. } => unreachable!("scales are relative to a number"),
            };
            let places = starts.iter().enumerate().filter(|(_, start)| start.is_some()).map(|(i, _)| i);
            places.zip(relative).for_each(|(i, scale)| to.scales[i] = scale);
        }
        Ok(())
    }
}
