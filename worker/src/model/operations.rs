//! What a device provides, and the forward pass over it.
//!
//! Each operation is as wide as the best fusion of any device: when the residual stream is added to, in which form rows wait
//! for a product, and which rows go on to the last layer's end is the device's business. The logits are not here: which rows
//! they are of, and where they go, only the backend of a device knows.

use super::spec::Spec;

/// The operations of one step, in the order of [`forward`].
pub trait Operations {
    /// Why one could not be done, or queued.
    type Error;

    /// The tokens' embeddings become the residual stream.
    fn embed(&mut self) -> Result<(), Self::Error>;
    /// Normalised rows become queries, keys and values; queries and keys are rotated, keys and values written to the cache.
    fn attention_input(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Queries attend to the cache.
    fn attend(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// What they found is projected, and added to the residual stream.
    fn attention_output(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Normalised rows go through the feed-forward network, and are added to the residual stream.
    fn feed_forward(&mut self, layer: usize) -> Result<(), Self::Error>;
}

/// Runs all layers of a decoder.
///
/// # Errors
/// The first operation's that fails.
pub fn forward<O: Operations>(spec: &Spec, on: &mut O) -> Result<(), O::Error> {
    on.embed()?;
    for layer in 0..spec.layers.len() {
        on.attention_input(layer)?;
        on.attend(layer)?;
        on.attention_output(layer)?;
        on.feed_forward(layer)?;
    }
    Ok(())
}
