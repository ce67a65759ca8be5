//! A rank's place among those that share a model, and its connections to them.

use skein_kernels::collective::Ranks;
use skein_kernels::collective::link::{Inlet, Outlet};

use crate::model::spec::Spec;
use crate::shard::{Indivisible, Shard};

/// A rank's connections to the others that share its model.
pub struct Connections {
    /// To the ranks of its stage, which share its layers.
    pub ranks: Box<dyn Ranks>,
    /// Its stage, from 0.
    pub stage: usize,
    /// Number of stages.
    pub stages: usize,
    /// From the stage before; `None` in the first one.
    pub before: Option<Box<dyn Inlet>>,
    /// To the stage after; `None` in the last one.
    pub after: Option<Box<dyn Outlet>>,
}

impl<R: Ranks + 'static> From<R> for Connections {
    /// The connections of ranks that share all layers.
    fn from(ranks: R) -> Self {
        Self { ranks: Box::new(ranks), stage: 0, stages: 1, before: None, after: None }
    }
}

impl Connections {
    /// What this rank has of the model.
    ///
    /// # Errors
    /// If so many ranks or stages cannot share it.
    pub fn shard(&self, spec: &Spec) -> Result<Shard, Indivisible> {
        Shard::new(spec, self.ranks.rank(), self.ranks.count())?.of_stage(spec, self.stage, self.stages)
    }
}
