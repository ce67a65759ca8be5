//! One half-precision scale per output and group of 32 columns: 8 bits, or 4 bits with a zero point. These
//! formats also hold weights that were quantised elsewhere ([`pack_codes`](super::super::pack_codes)): GPTQ,
//! AWQ, GGUF.

#![allow(clippy::needless_range_loop)] // m and n index several arrays, as in the formula

use std::marker::PhantomData;

use super::super::rounding::{self, Codes, Panel, Rounding, encode};
use super::super::scale::{
    Lanes, Weights as GroupWeights, eight_bits as scale_of_eight_bits, four_bits_zero,
};
use super::super::{Format, PANEL, Packed, Scales, Spec, Weights, ZERO};
use super::int8;
use crate::cpu::aligned::LINE_BYTES;
use crate::cpu::input::GROUP;
use crate::cpu::matmul::integer::Product;
use crate::cpu::matmul::integer::tile::{Floats, IntegerTileInputs, Kind, add_group};
use crate::cpu::matmul::part::Part;
use crate::cpu::matmul::tiles::{Prefetch, PrefetchCursor};
use crate::cpu::rows::Strided;
use crate::cpu::simd::integer::{IntegerIsa, Integers};
use crate::cpu::simd::{Isa, LANES, Simd};

pub(super) const INT8_GROUP: Format = Format(&EIGHT);
pub(super) const INT4_ZERO: Format = Format(&FOUR);

static EIGHT: Spec = spec::<EightBits>(["Int8Group", "int8-group"]);
static FOUR: Spec = spec::<FourBits>(["Int4Zero", "int4-zero"]);

const fn spec<C: Coded>(names: [&'static str; 2]) -> Spec {
    let weights =
        Weights::Codes { code: Packed::stored_code, scales: Scales::Groups, has_zeros: C::HAS_ZEROS };
    // A group's sums are kept besides those of all columns.
    let sums = [2, 2];
    Spec { sums, head: C::HEAD, ..Spec::new(names, C::BITS, GROUP, weights, rounding::pack::<C>) }
}

/// The two formats of this file.
trait Coded: Rounding {
    const FORMAT: Format;
    const BITS: u32;
    const HAS_ZEROS: bool;
    /// The value of [`Spec::head`].
    const HEAD: Option<Format>;
}

struct EightBits;
struct FourBits;

impl Coded for EightBits {
    const FORMAT: Format = INT8_GROUP;
    const BITS: u32 = 8;
    const HAS_ZEROS: bool = false;
    const HEAD: Option<Format> = None;
}

impl Coded for FourBits {
    const FORMAT: Format = INT4_ZERO;
    const BITS: u32 = 4;
    const HAS_ZEROS: bool = true;
    const HEAD: Option<Format> = Some(int8::FORMAT);
}

impl Rounding for EightBits {
    #[inline(always)]
    fn round(weights: &GroupWeights, _: &Lanes, group: usize, to: &mut Panel<'_>) -> Codes {
        let scale = scale_of_eight_bits(weights);
        to.put_scales(group, &scale);
        encode(weights, &scale, &[f32::from(ZERO); LANES], 255)
    }
}

impl Rounding for FourBits {
    #[inline(always)]
    fn round(weights: &GroupWeights, _: &Lanes, group: usize, to: &mut Panel<'_>) -> Codes {
        let (scale, zero) = four_bits_zero(weights);
        to.put_scales(group, &scale);
        for (lane, to) in to.zeros[group * PANEL..][..PANEL].iter_mut().enumerate() {
            *to = zero[lane] as u8;
        }
        encode(weights, &scale, &zero, 15)
    }
}

pub(super) fn multiply_int8(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Grouped<EightBits>> { part, kind: PhantomData });
}

pub(super) fn multiply_int4(part: &Part<'_>, _: Isa, integers: IntegerIsa) {
    integers.run(Product::<Grouped<FourBits>> { part, kind: PhantomData });
}

/// The kernel of both formats.
struct Grouped<C>(PhantomData<C>);

impl<C: Coded> Kind for Grouped<C> {
    const FORMAT: Format = C::FORMAT;

    #[inline(always)]
    unsafe fn sums<S: Integers, const MR: usize, const NR: usize>(
        s: S,
        t: &IntegerTileInputs<'_>,
        leaf: usize,
        prefetch: &mut PrefetchCursor,
    ) -> Floats<S, MR, NR> {
        let f = s.floats();
        let (groups, apart) = (t.layout.leaf_groups(), t.apart * t.layout.panel_bytes());
        let scales_apart = t.apart * t.layout.panel_scales();
        let (first, group_bytes) = (leaf * groups, GROUP * PANEL * C::BITS as usize / 8);
        let mut results = [[f.zero(); NR]; MR];
        let mut zeros = [s.splat(0); NR];
        // SAFETY: checked above; a group of all rows and panels is inside.
        unsafe {
            let mut w = t.weights.as_ptr().add(first * group_bytes);
            let mut scales = t.scales.as_ptr().add(first * PANEL * 2);
            let mut zero_points = t.zeros.as_ptr().wrapping_add(first * PANEL);
            for group in first..first + groups {
                if C::HAS_ZEROS {
                    for n in 0..NR {
                        zeros[n] = s.load_zeros(zero_points.add(n * scales_apart));
                    }
                }
                let (bits, zeros) = (C::BITS as usize, if C::HAS_ZEROS { Some(&zeros) } else { None });
                let none = [[f.zero(); NR]; MR];
                let sums = add_group::<S, MR, NR>(s, bits, t, group, Strided { at: w, apart }, zeros, none);
                for n in 0..NR {
                    let scale = f.load_f16(scales.add(n * scales_apart * 2));
                    for m in 0..MR {
                        results[m][n] = f.fma(sums[m][n], scale, results[m][n]);
                    }
                }
                if let Prefetch::Near(bytes @ 1..) = *t.prefetch {
                    let ahead = (bytes / 8).max(LINE_BYTES);
                    for n in 0..NR {
                        f.prefetch(scales.wrapping_add(n * scales_apart * 2 + ahead));
                    }
                }
                prefetch.issue::<_, NR>(f, w, apart, group_bytes);
                w = w.add(group_bytes);
                (scales, zero_points) = (scales.add(PANEL * 2), zero_points.wrapping_add(PANEL));
            }
        }
        results
    }
}
