//! Layout of a group's ranks. Pure.
//!
//! Ranks are numbered from the last stage of the pipeline to the first, and those of one stage are
//! consecutive. So the ranks that draw tokens come first, and rank 0, the leader, is among them. Nodes hold
//! equally many ranks, in order.

use serde::{Deserialize, Serialize};

/// Numbers of ranks, stages and nodes of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Ranks per stage.
    pub tensor: usize,
    /// Number of pipeline stages.
    pub stages: usize,
    /// Number of nodes.
    pub nodes: usize,
}

impl Topology {
    /// Layout of `tensor` ranks in each of `stages` stages over `nodes` nodes.
    ///
    /// # Errors
    /// If nodes would hold different numbers of ranks, or fractions of several stages.
    pub fn new(tensor: usize, stages: usize, nodes: usize) -> Result<Self, String> {
        let ranks = tensor * stages;
        let each = ranks / nodes.max(1);
        let is_even = nodes > 0 && ranks.is_multiple_of(nodes);
        if is_even && each > 0 && (tensor.is_multiple_of(each) || each.is_multiple_of(tensor)) {
            return Ok(Self { tensor, stages, nodes });
        }
        Err(format!(
            "--tensor-parallel-size {tensor} times --pipeline-parallel-size {stages} is {ranks} ranks, which {nodes} nodes \
             cannot share evenly by whole stages or whole parts of one; choose --nnodes so that they can"
        ))
    }

    /// Total number of ranks.
    pub fn ranks(&self) -> usize {
        self.tensor * self.stages
    }

    /// Ranks per node.
    pub fn on_node(&self) -> usize {
        self.ranks() / self.nodes
    }

    /// Ranks of one stage per node.
    pub fn places(&self) -> usize {
        self.tensor.min(self.on_node())
    }

    /// Stages per node, counting partial ones.
    pub fn stages_on_node(&self) -> usize {
        self.on_node() / self.places()
    }

    /// Node of `rank`, from 0.
    pub fn node_of(&self, rank: usize) -> usize {
        rank / self.on_node()
    }

    /// Pipeline stage of `rank`, from 0.
    pub fn stage_of(&self, rank: usize) -> usize {
        self.stages - 1 - rank / self.tensor
    }

    /// Index of `rank` within its stage.
    pub fn slot_of(&self, rank: usize) -> usize {
        rank % self.tensor
    }

    /// Rank at index `slot` of `stage`.
    pub fn rank_at(&self, stage: usize, slot: usize) -> usize {
        (self.stages - 1 - stage) * self.tensor + slot
    }

    /// Ranks at the same place of the same stage on all nodes that share the stage, including `rank`.
    pub fn column_of(&self, rank: usize) -> Vec<usize> {
        let (first, places) = (rank - self.slot_of(rank), self.places());
        (0..self.tensor / places).map(|part| first + part * places + rank % places).collect()
    }

    /// Rank that sends rows to `rank`; `None` in the first stage.
    pub fn before(&self, rank: usize) -> Option<usize> {
        Some(rank + self.tensor).filter(|before| *before < self.ranks())
    }

    /// Rank that receives rows from `rank`; `None` in the last stage.
    pub fn after(&self, rank: usize) -> Option<usize> {
        rank.checked_sub(self.tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_its_node_stage_and_neighbours() {
        let two = Topology::new(2, 3, 3).unwrap();
        let all = |of: &dyn Fn(usize) -> usize| (0..6).map(of).collect::<Vec<_>>();
        assert_eq!(all(&|rank| two.stage_of(rank)), [2, 2, 1, 1, 0, 0]);
        assert_eq!(all(&|rank| two.node_of(rank)), [0, 0, 1, 1, 2, 2]);
        assert_eq!(
            (two.before(1), two.after(3), two.before(4), two.after(0)),
            (Some(3), Some(1), None, None)
        );
        assert_eq!((two.column_of(3), two.rank_at(1, 1)), (vec![3], 3));
        let wide = Topology::new(8, 1, 2).unwrap();
        assert_eq!((wide.places(), wide.stages_on_node(), wide.column_of(6)), (4, 1, vec![2, 6]));
        let mixed = Topology::new(4, 2, 4).unwrap();
        assert_eq!((mixed.column_of(7), mixed.column_of(0)), (vec![5, 7], vec![0, 2]));
        let deep = Topology::new(2, 4, 2).unwrap();
        assert_eq!((deep.places(), deep.stages_on_node(), deep.column_of(5)), (2, 2, vec![5]));
    }

    #[test]
    fn shapes_that_nodes_cannot_share_are_refused() {
        for (tensor, stages, nodes) in [(1, 1, 2), (2, 1, 3), (4, 3, 2), (2, 3, 4), (2, 2, 0)] {
            let why = Topology::new(tensor, stages, nodes).unwrap_err();
            assert!(why.contains(&format!("is {} ranks", tensor * stages)), "{why}");
        }
    }
}
