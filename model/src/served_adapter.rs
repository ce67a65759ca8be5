//! Adapters in memory, in the form that a device keeps them in.

use std::path::PathBuf;
use std::sync::Arc;

use skein_proto::adapter::AdapterId;
use tokio::sync::Notify;

use super::LoadError;
use super::adapter::Adapter;
use super::on_cpu::adapter::AdapterWeights;
use super::on_cuda::adapter::{SlotForm, SlotImage};
use super::spec::Spec;
use crate::shard::Shard;

/// How a backend keeps adapters.
#[derive(Debug, Clone)]
pub enum AdapterForm {
    /// In memory for the CPU: the part of a rank.
    Cpu(Box<Shard>),
    /// In page-locked memory, ready to be copied to a slot on a device.
    Cuda(Arc<SlotForm>),
}

/// An adapter's weights in memory.
#[derive(Debug)]
pub enum HeldAdapter {
    /// For products on the CPU.
    Cpu(AdapterWeights),
    /// For a slot on a device.
    Cuda(SlotImage),
}

/// The model that adapters are for, and how its backend keeps them.
#[derive(Debug, Clone)]
pub struct AdapterModel {
    /// What the model computes.
    pub spec: Spec,
    /// How the backend keeps its adapters.
    pub form: AdapterForm,
    /// Its directory.
    pub dir: PathBuf,
}

impl AdapterModel {
    /// Reads the weights of `adapter`.
    ///
    /// # Errors
    /// As [`AdapterForm::read`].
    pub fn read(&self, adapter: &Adapter, max_rank: usize) -> Result<HeldAdapter, LoadError> {
        self.form.read(adapter, &self.spec, max_rank)
    }
}

impl AdapterForm {
    /// Reads the weights of `adapter` for the model of `spec`.
    ///
    /// # Errors
    /// As [`check`], or if memory for them cannot be had.
    pub fn read(&self, adapter: &Adapter, spec: &Spec, max_rank: usize) -> Result<HeldAdapter, LoadError> {
        Ok(match self {
            Self::Cpu(shard) => HeldAdapter::Cpu(AdapterWeights::new(adapter, spec, shard, max_rank)?),
            Self::Cuda(form) => HeldAdapter::Cuda(form.read(adapter, spec, max_rank)?),
        })
    }
}

/// An adapter in memory. It stays there while a sequence has it.
#[derive(Debug)]
pub struct LoadedAdapter {
    /// Hash of its files.
    pub id: AdapterId,
    /// Its weights; `None` for a backend without a model.
    pub weights: Option<Arc<HeldAdapter>>,
    /// Notified when its last holder drops it.
    freed: Arc<Notify>,
}

impl LoadedAdapter {
    /// An adapter whose place is free, as `freed` is told, when the last holder drops it.
    pub fn new(id: AdapterId, weights: Option<Arc<HeldAdapter>>, freed: Arc<Notify>) -> Self {
        Self { id, weights, freed }
    }
}

impl Drop for LoadedAdapter {
    fn drop(&mut self) {
        self.freed.notify_one();
    }
}
