//! Random codes generated on the device, with scales that give dequantised weights a deviation.
//!
//! Codes are uniform, because a GPU's power, and so its clock, depends on how many bits change. Scales lie in
//! a narrow range: all bits but the low ones of a significand are given, so none can be NaN or infinite.

use half::f16;
use skein_kernels::cuda::memory::E4m3;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::linear::LinearWeight;
use skein_kernels::cuda::ops::packed::{Form, Meaning, PackedValues, ScaleKind, Shape, Table};
use skein_kernels::cuda::ops::random::{Bits, FillBits, FillNormal};
use skein_kernels::cuda::{CudaError, DeviceSlice, Kernels, Stream};
use skein_node::random::SplitMix64;

/// Standard deviation of e4m3 codes, which uses most of their range without saturating.
pub(super) const CODE_DEVIATION: f32 = 64.0;
/// Random bits of a scale's significand: numbers up to an eighth larger.
const LOW_F32: u32 = (1 << 20) - 1;
const LOW_F16: u16 = (1 << 7) - 1;
/// FP8 scales from 1 to 1.875, and their root mean square.
const SCALES_E4M3: (Bits, f32) = (Bits { keep: 0x0707_0707, set: 0x3838_3838 }, 1.466);
/// Integer scales from 32 to 63, the upper half of K-quants', and their root mean square.
const FACTORS: (Bits, f32) = (Bits { keep: 0x1f1f_1f1f, set: 0x2020_2020 }, 48.39);
/// Bytes of an octet's block of 6-bit codes: of low bits, and of all.
const LOW_OF_SIX: usize = 512;
const SIX: usize = 768;

/// Fills packed matrices.
pub(super) struct PackedFill<'a> {
    bits: FillBits,
    floats: FillNormal<E4m3>,
    stream: &'a Stream,
    /// Values of codes that are looked up.
    table: Option<[f32; 16]>,
}

impl<'a> PackedFill<'a> {
    pub fn new(kernels: &Kernels, stream: &'a Stream, table: Option<[f32; 16]>) -> Result<Self, CudaError> {
        Ok(Self { bits: FillBits::new(kernels)?, floats: FillNormal::new(kernels)?, stream, table })
    }

    /// Queues kernels that fill a matrix so that its weights have `deviation`. Each part has its own of the
    /// `seeds`.
    pub fn fill<T: Activation>(
        &self,
        weight: &LinearWeight<T>,
        values: PackedValues,
        deviation: f32,
        seeds: &mut SplitMix64,
    ) -> Result<(), CudaError> {
        let form = values.form;
        let shape = Shape { form, n: weight.n, k: weight.k, leaf: weight.leaf };
        let table = (form.meaning == Meaning::Table).then(|| {
            let table = self.table.as_ref().and_then(Table::of::<T>);
            table.unwrap_or_else(|| unreachable!("the form was made from the table"))
        });
        let numbers = Numbers::of(form, self.table);
        let scale = deviation / numbers.deviation * table.as_ref().map_or(1.0, |table| table.unit);
        let minimum = -numbers.mean * scale;
        let places = shape.places();
        let mut fill = |place: std::ops::Range<usize>, of: Bits| {
            self.bits.launch(self.stream, values.memory.slice(place), seeds.next_u64(), of)
        };
        fill(places.scales, around(form.scales, scale))?;
        fill(places.minima, around(form.scales, minimum))?;
        let [units, minimum_units] = [scale, minimum].map(|value| units(form.scales, value));
        fill(places.units, units)?;
        fill(places.minimum_units, minimum_units)?;
        fill(places.zeros, Bits::of_bytes(numbers.most, 0))?;
        self.codes(values.memory.slice(places.codes), form, numbers.most, seeds)?;
        if let Some(table) = table {
            values.write_table(self.stream, &shape, &table)?;
        }
        for index in 0..form.orders {
            values.write_order(self.stream, &shape, index, &permutation(shape.k, seeds))?;
        }
        Ok(())
    }

