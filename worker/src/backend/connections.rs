//! Connections of a rank to the others that share its model.

use skein_kernels::collective::Ranks;
use skein_kernels::collective::link::{Inlet, Outlet};

use skein_model::shard::{Indivisible, Shard};
use skein_model::spec::Spec;

/// A rank's position in its group and its connections.
pub struct Connections {
    /// Ranks of its stage, which share its layers.
    pub ranks: Box<dyn Ranks>,
    /// Pipeline stage, from 0.
    pub stage: usize,
    /// Number of pipeline stages.
    pub stages: usize,
    /// Link from the previous stage; `None` in the first stage.
    pub before: Option<Box<dyn Inlet>>,
    /// Link to the next stage; `None` in the last stage.
    pub after: Option<Box<dyn Outlet>>,
}

impl<R: Ranks + 'static> From<R> for Connections {
    /// Connections of ranks that share all layers.
    fn from(ranks: R) -> Self {
        Self { ranks: Box::new(ranks), stage: 0, stages: 1, before: None, after: None }
    }
}

impl Connections {
    /// Part of the model on this rank.
    ///
    /// # Errors
    /// If the model cannot be divided among this number of ranks or stages.
    pub fn shard(&self, spec: &Spec) -> Result<Shard, Indivisible> {
        Shard::new(spec, self.ranks.rank(), self.ranks.count())?.of_stage(spec, self.stage, self.stages)
    }
}
