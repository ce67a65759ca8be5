//! Every kind of layer: its results are those of its recurrence, and have the same bits however it is run.

mod exact;
mod layer;

use super::super::simd::Isa;
use super::shape::Kind;
use super::*;
use layer::{Machine, Part, TestLayer, shape_of, shapes, whole};

/// Rows of a sequence in most tests.
const LENGTH: usize = 40;

#[test]
fn it_agrees_with_f64() {
    for shape in shapes() {
        let layer = TestLayer::new(shape);
        let rows = layer.rows(LENGTH, 5);
        let got = whole(&layer, &rows);
        for (i, (got, exact)) in got.into_iter().zip(layer.exact(&rows)).enumerate() {
            let got = f64::from(f32::from_bits(got));
            assert!((got - exact).abs() < 2e-5 * (1.0 + exact.abs()), "{shape:?} {i}: {got} for {exact}");
        }
    }
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit() {
    for shape in shapes() {
        let (layer, width) = (TestLayer::new(shape), shape.width());
        let rows = layer.rows(LENGTH, 5);
        let expected = whole(&layer, &rows);
        for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            for chunks in [vec![LENGTH], vec![1; LENGTH], vec![17, 1, 2, LENGTH - 20], vec![3, LENGTH - 3]] {
                let mut machine = Machine::new(&layer, threads, isa);
                let (mut got, mut start) = (Vec::new(), 0);
                for chunk in &chunks {
                    got.extend(machine.run(3, start, &rows[start * width..(start + chunk) * width], 0));
                    start += chunk;
                }
                assert!(got == expected, "{shape:?} {chunks:?} {threads} threads, {}", isa.name());
            }
        }
    }
}

#[test]
fn a_step_of_several_passes_is_one_of_several_chunks() {
    let sizes = [(Kind::Delta, 1, 2, 8, 16, 4), (Kind::Convolution, 0, 1, 0, 40, 3)];
    for layer in sizes.map(|sizes| TestLayer::new(shape_of(sizes))) {
        let (width, length) = (layer.shape.width(), 1100);
        let rows = layer.rows(length, 6);
        let mut machine = Machine::new(&layer, 2, Isa::best());
        let mut expected = Vec::new();
        for start in (0..length).step_by(100) {
            expected.extend(machine.run(0, start, &rows[start * width..(start + 100) * width], 0));
        }
        // The others' rows move the borders of passes.
        let others = layer.rows(20, 7);
        let other = |slot| Part { slot, position: 0, rows: &others, drafts: 3, saves: &[] };
        let parts = [other(1), Part { slot: 2, position: 0, rows: &rows, drafts: 15, saves: &[] }, other(4)];
        let mut machine = Machine::new(&layer, 2, Isa::best());
        let got = machine.step(&parts);
        assert!(got[1] == expected && got[0] == got[2] && got[0] == whole(&layer, &others));
    }
}

#[test]
fn neighbours_in_a_batch_change_no_bit() {
    for shape in shapes() {
        let (layer, width) = (TestLayer::new(shape), shape.width());
        let sequences: Vec<Vec<f32>> = (0..5).map(|i| layer.rows(9 + 5 * i as usize, 10 + i)).collect();
        let expected: Vec<Vec<u32>> = sequences.iter().map(|rows| whole(&layer, rows)).collect();
        for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            let mut machine = Machine::new(&layer, threads, isa);
            let mut got = vec![Vec::new(); 5];
            let mut at = [0; 5];
            // Sequence `i` has `i + 1` rows in a step until it ends; later ones begin later.
            for step in 0.. {
                let taking: Vec<usize> =
                    (0..5).filter(|i| step >= *i && at[*i] * width < sequences[*i].len()).collect();
                if taking.is_empty() && step > 5 {
                    break;
                }
                let parts: Vec<Part<'_>> = taking
                    .iter()
                    .map(|i| {
                        let rest = &sequences[*i][at[*i] * width..];
                        let rows = &rest[..rest.len().min((i + 1) * width)];
                        Part { slot: 6 - *i as u32, position: at[*i], rows, drafts: 0, saves: &[] }
                    })
                    .collect();
                for (i, out) in taking.iter().zip(machine.step(&parts)) {
                    at[*i] += out.len() / shape.values();
                    got[*i].extend(out);
                }
            }
            assert!(got == expected, "{shape:?} {threads} threads, {}", isa.name());
        }
    }
}

