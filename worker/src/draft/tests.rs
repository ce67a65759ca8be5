//! Tests of complete drafts.

use super::*;

fn scope(salt: &str) -> CacheScope {
    CacheScope::new("m", salt)
}

fn guesser() -> Guesser {
    Guesser::new(Speculate::Auto, true).expect("it is on")
}

fn guess(guesser: &mut Guesser, tokens: &[TokenId]) -> Vec<TokenId> {
    guess_forced(guesser, tokens, &[])
}

fn guess_forced(guesser: &mut Guesser, tokens: &[TokenId], forced: &[TokenId]) -> Vec<TokenId> {
    let scope = scope("");
    let text = Text { tokens, scope: &scope, stops: &[0], forced, modelled: &[] };
    let mut progress = Progress::default();
    guesser.guess(&text, 6, &mut progress);
    let len = progress.latest.tokens.len() as u32;
    assert!(progress.latest.chances.is_sorted_by(|a, b| a >= b), "chances fall");
    progress.draft(len).to_vec()
}

#[test]
fn a_text_is_continued_as_it_was_before() {
    let mut guesser = guesser();
    assert_eq!(guess(&mut guesser, &[1, 2, 3, 4, 5, 6, 1, 2, 3]), [4, 5, 6, 1, 2, 3]);
    assert_eq!(guess(&mut guesser, &[8, 9, 7, 8, 9, 7, 8, 9]), [7, 8, 9, 7, 8, 9], "round and round");
    assert_eq!(guess(&mut guesser, &[1, 2, 3, 4, 0, 6, 1, 2, 3]), [4], "not past a stop");
    assert_eq!(guess(&mut guesser, &[1, 2, 3]), [0; 0]);
}

#[test]
fn the_longer_match_of_both_places_decides() {
    let mut guesser = guesser();
    guesser.ended(&scope(""), &[5, 6, 1, 2, 3, 40, 41], 2);
    assert_eq!(guess(&mut guesser, &[6, 1, 2, 3]), [40, 41]);
    assert_eq!(guess(&mut guesser, &[1, 2, 3, 9, 8, 1, 2, 3]), [9, 8, 1, 2, 3, 9], "its own");
    assert_eq!(guess(&mut guesser, &[1, 2, 3, 9, 8, 5, 6, 1, 2, 3]), [40, 41], "the longer match");
    assert_eq!(
        guess_forced(&mut guesser, &[6, 1, 2, 3], &[12, 0, 13]),
        [12],
        "what a grammar forces goes first"
    );
    let mut own = Guesser::new(Speculate::Ngram, true).expect("it is on");
    own.ended(&scope(""), &[5, 6, 1, 2, 3, 40, 41], 2);
    assert_eq!(guess(&mut own, &[6, 1, 2, 3]), [0; 0]);
    assert!(Guesser::new(Speculate::Off, true).is_none());
}

/// Decodes `whole` after its first `prompt_len` tokens on a device that takes `millis(rows)`. Returns the
/// ratio of the time to that of plain decoding.
fn relative_time(whole: &[TokenId], prompt_len: usize, millis: impl Fn(u32) -> f64) -> f64 {
    let (mut guesser, mut progress, scope) = (guesser(), Progress::default(), scope(""));
    let (mut len, mut took) = (prompt_len, 0.0);
    while len < whole.len() {
        let text = Text { tokens: &whole[..len], scope: &scope, stops: &[], forced: &[], modelled: &[] };
        guesser.guess(&text, whole.len() - len - 1, &mut progress);
        let taken = guesser.choose(std::iter::once(&progress), 1, MOST_ROWS)[0];
        let draft = progress.draft(taken);
        let right = draft.iter().zip(&whole[len..]).take_while(|(a, b)| a == b).count();
        guesser.drawn(whole[len..len + right + 1].iter().copied(), &mut progress);
        let step = millis(1 + taken);
        guesser.took(1 + taken, Duration::from_secs_f64(step / 1e3));
        (len, took) = (len + right + 1, took + step);
    }
    took / ((whole.len() - prompt_len) as f64 * millis(1))
}

fn noise(len: usize, vocabulary: u64) -> Vec<TokenId> {
    let mut state = 7u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary) as TokenId
    };
    (0..len).map(next).collect()
}

#[test]
fn copies_are_much_faster_and_noise_is_not_slower() {
    let flat = |rows: u32| 60.0 + f64::from(rows.saturating_sub(1));
    let steep = |rows: u32| 10.0 + 10.0 * f64::from(rows);
    let passage = noise(400, 30_000);
    let copied = [&passage[..], &passage].concat();
    assert!(relative_time(&copied, 403, flat) < 0.12);
    assert!(relative_time(&copied, 403, steep) < 0.95, "even where rows cost half a step");
    // With few distinct tokens, matches are frequent and predict nothing.
    for vocabulary in [3, 6, 12, 30_000] {
        for (name, cost) in [("flat", &flat as &dyn Fn(u32) -> f64), ("steep", &steep)] {
            let relative = relative_time(&noise(6000, vocabulary), 1000, cost);
            let bound = if vocabulary == 3 && name == "flat" { 1.0 } else { 1.02 };
            assert!(relative < bound, "{vocabulary} tokens, {name}: {relative}");
        }
    }
}

#[test]
fn texts_that_change_are_followed() {
    // A passage is copied with a change every twelve tokens.
    let passage = noise(1200, 30_000);
    let mut edited = passage.clone();
    edited.iter_mut().step_by(12).for_each(|token| *token += 1);
    let whole = [&passage[..], &edited].concat();
    let relative = relative_time(&whole, 1203, |rows| 60.0 + f64::from(rows.saturating_sub(1)));
    assert!(relative < 0.45, "{relative}");
}
