//! Slots for the states of recurrent layers. Pure.
//!
//! A state cannot be cut back to an earlier position, so a prompt can resume only where one was kept: at the
//! end of a cached block, the state's *base*. A running sequence has a slot of its own. It saves states into
//! further slots, which become cached when their bases do. Resuming copies a cached state and leaves it
//! there.
//!
//! Cached states that were never used again are evicted first, the least recently used ones of either kind
//! first. So prompts that nobody repeats evict each other, and not what conversations use.

use crate::BlockId;
use crate::backend::{StateCopy, StateId};

/// At most this part of the slots, in quarters, has states that outlast unused ones.
const PROTECTED_QUARTERS: usize = 3;

/// The slots of a cache.
#[derive(Debug)]
pub(super) struct States {
    slots: Vec<Slot>,
    /// `[blocks]`: the cached state after each block that has one.
    of_base: Vec<Option<StateId>>,
    counts: StateCounts,
    /// Slots promised to samples that will part from running sequences.
    promised: u32,
    /// Cached states that were used again.
    protected: usize,
    /// Counts uses.
    clock: u64,
    /// Copies for the next step.
    copies: Vec<StateCopy>,
}

/// How many slots are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// Without content.
    pub free: u32,
    /// With the state after a cached block.
    pub cached: u32,
    /// Used by running sequences, or with a state that will be cached.
    pub held: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Held,
    Cached { base: BlockId, used: u64, is_protected: bool },
}

/// A slot taken, and the base whose cached state it had.
pub(super) struct Taken {
    pub slot: StateId,
    pub lost: Option<BlockId>,
}

impl States {
    /// All free, for `blocks` bases.
    pub fn new(slots: u32, blocks: u32) -> Self {
        Self {
            slots: vec![Slot::Free; slots as usize],
            of_base: vec![None; blocks as usize],
            counts: StateCounts { free: slots, ..StateCounts::default() },
            promised: 0,
            protected: 0,
            clock: 0,
            copies: Vec::new(),
        }
    }

    /// The cached state after `base`.
    pub fn of(&self, base: BlockId) -> Option<StateId> {
        self.of_base[base.0 as usize]
    }

    /// Whether there are slots for a sequence of `samples` samples.
    pub fn has_room(&self, samples: u32) -> bool {
        self.counts.free + self.counts.cached >= self.promised + samples
    }

    /// Promises slots to `samples` samples that will part from a running sequence.
    pub fn promise(&mut self, samples: u32) {
        self.promised += samples;
    }

    /// Takes a promise back.
    pub fn release_promise(&mut self, samples: u32) {
        self.promised -= samples;
    }

    /// A slot for a sequence that begins to run, with a copy of the cached state after `base`, if given.
    ///
    /// # Panics
    /// Without [room](Self::has_room).
    pub fn seat(&mut self, base: Option<BlockId>) -> Taken {
        let from = base.map(|base| self.used_again(base));
        let taken = self.take().unwrap_or_else(|| panic!("only a sequence with room for its state runs"));
        // The copied state may be the one that was evicted: then it is there already.
        let from = from.filter(|from| *from != taken.slot);
        self.copies.extend(from.map(|from| StateCopy { from, to: taken.slot }));
        taken
    }

    /// A slot for a sequence that begins to run with a copy of another's state.
    pub fn fork(&mut self, from: StateId) -> Taken {
        let taken = self.seat(None);
        self.copies.push(StateCopy { from, to: taken.slot });
        taken
    }

    /// A slot to save a state into; `None` if the others are promised. `only_free`: without evicting. Until
    /// the state is cached, after the step, a sequence that needs a slot may have to wait.
    pub fn save(&mut self, only_free: bool) -> Option<Taken> {
        let StateCounts { free, cached, .. } = self.counts;
        let available = if only_free { free } else { free + cached };
        if available > self.promised { self.take() } else { None }
    }

    /// Caches the state in `slot`, which `save` returned, as that after `base`. If there is one already, the
    /// slot becomes free; returns whether it was new.
    pub fn attach(&mut self, base: BlockId, slot: StateId) -> bool {
        if self.of(base).is_some() {
            self.free(slot);
            return false;
        }
        self.clock += 1;
        self.set(slot, Slot::Cached { base, used: self.clock, is_protected: false });
        self.of_base[base.0 as usize] = Some(slot);
        true
    }

    /// Frees a held slot.
    pub fn free(&mut self, slot: StateId) {
        assert_eq!(self.slots[slot.0 as usize], Slot::Held, "slot {} is held once", slot.0);
        self.set(slot, Slot::Free);
    }

    /// Drops the cached state after `base`; false if there is none.
    pub fn evict(&mut self, base: BlockId) -> bool {
        let Some(slot) = self.of_base[base.0 as usize].take() else { return false };
        self.set(slot, Slot::Free);
        true
    }

    /// Drops the cached state after `base` if nothing has resumed from it; returns whether it did.
    pub fn evict_unused(&mut self, base: BlockId) -> bool {
        let unused =
            |slot: StateId| matches!(self.slots[slot.0 as usize], Slot::Cached { is_protected: false, .. });
        self.of(base).is_some_and(unused) && self.evict(base)
    }

    /// Free, cached and held slots.
    pub fn counts(&self) -> StateCounts {
        self.counts
    }