    /// Queues kernels that fill codes from 0 to `most`.
    fn codes(
        &self,
        codes: DeviceSlice<u8>,
        form: Form,
        most: u8,
        seeds: &mut SplitMix64,
    ) -> Result<(), CudaError> {
        let mut seed = || seeds.next_u64();
        if form.meaning == Meaning::E4m3 {
            return self.floats.launch(self.stream, codes.cast(), seed(), CODE_DEVIATION);
        }
        match form.bits {
            8 => self.bits.launch(self.stream, codes, seed(), Bits::of_bytes(most, 0)),
            4 => self.bits.launch(self.stream, codes, seed(), Bits::of_bytes(most << 4 | most, 0)),
            // Four low bits of each code, then two high ones.
            _ => {
                let [low, high] = [most & 15, most >> 4].map(|bits| bits << 4 | bits);
                let high = Bits::of_bytes(high << 2 | high, 0);
                let after = codes.slice(LOW_OF_SIX..codes.len());
                self.bits.launch_pieces(
                    self.stream,
                    codes,
                    (LOW_OF_SIX, SIX),
                    seed(),
                    Bits::of_bytes(low, 0),
                )?;
                self.bits.launch_pieces(self.stream, after, (SIX - LOW_OF_SIX, SIX), seed(), high)
            }
        }
    }
}

/// What a form's random codes stand for before scales are applied.
struct Numbers {
    /// Largest code and zero point, all ones.
    most: u8,
    /// Mean that minima must make up for; 0 without minima.
    mean: f32,
    /// Standard deviation, or root mean square without minima.
    deviation: f32,
}

impl Numbers {
    fn of(form: Form, table: Option<[f32; 16]>) -> Self {
        let most = (u16::MAX >> (16 - form.bits)) as u8;
        if form.meaning == Meaning::E4m3 {
            return Self { most, mean: 0.0, deviation: CODE_DEVIATION };
        }
        if let (Meaning::Table, Some(table)) = (form.meaning, table) {
            let squares = table.iter().map(|value| value * value).sum::<f32>() / table.len() as f32;
            return Self { most, mean: 0.0, deviation: squares.sqrt() };
        }
        // Codes with a common zero point are symmetric around it, even if they are stored in more bits.
        let most = match form.zero {
            Some(zero @ 1..=64) if !form.has_minima => most.min(2 * zero - 1),
            _ => most,
        };
        let levels = f32::from(most) + 1.0;
        let (mean, variance) = (f32::from(most) / 2.0, (levels * levels - 1.0) / 12.0);
        match form.zero {
            Some(zero) if form.has_minima => {
                Self { most, mean: mean - f32::from(zero), deviation: variance.sqrt() }
            }
            Some(zero) => {
                let from_zero = mean - f32::from(zero);
                Self { most, mean: 0.0, deviation: (variance + from_zero * from_zero).sqrt() }
            }
            // Zero points are as random as codes.
            None => Self { most, mean: 0.0, deviation: (2.0 * variance).sqrt() },
        }
    }
}

/// Bits of scales or minima of a kind near `value`; of kinds with [units], those that the units make up for.
fn around(kind: ScaleKind, value: f32) -> Bits {
    match kind {
        ScaleKind::F32 => Bits { keep: LOW_F32, set: value.to_bits() & !LOW_F32 },
        ScaleKind::F16 => match f16::from_f32(value) {
            // Its low bits may be all that it has.
            small if value.abs() < f16::MIN_POSITIVE.to_f32() => Bits::of_halves(0, small.to_bits()),
            normal => Bits::of_halves(LOW_F16, normal.to_bits() & !LOW_F16),
        },
        // The nearest power of two; the next one would be twice as large.
        ScaleKind::Power => Bits::of_bytes(0, (value.log2().round() + 127.0) as u8),
        ScaleKind::E4m3 => SCALES_E4M3.0,
        ScaleKind::Factor => FACTORS.0,
    }
}

/// Bits of the units with which scales of a kind are near `value`.
fn units(kind: ScaleKind, value: f32) -> Bits {
    match kind {
        ScaleKind::F32 | ScaleKind::F16 | ScaleKind::Power => Bits::UNIFORM, // there are none
        // Scales are divided by it.
        ScaleKind::E4m3 => around(ScaleKind::F32, SCALES_E4M3.1 / value),
        ScaleKind::Factor => around(ScaleKind::F16, value / FACTORS.1),
    }
}

