//! What a model is loaded from, and onto.

use std::path::Path;
use std::sync::Arc;

use skein_model::LoadError;
use skein_model::adapter::Adapter;
use skein_model::checkpoint::Weights;
use skein_model::config::ModelConfig;
use skein_model::on_cuda::adapter::SlotLayout;
use skein_model::on_cuda::packed::Forms;
use skein_model::shard::Shard;
use skein_model::tensors;

use super::OpenDevice;
use super::dummy;
use super::options::CudaOptions;
use super::upload::Dtype;
use crate::config::LoadFormat;

/// The weights, except for dummy weights, and the type of the computation.
pub(super) fn stored(
    dir: &Path,
    config: &ModelConfig,
    options: &CudaOptions,
) -> Result<(Option<Weights>, Dtype), LoadError> {
    match options.cuda.load_format {
        LoadFormat::Dummy => Ok((None, dummy::dtype(dir)?)),
        LoadFormat::Auto => {
            let weights = Weights::open(dir)?;
            let embedding = tensors::embedding(&config.spec).find(&weights)?;
            Ok((Some(weights), Dtype::of(embedding.storage())))
        }
    }
}

/// A model's directory and its configuration.
#[derive(Debug, Clone, Copy)]
pub struct ModelDir<'a> {
    /// Directory, or GGUF file.
    pub dir: &'a Path,
    /// Its configuration.
    pub config: &'a ModelConfig,
}

/// The inputs of a load.
pub(super) struct LoadInputs<'a> {
    pub dir: &'a Path,
    pub config: &'a ModelConfig,
    /// This process's part of the model.
    pub shard: Shard,
    /// `None` for dummy weights.
    pub weights: Option<Weights>,
    pub opened: OpenDevice,
    pub options: &'a CudaOptions,
    /// Forms of packed matrices.
    pub forms: Forms,
    /// Bytes to leave for an inbox that is not allocated.
    pub inbox: usize,
    /// Adapter that is merged into the weights.
    pub adapter: Option<Adapter>,
    /// Layout of the slots of adapters beside the model.
    pub slots: Option<Arc<SlotLayout>>,
}

impl<'a> LoadInputs<'a> {
    /// The load of the part in `shard` of the model in a directory. `inbox`: bytes to leave for an inbox that
    /// is not allocated.
    pub fn new(
        model: ModelDir<'a>,
        shard: Shard,
        weights: Option<Weights>,
        opened: OpenDevice,
        options: &'a CudaOptions,
        inbox: usize,
    ) -> Result<Self, LoadError> {
        let ModelDir { dir, config } = model;
        let adapter = options.merged.as_deref().map(Adapter::open).transpose()?;
        let slots =
            options.served.map(|served| Arc::new(SlotLayout::new(&config.spec, &shard, served.max_rank)));
        let forms = Forms::default();
        Ok(Self { dir, config, shard, weights, opened, options, forms, inbox, adapter, slots })
    }
}
