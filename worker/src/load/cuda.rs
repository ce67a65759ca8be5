//! Opens a GPU, and loads a model onto it or onto the GPUs of a group.

use std::sync::Arc;

use skein_model::cost::{Product, StepCost, ValueBytes};
use skein_model::fingerprint::{computed_with, fingerprint};
use skein_model::served_adapter::{AdapterForm, AdapterModel};
use skein_model::shard::Shard;

use super::cuda_options::cuda_options;
use super::cuda_ranks::{self, LedOnCuda};
use super::loaded_backend::LoadedBackend;
use super::model_files::{grammars, of_merged, quantised_form};
use super::served_adapters::{adapters, on_ranks};
use crate::backend::Backend;
use crate::backend::cuda::{self, OpenDevice};
use crate::config::{DeviceKind, LoadFormat, WorkerConfig};
use crate::error::WorkerError;

pub(super) fn load_cuda(
    config: &WorkerConfig,
    opened: OpenDevice,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LoadedBackend, WorkerError> {
    let (model, options) = cuda_options(config)?;
    let fp8 = options.fp8;
    let is_coded = fp8.weights || options.rounded.is_some() || quantised_form(config, &model.spec)?.is_some();
    let fingerprint = match config.cuda.load_format {
        LoadFormat::Auto => fingerprint(&config.model)?,
        // Dummy weights are determined by their sizes.
        LoadFormat::Dummy => 0,
    };
    let (backend, gaps, mut arithmetic, (ranks, form)) = if config.ranks.count() > 1 {
        let LedOnCuda { backend, arithmetic, adapters: (ranks, form) } =
            cuda_ranks::lead(config, &model, opened, &options, progress)?;
        (backend, None, arithmetic, (Some(ranks), form))
    } else {
        let whole = Shard::whole(&model.spec);
        let form = cuda::slot_form(
            cuda::ModelDir { dir: &config.model, config: &model },
            &whole,
            &opened,
            &options,
        )?;
        let loaded = cuda::load(&config.model, &model, opened, &options, progress);
        let (backend, arithmetic) = loaded.map_err(|error| WorkerError::Load(Box::new(error)))?;
        let gaps = backend.gaps();
        (Box::new(backend) as Box<dyn Backend>, gaps, arithmetic, (None, form))
    };
    arithmetic += &of_merged(options.merged.as_deref())?;
    let of_form = |form| {
        let form = AdapterForm::Cuda(Arc::new(form));
        adapters(config, Some(AdapterModel { spec: model.spec.clone(), form, dir: config.model.clone() }))
    };
    let adapters = on_ranks(form.map(of_form).transpose()?.flatten(), ranks)?;
    Ok(LoadedBackend {
        cost: StepCost {
            product: Product::Bf16,
            ..model.spec.cost(ValueBytes {
                layers: if is_coded { 1 } else { 2 },
                head: 2,
                kv: if fp8.kv_cache { 1 } else { 2 },
            })
        },
        fingerprint: computed_with(fingerprint, &arithmetic),
        grammars: grammars(&config.model, model.spec.vocab_size)?,
        gaps,
        adapters,
        draft_model: None,
        backend,
        vocab_size: model.spec.vocab_size,
        model_len: model.max_position_embeddings,
        eos_token_ids: model.eos_token_ids,
        device: DeviceKind::Cuda,
        resume_exact: config.cuda.batch_invariant,
        pooling: None,
    })
}