/// Numbers below `len` in a random order (Fisher-Yates).
fn permutation(len: usize, random: &mut SplitMix64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len as u32).collect();
    for last in (1..len).rev() {
        order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use skein_kernels::cuda::blaslt::BlasElement;
    use skein_kernels::cuda::ops::linear::{Linear, LinearOptions, WeightValues};
    use skein_kernels::cuda::ops::packed::{PackedProducts, Span};
    use skein_kernels::cuda::{Device, DeviceBuffer};

    use super::*;

    const DEVIATION: f32 = 0.02;

    /// Dequantised weights of a random matrix, by a product with the unit matrix.
    fn weights<T: Activation + BlasElement>(form: Form, table: Option<[f32; 16]>) -> Vec<f32> {
        let device = Device::open(0).unwrap();
        let (kernels, stream) = (Kernels::load(&device).unwrap(), Stream::new(&device).unwrap());
        let (n, k) = (48, 256);
        let bytes = Shape { form, n, k, leaf: 0 }.bytes();
        let memory = DeviceBuffer::<u8>::new(&device, bytes).unwrap();
        let values = PackedValues { form, memory: *memory };
        let weight = LinearWeight::<T> {
            n,
            k,
            bias: DeviceSlice::NONE,
            values: WeightValues::Packed(values),
            leaf: 0,
        };
        let fill = PackedFill::new(&kernels, &stream, table).unwrap();
        fill.fill(&weight, values, DEVIATION, &mut SplitMix64::new(7)).unwrap();
        let unit: Vec<T> = (0..k * k).map(|i| T::from_f32(f32::from(u8::from(i / k == i % k)))).collect();
        let x = DeviceBuffer::from_slice(&device, &stream, &unit).unwrap();
        let out = DeviceBuffer::<f32>::new(&device, k * n).unwrap();
        let workspace = DeviceBuffer::new(&device, PackedProducts::<T>::workspace_bytes(k, k)).unwrap();
        let linear = Linear::<T>::new(&kernels, None, LinearOptions::default()).unwrap();
        linear.launch_f32(&stream, *out, *x, &weight, k, *workspace).unwrap();
        out.read(&stream).unwrap()
    }

    fn check<T: Activation + BlasElement>(form: Form, table: Option<[f32; 16]>) {
        let all = weights::<T>(form, table);
        let count = all.len() as f32;
        let mean = all.iter().sum::<f32>() / count;
        let deviation = (all.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count).sqrt();
        assert!(all.iter().all(|value| value.is_finite()), "{form:?}");
        // Powers of two are up to the root of two away, others up to an eighth.
        assert!((0.013..0.029).contains(&deviation), "{form:?}: deviation {deviation}");
        // An even number of codes has its zero half a code from the middle.
        assert!(mean.abs() < 0.006, "{form:?}: mean {mean}");
        let mut different: Vec<u32> = all.iter().map(|value| value.to_bits()).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 14, "{form:?}: {} values", different.len());
    }

    #[test]
    fn weights_in_every_form_are_finite_and_have_the_deviation() {
        if !skein_cuda_emulation::load() {
            return;
        }
        let integers = |bits, scales, span| Form::new(bits, Meaning::Integers, scales, span);
        let group = Span::Inputs(32);
        for scales in [ScaleKind::F32, ScaleKind::F16, ScaleKind::Factor] {
            for (bits, zero) in [(4, Some(8)), (4, Some(4)), (6, Some(16)), (6, Some(32)), (8, Some(128))] {
                check::<bf16>(Form { zero, ..integers(bits, scales, group) }, None);
            }
            for bits in [4, 6, 8] {
                check::<bf16>(Form { zero: None, ..integers(bits, scales, Span::Leaf) }, None);
                check::<f16>(Form { has_minima: true, ..integers(bits, scales, group) }, None);
            }
        }
        check::<bf16>(Form { zero: None, orders: 1, ..integers(4, ScaleKind::F16, group) }, None);
        for span in [Span::Leaf, Span::Inputs(128)] {
            check::<bf16>(Form::new(8, Meaning::E4m3, ScaleKind::F32, span), None);
        }
        let floats = |code: usize| [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code % 8] * [1.0, -1.0][code / 8];
        let floats: [f32; 16] = std::array::from_fn(floats);
        for (scales, span) in
            [(ScaleKind::Power, group), (ScaleKind::E4m3, Span::Inputs(16)), (ScaleKind::F32, Span::Leaf)]
        {
            check::<bf16>(Form::new(4, Meaning::Table, scales, span), Some(floats));
        }
        // A table that half precision stores with a unit.
        let long: [f32; 16] = std::array::from_fn(|i| (i as f32 - 7.5) / 7.3);
        let parts = Table::of::<f16>(&long).unwrap().parts;
        let form = Form { parts, ..Form::new(4, Meaning::Table, ScaleKind::F32, Span::Inputs(64)) };
        check::<f16>(form, Some(long));
    }
}
