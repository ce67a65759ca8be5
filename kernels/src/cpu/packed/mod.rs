//! Weights packed in the layouts that products read.
//!
//! A packed matrix is contiguous in memory, so that it can be a file: values or codes, then scales, zero
//! points, and the format's own data, each part aligned to 64 bytes. Outputs are grouped in panels of
//! sixteen, so that an output is a lane and no vector is summed across. Panels and groups are padded with
//! zeros, or with codes of zero.
//!
//! ```text
//! values  [panels][columns][16 outputs], or as the format's file says
//! codes   8 bits: [panels][columns / 4][16 outputs][4 columns]: `VPDPBUSD` multiplies four bytes of a lane
//!         4 bits: [panels][columns / 8][16 outputs][4]: column j low, column j + 4 high
//! scales  one for each output and leaf: f32 [panels][leaves][16]
//!         or for each group of 32 columns: f16 [panels][groups][16]
//!         or for each span of some columns of a leaf: f32 [panels][leaves][spans][16]
//! zeros   u8 [panels][groups][16], in formats that have them
//! ```
//!
//! A matrix with several [leaves](crate::leaves) is divided at them. Only the scales of outputs change, and a
//! rank that packs only its own leaves gets the same numbers.
//!
//! An integer weight is `scale * (code - zero)` with unsigned codes. In formats without zero points, zero is
//! 128.
//!
//! Each format is a module in [`formats`] with its specification, packing, widening and kernel. Other code
//! uses [`Format`].

mod error;
mod format;
pub(super) mod formats;
mod given;
mod given_rows;
mod layout;
mod matrix;
mod pack;
mod rounding;
mod scale;
#[cfg(test)]
mod tests;
mod values;

pub use super::input::Order;
pub use error::{NotFinite, PackError};
pub use format::Format;
pub use formats::to_e4m3;
pub use given::{GivenCodes, pack_codes};
pub use given_rows::{GivenRow, GivenRows, pack_rows};
pub use layout::{Layout, PANEL};
pub use matrix::Packed;
pub use pack::pack;

pub(super) use super::input::ZERO;
use format::{Inserted, Pack, Scales, Spec, Tail, Weights};
use layout::PART_ALIGN;

/// Version of the packed layouts; part of the key of cached packed weights. Increase it whenever the same
/// weights would be packed to other bytes.
pub const VERSION: u32 = 6;