#[test]
fn drafts_change_no_bit_however_many_are_accepted() {
    for shape in shapes().filter(|shape| shape.key_dim < 128) {
        let (layer, width) = (TestLayer::new(shape), shape.width());
        let rows = layer.rows(LENGTH, 5);
        let wrong = layer.rows(MOST_DRAFTED, 8);
        let expected = whole(&layer, &rows);
        for isa in Isa::available() {
            let mut machine = Machine::new(&layer, 2, isa);
            for (drafts, kept) in
                (0..=MOST_DRAFTED).flat_map(|drafts| (0..=drafts).map(move |kept| (drafts, kept)))
            {
                // Two rounds of drafts, so that pending rows are applied together with further drafts. The
                // first step has rows before the drafts or none.
                let start = if kept % 2 == 0 { 5 } else { 0 };
                machine.run(0, 0, &rows[..3 * width], 0);
                let mut position = 3;
                let mut got = expected[..3 * shape.values()].to_vec();
                for before in [start, 1] {
                    let right = (position + before + kept) * width;
                    let given = [&rows[position * width..right], &wrong[..(drafts - kept) * width]].concat();
                    if given.is_empty() {
                        continue;
                    }
                    let out = machine.run(0, position, &given, drafts);
                    got.extend_from_slice(&out[..(before + kept) * shape.values()]);
                    position += before + kept;
                }
                got.extend(machine.run(0, position, &rows[position * width..], 0));
                assert!(got == expected, "{shape:?}, {kept} of {drafts} drafts, {}", isa.name());
            }
        }
    }
}

#[test]
fn a_copied_slot_resumes_anywhere_within_its_pending_rows() {
    for shape in shapes() {
        let (layer, width) = (TestLayer::new(shape), shape.width());
        let rows = layer.rows(LENGTH, 5);
        let expected = whole(&layer, &rows);
        let mut machine = Machine::new(&layer, 2, Isa::best());
        // Also from a state before the first position.
        for committed in [0, 1, 2, 10] {
            machine.run(5, 0, &layer.rows(30, 9), 2);
            machine.run(0, 0, &rows[..(committed + 6) * width], 6);
            machine.cache.copy(&mut machine.cpu, 0, 5);
            for position in (committed.max(1)..=committed + 6).rev() {
                machine.cache.copy(&mut machine.cpu, 5, 3);
                let got = machine.run(3, position, &rows[position * width..], 1);
                assert!(got == expected[position * shape.values()..], "{shape:?} {committed} {position}");
                let last = machine.run(3, LENGTH, &rows[..width], 0);
                machine.cache.copy(&mut machine.cpu, 5, 3);
                machine.run(3, position, &rows[position * width..], 0);
                assert_eq!(machine.run(3, LENGTH, &rows[..width], 0), last);
            }
            let got = machine.run(0, committed + 6, &rows[(committed + 6) * width..], 0);
            assert!(got == expected[(committed + 6) * shape.values()..], "the copied slot itself");
        }
    }
}

