//! A row's logits have the same bits alone and in any batch.

use skein_worker::backend::Batch;
use skein_worker::backend::BlockCopy;
use skein_worker::backend::cpu::CpuModel;
use skein_worker::check::Sequence;

use crate::batches::{BLOCK_SIZE, goldens, load, sequence_of};

const LENGTH: usize = 45;

fn tokens(seed: u32) -> Vec<u32> {
    (0..LENGTH as u32).map(|i| (i * i + 31 * i + seed * 17) % 120 + 2).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logits at all positions, computed in these chunks beside `others` sequences with their own chunks.
fn run(model: &mut CpuModel, block_size: u32, chunks: &[usize], others: u32) -> Vec<Vec<u32>> {
    let mut sequence = sequence_of(tokens(1), 1, block_size);
    let mut company: Vec<Sequence> =
        (0..others).map(|i| sequence_of(tokens(i + 5), i + 2, block_size)).collect();
    let mut all = Vec::new();
    for (step, count) in chunks.iter().enumerate() {
        let mut batch = Batch::default();
        let before = company.len() / 2;
        let go_along = |batch: &mut Batch, company: &mut [Sequence]| {
            for (i, other) in company.iter_mut().enumerate() {
                let left = LENGTH - other.computed;
                if left > 0 {
                    other.put(batch, left.min((step * 5 + i * 3) % 11 + 1));
                }
            }
        };
        go_along(&mut batch, &mut company[..before]);
        let start = batch.tokens.len() as u32;
        sequence.put(&mut batch, *count);
        go_along(&mut batch, &mut company[before..]);
        let rows: Vec<u32> = (start..start + *count as u32).collect();
        all.extend(model.logits(&batch, &rows).iter().map(|logits| bits(logits)));
    }
    all
}

fn check(name: &str) {
    let expected = run(&mut load(name, 1, BLOCK_SIZE), BLOCK_SIZE, &[LENGTH], 0);
    let mut models: Vec<CpuModel> = (1..=3).map(|threads| load(name, threads, BLOCK_SIZE)).collect();
    for (threads, model) in models.iter_mut().enumerate() {
        assert!(run(model, BLOCK_SIZE, &[LENGTH], 0) == expected, "{name}: {} threads", threads + 1);
        assert!(run(model, BLOCK_SIZE, &[1; LENGTH], 3) == expected, "{name}: one by one in company");
        assert!(run(model, BLOCK_SIZE, &[LENGTH], 7) == expected, "{name}: at once in company");
    }
    for split in 1..LENGTH {
        let model = &mut models[split % 3];
        let got = run(model, BLOCK_SIZE, &[split, LENGTH - split], split as u32 % 4);
        assert!(got == expected, "{name}: split at {split}");
    }
    for block_size in [1, 8, 32] {
        let got = run(&mut load(name, 2, block_size), block_size, &[20, 1, 24], 2);
        assert!(got == expected, "{name}: blocks of {block_size}");
    }
}

#[test]
fn rows_have_the_same_logits_whichever_others_are_asked_for() {
    let batch = || {
        let mut batch = Batch::default();
        for (id, rows) in [(0, 7), (1, 1), (2, 1), (3, 20), (4, 2)] {
            sequence_of(tokens(id), id, BLOCK_SIZE).put(&mut batch, rows);
        }
        batch
    };
    // In the second, several layers run with the wanted rows only.
    for model in ["qwen2", "gemma4-per-layer"] {
        check_wanted(&mut load(model, 2, BLOCK_SIZE), &batch);
    }
}

fn check_wanted(model: &mut CpuModel, batch: &dyn Fn() -> Batch) {
    let all: Vec<u32> = (0..31).collect();
    let expected = model.logits(&batch(), &all);
    let choices: [&[u32]; 7] =
        [&[], &[0], &[30], &[6, 7, 8, 9], &[0, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29], &[28, 29, 30], &all[1..]];
    for rows in choices {
        let got = model.logits(&batch(), rows);
        let expected: Vec<_> = rows.iter().map(|row| bits(&expected[*row as usize])).collect();
        assert!(got.iter().map(|logits| bits(logits)).eq(expected), "{rows:?}");
    }
}

#[test]
fn logits_of_no_model_depend_on_batch_chunks_threads_or_blocks() {
    goldens().iter().for_each(|name| check(name));
}

#[test]
fn a_forked_sequence_continues_in_a_copy_of_its_last_block() {
    for model in ["llama-gqa", "gemma4"] {
        check_fork(&mut load(model, 2, BLOCK_SIZE));
    }
}

fn check_fork(model: &mut CpuModel) {
    let expected = run(model, BLOCK_SIZE, &[LENGTH], 0);
    let mut parent = sequence_of(tokens(1), 9, BLOCK_SIZE);
    let mut batch = Batch::default();
    parent.put(&mut batch, 20);
    model.logits(&batch, &[]);
    // The fork shares the first block and copies the second, which the parent then overwrites.
    let mut fork = parent.clone();
    fork.blocks = sequence_of(Vec::new(), 10, BLOCK_SIZE).blocks;
    fork.blocks[0] = parent.blocks[0];
    parent.tokens = tokens(4);
    let mut batch =
        Batch { copies: vec![BlockCopy { from: parent.blocks[1], to: fork.blocks[1] }], ..Batch::default() };
    parent.put(&mut batch, 10);
    fork.put(&mut batch, 25);
    let rows: Vec<u32> = (10..35).collect();
    let got: Vec<Vec<u32>> = model.logits(&batch, &rows).iter().map(|logits| bits(logits)).collect();
    assert!(got == expected[20..]);
}
