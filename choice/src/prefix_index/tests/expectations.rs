//! The cost of expectations, counted in comparisons of keys.

use super::super::compared::COMPARISONS;
use super::*;

/// Comparisons that a placement, its withdrawal and the settling of another one take at a worker with
/// `waiting` placements of which it has reported nothing.
fn cost_with(waiting: u64) -> usize {
    let (mut index, worker) = (PrefixIndex::new(DEFAULT_MAX_BYTES), WorkerId(1));
    let chain = |number: u64| [number * 2 + 1, number * 2 + 2];
    // Half of them are the same prompt, as repeats of a prompt are.
    let hashes = |number: u64| if number.is_multiple_of(2) { chain(0) } else { chain(number) };
    (0..waiting).for_each(|it| index.expect(worker, Expectation::Placed(it), &hashes(it), at(0)));
    let before = COMPARISONS.get();
    let (withdrawn, settled) = (waiting, waiting + 1);
    for new in [withdrawn, settled] {
        index.expect(worker, Expectation::Placed(new), &chain(new), at(0));
    }
    index.withdraw(worker, withdrawn);
    let run = RunStored { handle: 1, parent: 0, depth: 0, hashes: chain(settled).to_vec() };
    index.store(worker, &[run]).expect("a run fits");
    let column = index.column(worker);
    assert_eq!(index.expected.blocks_of(column) as u64, 2 * waiting, "both are gone");
    COMPARISONS.get() - before
}

#[test]
fn the_cost_of_an_expectation_hardly_grows_with_their_number() {
    let costs = [100, 1_000, 10_000].map(cost_with);
    // A search of a sorted collection: ten times as many need a few more comparisons each time.
    for (fewer, more) in costs.iter().zip(&costs[1..]) {
        assert!(*more <= fewer + 250, "{costs:?}");
    }
    assert!(costs[2] <= 1_000, "{costs:?}");
}

#[test]
fn one_number_is_one_placement() {
    let (mut index, worker) = (PrefixIndex::new(DEFAULT_MAX_BYTES), WorkerId(1));
    index.expect(worker, Expectation::Placed(7), &[1, 2], at(0));
    index.expect(worker, Expectation::Placed(7), &[1, 2, 3], at(0));
    assert_eq!(leading_blocks(&mut index, worker, &[1, 2, 3]), 3);
    index.withdraw(worker, 7);
    assert_eq!(leading_blocks(&mut index, worker, &[1, 2, 3]), 0);
    assert!(index.expected.is_empty());
}
