//! Layers whose memory of a sequence is a state of fixed size: gated delta networks, state spaces, short
//! convolutions.
//!
//! [`StateCache`] has the states, a slot for each sequence. Each call computes one layer for the rows of some
//! sequences ([`StatefulRows`]) and moves their slots on. At position 0 a slot begins anew. Elsewhere the
//! position is the slot's own or up to its number of pending rows further: those before the position are
//! applied to the state, and the others are forgotten. Rows up to the drafts are applied for good; drafts
//! become the pending rows.
//!
//! Each row changes the state that the row before it left, in prefill as in decode, so that no bit depends on
//! chunks, batches, drafts or threads. Prefill is fast because a task keeps a [tile](shape::TILE) of a head's
//! matrix in its first-level cache for all rows ([`recur`]). A [`plan`] divides steps into passes; a pass of
//! a layer with matrices ([`pass`]) first convolves all its rows ([`convolve`]).

mod activations;
mod cache;
mod convolve;
mod delta;
mod gates;
mod layer;
mod mark;
mod output;
mod pass;
mod plan;
mod recur;
mod rows;
mod rule;
mod run;
mod scratch;
mod shape;
mod short_convolution;
mod state_space;
mod stateful_rows;

pub use cache::StateCache;
pub use delta::{DeltaShape, DeltaWeights, KeyedDeltaShape, gated_delta, keyed_delta};
pub use scratch::Scratch;
pub use shape::StateShape;
pub use short_convolution::{ConvolutionShape, ConvolutionWeights, short_convolution};
pub use state_space::{StateSpaceShape, StateSpaceWeights, state_space};
pub use stateful_rows::{MOST_DRAFTED, StateSave, StatefulRows};

#[cfg(test)]
mod tests;
