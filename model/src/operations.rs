//! Operations that a device provides, and the forward pass built from them.
//!
//! Each operation is as coarse as the best fusion on any device. The device decides when to add to the
//! residual stream, how to encode the inputs of a product, and which rows continue to the end of the last
//! layer. Logits are excluded: only a device's backend knows their rows and destination.

use super::spec::Spec;
use super::state_spec::Mixer;

/// The operations of one step, in the order of [`forward`].
pub trait Operations {
    /// Why an operation could not be run or queued.
    type Error;

    /// Sets the residual stream to the tokens' embeddings.
    fn embed(&mut self) -> Result<(), Self::Error>;
    /// Projects normalised rows to queries, keys and values, rotates queries and keys, and writes keys and
    /// values to the cache.
    fn attention_input(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Runs the queries' attention over the cache.
    fn attend(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Projects the attention's output and adds it to the residual stream.
    fn attention_output(&mut self, layer: usize) -> Result<(), Self::Error>;
    /// Runs the feed-forward network, if the layer has one, on normalised rows and adds its output to the
    /// residual stream. It ends the layer.
    fn feed_forward(&mut self, layer: usize) -> Result<(), Self::Error>;
}

/// Runs all layers of a decoder.
///
/// # Errors
/// The error of the first operation that fails.
pub fn forward<O: Operations>(spec: &Spec, on: &mut O) -> Result<(), O::Error> {
    on.embed()?;
    for layer in 0..spec.layers.len() {
        if spec.layers[layer].mixer == Mixer::None {
            on.feed_forward(layer)?;
            continue;
        }
        on.attention_input(layer)?;
        on.attend(layer)?;
        if spec.is_parallel {
            // Before the attention's output changes the rows that both read.
            on.feed_forward(layer)?;
            on.attention_output(layer)?;
        } else {
            on.attention_output(layer)?;
            on.feed_forward(layer)?;
        }
    }
    Ok(())
}
