//! Mixtures of experts (Shazeer et al. 2017): router, choice, products of the chosen experts, and the sum of
//! their outputs; `cu/experts*.cu`.
//!
//! A pair is a row and one of its experts; pair `p` belongs to row `p / per_token`. Which expert gets how
//! many rows is only known on the device, so launches are as large as any choice needs, and the blocks beyond
//! the actual choice end at once.

mod join;
mod pairs;
mod product;
mod reorder;
mod route;
mod router;
mod sort;

pub use join::{Join, JoinExperts, WeighInputs, WeighedInputs};
pub use pairs::{Pairs, SortedPairs, Storage, Tile};
pub use product::{ExpertProduct, ExpertProducts, ExpertWeight, Stage};
pub use route::{Route, RouteRows};
pub use router::{Router, RouterRows};
pub use sort::{Sort, SortPairs};

/// Most experts of a layer.
pub const MAX_EXPERTS: usize = 512;
/// Most experts of a row.
pub const MAX_PER_TOKEN: usize = 32;
/// Most groups of experts.
pub const MAX_GROUPS: usize = 32;