    /// Number of slots.
    pub fn total(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Takes the copies that must be done before the next step's rows, in order.
    pub fn take_copies(&mut self) -> Vec<StateCopy> {
        std::mem::take(&mut self.copies)
    }

    /// Marks the state after `base` as used and protects it, instead of the least recently used protected one
    /// if there are too many.
    fn used_again(&mut self, base: BlockId) -> StateId {
        let slot = self.of(base).unwrap_or_else(|| panic!("block {} has a state", base.0));
        self.clock += 1;
        let used = self.clock;
        self.set(slot, Slot::Cached { base, used, is_protected: true });
        if self.protected > (self.slots.len() * PROTECTED_QUARTERS / 4).max(1)
            && let Some((oldest, Slot::Cached { base, used, .. })) = self.oldest(true)
        {
            self.set(oldest, Slot::Cached { base, used, is_protected: false });
        }
        slot
    }

    /// Takes a free slot, or that of the cached state to evict first.
    fn take(&mut self) -> Option<Taken> {
        let free = (self.counts.free > 0).then(|| self.slots.iter().position(|slot| *slot == Slot::Free));
        if let Some(index) = free.flatten() {
            let slot = StateId(index as u32);
            self.set(slot, Slot::Held);
            return Some(Taken { slot, lost: None });
        }
        let (slot, content) = self.oldest(false).or_else(|| self.oldest(true))?;
        let Slot::Cached { base, .. } = content else { return None };
        self.of_base[base.0 as usize] = None;
        self.set(slot, Slot::Held);
        Some(Taken { slot, lost: Some(base) })
    }

    /// The least recently used cached state of one kind. Linear in the slots, which are some hundreds.
    fn oldest(&self, protected: bool) -> Option<(StateId, Slot)> {
        let used = |slot: &Slot| match *slot {
            Slot::Cached { used, is_protected, .. } if is_protected == protected => Some(used),
            _ => None,
        };
        let cached = (0..).map(StateId).zip(&self.slots);
        let cached = cached.filter_map(|(id, slot)| Some((used(slot)?, id, *slot)));
        cached.min_by_key(|(used, ..)| *used).map(|(_, id, slot)| (id, slot))
    }

    fn set(&mut self, slot: StateId, to: Slot) {
        let before = std::mem::replace(&mut self.slots[slot.0 as usize], to);
        let count = |counts: &mut StateCounts, slot, by: i64| {
            let count = match slot {
                Slot::Free => &mut counts.free,
                Slot::Held => &mut counts.held,
                Slot::Cached { .. } => &mut counts.cached,
            };
            *count = (i64::from(*count) + by) as u32;
        };
        count(&mut self.counts, before, -1);
        count(&mut self.counts, to, 1);
        let is_protected = |slot| matches!(slot, Slot::Cached { is_protected: true, .. });
        self.protected += usize::from(is_protected(to));
        self.protected -= usize::from(is_protected(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Caches a state after `base`; `None` if no slot is spare.
    fn cache(states: &mut States, base: u32) -> Option<Option<BlockId>> {
        let taken = states.save(false)?;
        assert!(states.attach(BlockId(base), taken.slot));
        Some(taken.lost)
    }

    #[test]
    fn prompts_that_nobody_repeats_evict_only_each_other() {
        let mut states = States::new(9, 1000);
        for base in 0..4 {
            assert_eq!(cache(&mut states, base), Some(None));
            let Taken { slot, .. } = states.seat(Some(BlockId(base)));
            states.free(slot);
        }
        for base in 100..900 {
            cache(&mut states, base);
        }
        assert!((0..4).all(|base| states.of(BlockId(base)).is_some()), "used states are still there");
        assert!(states.of(BlockId(899)).is_some() && states.of(BlockId(100)).is_none());
    }

    #[test]
    fn states_used_long_ago_give_way_to_others_in_use() {
        let mut states = States::new(5, 1000);
        for base in 0..20 {
            cache(&mut states, base);
            let Taken { slot, .. } = states.seat(Some(BlockId(base)));
            states.free(slot);
        }
        assert!(states.of(BlockId(0)).is_none());
        assert!((17..20).all(|base| states.of(BlockId(base)).is_some()));
    }

    #[test]
    fn saved_states_leave_slots_for_samples_that_will_part() {
        let mut states = States::new(4, 10);
        states.promise(2);
        let own = states.seat(None);
        assert!(states.has_room(1) && !states.has_room(2));
        assert!(states.save(true).is_some(), "three are free, of which two are promised");
        assert!(states.save(true).is_none() && states.save(false).is_none());
        let others = [states.fork(own.slot), states.fork(own.slot)];
        states.release_promise(2);
        for taken in [own].into_iter().chain(others) {
            states.free(taken.slot);
        }
        assert_eq!(states.counts(), StateCounts { free: 3, cached: 0, held: 1 });
    }

    #[test]
    fn cached_states_give_way_to_sequences() {
        let mut states = States::new(4, 10);
        for (base, lost) in [(0, None), (1, None), (2, None), (3, None), (4, Some(BlockId(0)))] {
            assert_eq!(cache(&mut states, base), Some(lost));
        }
        let lost = [Some(1), None, None].map(|base| states.seat(base.map(BlockId)).lost);
        assert_eq!(
            lost,
            [Some(BlockId(2)), Some(BlockId(3)), Some(BlockId(4))],
            "what was used stays longest"
        );
    }

    #[test]
    fn the_only_state_left_is_resumed_in_place() {
        let mut states = States::new(2, 10);
        assert_eq!(cache(&mut states, 7), Some(None));
        let first = states.seat(None);
        let Taken { slot, lost } = states.seat(Some(BlockId(7)));
        assert_eq!(lost, Some(BlockId(7)), "no other slot is left");
        assert_ne!(slot, first.slot);
        assert_eq!(states.take_copies(), [], "its state is where it will be used");
    }
}
