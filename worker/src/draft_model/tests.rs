use super::*;
use crate::backend::fake::{FakeBackend, FakeOptions};
use crate::draft::Share;
use crate::kv_cache::CacheScope;

const BLOCK: u32 = 4;
const VOCAB: u32 = 50;

fn model(kv_blocks: u32, vocab: (u32, u32)) -> DraftModel {
    let options = FakeOptions {
        vocab_size: vocab.0,
        block_size: BLOCK,
        kv_blocks,
        steps_in_flight: 1,
        ..FakeOptions::default()
    };
    let mut model =
        DraftModel::start(Box::new(FakeBackend::new(options)), BLOCK, vocab, true).expect("it runs");
    assert!(model.take_times().len() > 1, "it has measured its steps");
    assert_eq!(model.held_blocks(), 0);
    model
}

struct Whole {
    tokens: Vec<TokenId>,
    scope: CacheScope,
    params: Arc<SamplingParams>,
}

impl Whole {
    fn new(tokens: Vec<TokenId>, params: SamplingParams) -> Self {
        Self { tokens, scope: CacheScope::new("model", ""), params: Arc::new(params) }
    }

    /// Drafts for it as sample `sample` of one request; returns the rows of each step, too.
    fn draft(
        &self,
        model: &mut DraftModel,
        sample: u32,
        rows: u32,
        drafted: u32,
    ) -> (Vec<u32>, Vec<TokenId>) {
        let mut hashes = Vec::new();
        let mut parent = self.scope.root;
        for block in self.tokens.chunks_exact(BLOCK as usize) {
            parent = skein_proto::block_hash::extend(parent, block);
            hashes.push(parent);
        }
        let draft = ModelDraft { request: RequestKey(1), sample, share: Share { rows, drafted } };
        let Self { tokens, scope, params, .. } = self;
        let text = ModelText { tokens, hashes: &hashes, scope, params, prompt_len: 5 };
        assert!(model.behind(RequestKey(1), sample, &text) >= rows);
        let mut drafts = model.draft(&[draft], |_| Some(text)).expect("it runs");
        let rows = model.take_times().into_iter().map(|(rows, _)| rows).collect();
        (rows, drafts.remove(0))
    }
}

#[test]
fn what_is_right_is_kept_and_what_is_cached_is_shared() {
    let mut model = model(64, (VOCAB, VOCAB));
    let mut text = Whole::new((0..13).collect(), SamplingParams::default());
    let (rows, drafted) = text.draft(&mut model, 0, 13, 4);
    assert_eq!((rows, drafted.len()), (vec![13, 1, 1, 1], 4));
    // Two of the four were right; then another token was drawn.
    text.tokens.extend_from_slice(&drafted[..2]);
    text.tokens.push(drafted[2] ^ 1);
    assert_eq!(text.draft(&mut model, 0, 1, 1).0, [1]);
    // The three full blocks are cached, so another sample only computes what follows.
    text.tokens.push(3);
    assert_eq!(text.draft(&mut model, 1, 5, 1).0, [5]);
    model.keep(|_, _| false);
    assert!(model.is_idle() && model.held_blocks() == 0);
}

#[test]
fn a_text_that_is_behind_catches_up_in_parts() {
    let mut model = model(64, (VOCAB, VOCAB));
    let text = Whole::new((0..40).collect(), SamplingParams::default());
    assert_eq!(text.draft(&mut model, 0, 16, 0), (vec![16], vec![]));
    assert_eq!(text.draft(&mut model, 0, 16, 0), (vec![16], vec![]));
    let (rows, drafted) = text.draft(&mut model, 0, 8, 2);
    assert_eq!((rows, drafted.len()), (vec![8, 1], 2));
}

#[test]
fn drafts_end_before_stops_and_before_tokens_of_this_model_alone() {
    let text = Whole::new((0..9).collect(), SamplingParams::default());
    let whole = text.draft(&mut model(64, (VOCAB, VOCAB)), 0, 9, 6).1;
    assert_eq!(whole.len(), 6);
    let stop =
        whole.iter().position(|token| !whole[..2].contains(token) && *token > 0).expect("another token");
    let params = SamplingParams { stop_token_ids: vec![whole[stop]], ..SamplingParams::default() };
    let stopped = Whole::new((0..9).collect(), params);
    assert_eq!(stopped.draft(&mut model(64, (VOCAB, VOCAB)), 0, 9, 6).1, whole[..stop]);
    let few = whole.iter().copied().max().expect("six tokens");
    let before: Vec<TokenId> = whole.iter().copied().take_while(|token| *token < few).collect();
    assert_eq!(text.draft(&mut model(64, (VOCAB, few)), 0, 9, 6).1, before);
}

#[test]
fn without_room_there_is_no_draft_and_no_failure() {
    let mut model = model(4, (VOCAB, VOCAB));
    let text = Whole::new((0..30).collect(), SamplingParams::default());
    assert!(text.draft(&mut model, 0, 30, 3).1.is_empty());
    model.keep(|_, _| false);
    let text = Whole::new((0..15).collect(), SamplingParams::default());
    assert_eq!(text.draft(&mut model, 0, 15, 5).1.len(), 2, "as far as there are blocks");
}
