//! Chunks, batches, threads and drafts change no bit.

use skein_kernels::cpu::packed::Format;

use crate::instance::{Chunk, EXACT, Instance, Numbers, bits, tokens};
use crate::random;

#[test]
fn chunks_batches_and_threads_change_no_bit() {
    for (name, numbers) in random::MODELS.iter().flat_map(|name| {
        let rounded = Numbers { bf16: true, rounded: Some(Format::INT8) };
        [(*name, EXACT), (*name, Numbers { bf16: true, ..EXACT }), (*name, rounded)]
    }) {
        let directory = random::make(name);
        let prompts = [tokens(67, 1), tokens(67, 2)];
        let mut model = Instance::whole(directory.path(), 1, numbers);
        let expected = prompts.each_ref().map(|prompt| bits(&model.prompt(0, prompt, prompt.len())));
        for (threads, most) in [(1, 1), (2, 7), (3, 32), (2, 67)] {
            let mut model = Instance::whole(directory.path(), threads, numbers);
            for (slot, (prompt, expected)) in prompts.iter().zip(&expected).enumerate() {
                let got = bits(&model.prompt(slot, prompt, most));
                assert!(got == *expected, "{name}, {numbers:?}, {threads} threads, chunks of {most}");
            }
        }
        // Both at once, one of them a token a step, and only some rows wanted.
        let mut model = Instance::whole(directory.path(), 2, numbers);
        let head = Chunk { sequence: 3, position: 0, tokens: &prompts[1][..50], drafts: 0, wanted: 0..0 };
        model.run(&[head]);
        for (step, part) in prompts[0].chunks(5).enumerate().take(13) {
            let (position, wanted) = (5 * step, part.len() - 1..part.len());
            let prompt = Chunk { sequence: 0, position, tokens: part, drafts: 0, wanted };
            let at = 50 + step;
            let one =
                Chunk { sequence: 3, position: at, tokens: &prompts[1][at..=at], drafts: 0, wanted: 0..1 };
            let got = bits(&model.run(&[prompt, one]));
            assert_eq!(got[0], expected[0][position + 4], "{name}, {numbers:?}, step {step}");
            assert_eq!(got[1], expected[1][at], "{name}, {numbers:?}, step {step}");
        }
    }
}

#[test]
fn drafts_change_no_bit_whether_right_or_wrong() {
    for name in random::MODELS {
        let directory = random::make(name);
        let prompt = tokens(60, 3);
        let mut model = Instance::whole(directory.path(), 2, EXACT);
        let expected = bits(&model.prompt(0, &prompt, 60));
        model.prompt(2, &prompt[..20], 20);
        let mut position = 20;
        for right in [0, 3, 1, 4, 2, 0, 4].into_iter().cycle() {
            if position + 5 > prompt.len() {
                break;
            }
            // A token that is known, and four drafts of which `right` are the prompt's own.
            let mut step = prompt[position..position + 5].to_vec();
            step[right + 1..].iter_mut().for_each(|token| *token = (*token + 1) % 128);
            let chunk = Chunk { sequence: 2, position, tokens: &step, drafts: 4, wanted: 0..5 };
            let got = bits(&model.run(&[chunk]));
            assert!(got[..=right] == expected[position..=position + right], "{name}, position {position}");
            position += right + 1;
        }
    }
}
