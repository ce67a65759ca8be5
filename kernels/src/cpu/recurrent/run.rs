//! A step of a layer: its passes, and the states saved between them.

use super::super::Cpu;
use super::cache::StateCache;
use super::layer::Layer;
use super::pass::Pass;
use super::plan::Plan;
use super::rule::{Delta, KeyedDelta, StateSpace};
use super::scratch::Scratch;
use super::shape::Kind;
use super::stateful_rows::{StateSave, StatefulRows};

impl Layer<'_> {
    /// Computes the layer for the rows of all `sequences` and moves their states on.
    ///
    /// # Panics
    /// If the shapes disagree, sequences share a slot or rows, or a position is outside its slot's reach.
    pub(super) fn run(
        &self,
        cpu: &mut Cpu,
        cache: &mut StateCache,
        projected: &[f32],
        sequences: &[StatefulRows],
        out: &mut [f32],
        scratch: &mut Scratch,
    ) {
        self.check(projected, out);
        let Scratch { plan, pass: buffers, .. } = scratch;
        step(cpu, cache, self.index, sequences, plan, |cpu, cache, pieces| {
            let pass = Pass { layer: self, projected, pieces };
            match self.shape.kind {
                Kind::Delta => pass.run::<Delta>(cpu, cache, out, buffers),
                Kind::KeyedDelta => pass.run::<KeyedDelta>(cpu, cache, out, buffers),
                Kind::StateSpace => pass.run::<StateSpace>(cpu, cache, out, buffers),
                Kind::Convolution => unreachable!("a convolution has no matrices"),
            }
        });
    }
}

/// Calls `pass` for each pass of a step of one layer, and saves states on the way.
pub(super) fn step(
    cpu: &mut Cpu,
    cache: &mut StateCache,
    layer: usize,
    sequences: &[StatefulRows],
    plan: &mut Plan,
    mut pass: impl FnMut(&mut Cpu, &mut StateCache, &[StatefulRows]),
) {
    plan.make(sequences);
    // The slot has these states in its pending rows.
    let earlier = |of: &StatefulRows, save: &StateSave| save.position <= of.position;
    for of in sequences {
        let saves = of.saves.iter().filter(|save| earlier(of, save));
        saves.for_each(|save| cache.save(cpu, layer, of.slot, save));
    }
    for pieces in plan.passes() {
        pass(cpu, cache, pieces);
        for piece in pieces {
            piece.saves.iter().for_each(|save| cache.save(cpu, layer, piece.slot, save));
        }
    }
}