#[test]
fn saved_states_are_those_of_their_positions() {
    for shape in shapes() {
        let (layer, width) = (TestLayer::new(shape), shape.width());
        let rows = layer.rows(LENGTH, 5);
        let expected = whole(&layer, &rows);
        let mut machine = Machine::new(&layer, 2, Isa::best());
        let mut step = |position: usize, end: usize, drafts: usize, saves: &[(u32, u32)]| {
            let part = Part { slot: 0, position, rows: &rows[position * width..end * width], drafts, saves };
            let got = machine.step(&[part]).remove(0);
            assert!(got == expected[position * shape.values()..end * shape.values()], "{shape:?} {saves:?}");
            for &(position, slot) in saves {
                let position = position as usize;
                machine.cache.copy(&mut machine.cpu, slot, 6);
                let got = machine.run(6, position, &rows[position * width..], 0);
                assert!(got == expected[position * shape.values()..], "{shape:?} saved at {position}");
            }
        };
        // Within a chunk, before drafts, among drafts that were right, at the first row and at the last.
        step(0, 20, 3, &[(1, 1), (16, 2), (17, 3)]);
        step(19, 24, 2, &[(18, 1), (19, 4), (20, 2), (22, 3)]);
        step(22, 25, 0, &[(25, 2)]);
        step(25, 26, 0, &[(26, 3)]);
    }
}

#[test]
fn ranks_that_share_heads_compute_the_same_bits() {
    let sizes = [
        (Kind::Delta, 4, 8, 12, 48, 4),
        (Kind::KeyedDelta, 4, 4, 12, 48, 4),
        (Kind::StateSpace, 4, 8, 12, 48, 4),
        (Kind::Convolution, 0, 1, 0, 640, 3),
    ];
    for (shape, ranks) in sizes.into_iter().flat_map(|it| [(shape_of(it), 2), (shape_of(it), 4)]) {
        let layer = TestLayer::new(shape);
        let rows = layer.rows(LENGTH, 5);
        let expected = whole(&layer, &rows);
        for rank in 0..ranks {
            let (layer, parts) = layer.rank(rank, ranks);
            let of_rank =
                |row: &[f32]| parts.iter().flat_map(|it| row[it.clone()].to_vec()).collect::<Vec<_>>();
            let rows: Vec<f32> = rows.chunks(shape.width()).flat_map(of_rank).collect();
            let values = layer.shape.values();
            for (got, all) in whole(&layer, &rows).chunks(values).zip(expected.chunks(shape.values())) {
                assert!(got == &all[rank * values..(rank + 1) * values], "{shape:?}, rank {rank} of {ranks}");
            }
        }
    }
}

#[test]
fn a_slot_begins_anew_at_position_zero_whatever_was_in_it() {
    for shape in shapes() {
        let layer = TestLayer::new(shape);
        let (rows, mut machine) = (layer.rows(LENGTH, 5), Machine::new(&layer, 2, Isa::best()));
        machine.run(1, 0, &vec![f32::NAN; 20 * shape.width()], 7);
        assert_eq!(machine.run(1, 0, &rows, 0), whole(&layer, &rows), "{shape:?}");
        assert_eq!(machine.run(1, 0, &rows, 15), whole(&layer, &rows), "{shape:?}");
    }
}

#[test]
#[should_panic(expected = "cannot resume at 9")]
fn a_slot_does_not_resume_where_it_is_not() {
    let layer = TestLayer::new(shape_of((Kind::Delta, 2, 4, 16, 32, 4)));
    let rows = layer.rows(10, 5);
    let mut machine = Machine::new(&layer, 1, Isa::best());
    machine.run(1, 0, &rows, 3); // at 7, with rows up to 10
    machine.run(1, 9, &rows, 3); // at 9, with rows up to 19, less drafts
    machine.run(1, 9, &rows, 0);
}

#[test]
fn a_caches_size_is_that_of_its_slots() {
    for shape in shapes() {
        let cache = StateCache::new(shape, 3, 5).unwrap();
        assert_eq!((cache.bytes(), cache.slots()), (5 * StateCache::slot_bytes(&shape, 3), 5));
    }
    let qwen = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, taps: 4 };
    assert_eq!(StateCache::slot_bytes(&qwen, 1), (2 << 20) + (3 * 8192 + 15 * 8256) * 4);
    assert!(StateCache::new(qwen, 36, usize::MAX / 1000).is_err());
}
