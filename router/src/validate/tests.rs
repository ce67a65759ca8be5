//! Each rule, its message, and the defaults for absent values.

use super::*;
use crate::request::Truncation;
use crate::testing;
use serde_json::json;
use skein_proto::adapter::AdapterId;

const GOLDEN_SEEDS: [u64; 4] =
    [7768404102018490534, 10201980388726181575, 14158958447135364054, 11898486305011032276];
const MODEL: ModelLimits =
    ModelLimits { max_model_len: 64, vocab_size: 300, max_num_seqs: 128, pools: false };

fn run(draft: Draft) -> Result<(TokenRequest, TextOptions), Refusal> {
    validate(
        draft,
        &testing::model_text(),
        Offer { model: &MODEL, adapters: &KnownAdapters::default() },
        &RequestLimits::default(),
        Timestamp::ZERO,
    )
}

fn draft(sampling: SamplingOptions) -> Draft {
    Draft { prompt: Prompt::Tokens(vec![1, 2, 3]), sampling, ..Draft::default() }
}

fn check(sampling: SamplingOptions, param: &str, message: &str) {
    check_draft(draft(sampling), param, message);
}

fn check_draft(draft: Draft, param: &str, message: &str) {
    let refusal = run(draft).unwrap_err();
    assert_eq!((refusal.param(), refusal.to_string().as_str()), (Some(param), message));
    assert_eq!(refusal.http().status, 400);
}

fn some() -> SamplingOptions {
    SamplingOptions::default()
}

#[test]
#[rustfmt::skip] // a table
fn each_rule_names_field_limit_and_value() {
    check(SamplingOptions { temperature: Some(3.0), ..some() }, "temperature", "temperature must be in [0, 2], got 3.");
    check(SamplingOptions { temperature: Some(f64::NAN), ..some() }, "temperature", "temperature must be in [0, 2], got NaN.");
    check(SamplingOptions { temperature: Some(f64::INFINITY), ..some() }, "temperature", "temperature must be in [0, 2], got inf.");
    check(SamplingOptions { top_p: Some(0.0), ..some() }, "top_p", "top_p must be in (0, 1], got 0.");
    check(SamplingOptions { top_k: Some(-2), ..some() }, "top_k", "top_k must be -1 or 0 (off) or at least 1, got -2.");
    check(SamplingOptions { min_p: Some(1.5), ..some() }, "min_p", "min_p must be in [0, 1], got 1.5.");
    check(SamplingOptions { repetition_penalty: Some(0.0), ..some() }, "repetition_penalty", "repetition_penalty must be in (0, 10], got 0.");
    check(SamplingOptions { presence_penalty: Some(-2.1), ..some() }, "presence_penalty", "presence_penalty must be in [-2, 2], got -2.1.");
    check(SamplingOptions { frequency_penalty: Some(9.0), ..some() }, "frequency_penalty", "frequency_penalty must be in [-2, 2], got 9.");
    check(SamplingOptions { n: Some(1_000_000), ..some() }, "n", "n must be in [1, 128], got 1000000.");
    check(SamplingOptions { n: Some(0), ..some() }, "n", "n must be in [1, 128], got 0.");
    check(SamplingOptions { best_of: Some(4), ..some() }, "best_of", "best_of must equal n (1), got 4; choosing the best of more samples is not supported.");
    check(SamplingOptions { max_tokens: Some(0), ..some() }, "max_tokens", "max_tokens must be in [1, 64], got 0.");
    check(SamplingOptions { max_tokens: Some(4), min_tokens: Some(5), ..some() }, "min_tokens", "min_tokens must be in [0, 4], got 5.");
    check(SamplingOptions { logprobs: Some(21), ..some() }, "logprobs", "logprobs must be in [0, 20], got 21.");
    check(SamplingOptions { prompt_logprobs: Some(-1), ..some() }, "prompt_logprobs", "prompt_logprobs must be in [0, 20], got -1.");
    check(SamplingOptions { stop: vec![String::new()], ..some() }, "stop", "stop strings must not be empty.");
    check(SamplingOptions { stop: vec!["x".repeat(257)], ..some() }, "stop", "stop takes at most 256 bytes each, got 257.");
    check(SamplingOptions { stop: vec!["x".to_owned(); 17], ..some() }, "stop", "stop takes at most 16 entries, got 17.");
    check(SamplingOptions { stop_token_ids: vec![1; 129], ..some() }, "stop_token_ids", "stop_token_ids takes at most 128 entries, got 129.");
    check(SamplingOptions { stop_token_ids: vec![300], ..some() }, "stop_token_ids", "stop_token_ids: token id 300 is not in the vocabulary (0..300).");
    check(SamplingOptions { logit_bias: vec![(-1, 1.0)], ..some() }, "logit_bias", "logit_bias: token id -1 is not in the vocabulary (0..300).");
    check(SamplingOptions { logit_bias: vec![(1, f64::NAN)], ..some() }, "logit_bias", "logit_bias of token 1 must be a number.");
    check(SamplingOptions { allowed_token_ids: Some(vec![5, 300]), ..some() }, "allowed_token_ids", "allowed_token_ids: token id 300 is not in the vocabulary (0..300).");
    check(SamplingOptions { allowed_token_ids: Some(Vec::new()), ..some() }, "allowed_token_ids", "allowed_token_ids must hold at least one token; leave it out to allow all.");
    check(SamplingOptions { allowed_token_ids: Some(vec![5; 20_000]), ..some() }, "allowed_token_ids", "allowed_token_ids takes at most 16384 entries, got 20000.");
    check(SamplingOptions { bad_words: vec![" \t".to_owned()], ..some() }, "bad_words", "bad_words must have a character other than white space.");
    check(SamplingOptions { bad_words: vec!["x".repeat(257)], ..some() }, "bad_words", "bad_words takes at most 256 bytes each, got 257.");
    check(SamplingOptions { bad_words: vec!["x".repeat(65)], ..some() }, "bad_words", &format!("bad_words: `{}` has 65 tokens; at most 64 are allowed.", "x".repeat(40)));
    check(SamplingOptions { bad_words: vec!["x".to_owned(); 129], ..some() }, "bad_words", "bad_words takes at most 128 entries, got 129.");
    check_draft(Draft { priority: Some(101), ..draft(some()) }, "priority", "priority must be in [-100, 100], got 101.");
    check_draft(Draft { timeout_ms: Some(0), ..draft(some()) }, "timeout_ms", "timeout_ms must be at least 1, got 0.");
    check_draft(Draft { request_id: Some("a b".into()), ..draft(some()) }, "request_id", "request_id must be 1 to 128 printable ASCII bytes without spaces, got `a b`.");
    check_draft(Draft { prompt: Prompt::Tokens(Vec::new()), ..draft(some()) }, "prompt", "The prompt is empty; send at least one token.");
    check_draft(Draft { prompt: Prompt::Tokens(vec![300]), ..draft(some()) }, "prompt", "prompt: token id 300 is not in the vocabulary (0..300).");
}

#[test]
fn a_prompt_too_long_is_told_in_the_known_sentence_and_an_output_too_long_by_its_own_name() {
    let prompt = |tokens, max_tokens| Draft {
        prompt: Prompt::Tokens(vec![1; tokens]),
        sampling: SamplingOptions { max_tokens, ..some() },
        ..Draft::default()
    };
    assert_eq!(run(prompt(63, None)).unwrap().0.sampling.max_tokens, 1);
    assert_eq!(run(prompt(60, Some(4))).unwrap().0.sampling.max_tokens, 4);
    check_draft(
        prompt(64, None),
        "prompt",
        "This model's maximum context length is 64 tokens. However, you requested 65 tokens (64 in the prompt, 1 for the output). Please reduce the length of the prompt or of the output.",
    );
    check_draft(
        prompt(61, Some(4)),
        "max_tokens",
        "max_tokens is too large: 4. This model's maximum context length is 64 tokens and the prompt has 61; ask for at most 3 tokens.",
    );
}

#[test]
fn a_text_with_tokens_outside_the_models_vocabulary_is_refused_by_the_router() {
    // The tokenizer's bytes are tokens 4 to 259: `z` is 126.
    let small = ModelLimits { vocab_size: 126, ..MODEL };
    let run = |prompt| {
        let draft = Draft { prompt, ..Draft::default() };
        validate(
            draft,
            &testing::model_text(),
            Offer { model: &small, adapters: &KnownAdapters::default() },
            &RequestLimits::default(),
            Timestamp::ZERO,
        )
    };
    assert!(run(Prompt::Text("ay".to_owned())).is_ok());
    let refusal = run(Prompt::Text("az".to_owned())).unwrap_err();
    let message =
        "prompt: the text contains `z`, token id 126, which is outside the model's vocabulary (0..126).";
    assert_eq!((refusal.param(), refusal.to_string().as_str()), (Some("prompt"), message));
    let messages = vec![json!({"role": "user", "content": "z"})];
    let chat = Prompt::Chat {
        messages,
        add_generation_prompt: true,
        continue_final_message: false,
        template_kwargs: serde_json::Map::new(),
    };
    assert_eq!(run(chat).unwrap_err().param(), Some("messages"));
}

#[test]
fn more_samples_than_a_worker_runs_at_once_are_refused_by_the_router() {
    let small = ModelLimits { max_num_seqs: 8, ..MODEL };
    let draft = draft(SamplingOptions { n: Some(9), ..some() });
    let refusal = validate(
        draft,
        &testing::model_text(),
        Offer { model: &small, adapters: &KnownAdapters::default() },
        &RequestLimits::default(),
        Timestamp::ZERO,
    )
    .unwrap_err();
    let message = "n must be in [1, 8], got 9: a worker runs at most 8 sequences at once, by --max-num-seqs or for lack of \
                   memory (see --plan).";
    assert_eq!((refusal.param(), refusal.to_string().as_str()), (Some("n"), message));
}

#[test]
fn several_values_out_of_range_are_told_at_once() {
    let wrong = SamplingOptions { temperature: Some(3.0), top_p: Some(0.0), n: Some(0), ..some() };
    let message =
        "n must be in [1, 128], got 0. temperature must be in [0, 2], got 3. top_p must be in (0, 1], got 0.";
    check(wrong, "n", message);
}

#[test]
fn many_greedy_samples_are_allowed() {
    let greedy = SamplingOptions { n: Some(128), temperature: Some(0.0), ..some() };
    assert_eq!(run(draft(greedy)).unwrap().0.n, 128);
}

#[test]
fn a_model_that_is_not_served_is_not_found() {
    let refusal = run(Draft { model: Some("gpt".to_owned()), ..draft(some()) }).unwrap_err();
    assert_eq!((refusal.http().status, refusal.param()), (404, Some("model")));
    assert!(run(Draft { model: Some("test".to_owned()), ..draft(some()) }).is_ok());
}

#[test]
fn absent_values_take_their_defaults() {
    let (request, options) = run(draft(some())).unwrap();
    let SamplingParams { temperature, top_p, top_k, min_tokens, max_tokens, seed, .. } = *request.sampling;
    assert_eq!((temperature, top_p, top_k, min_tokens, max_tokens), (1.0, 1.0, 0, 0, 61));
    assert_eq!(request.deadline, Some(Timestamp::ZERO + RequestLimits::default().request_timeout));
    assert!(options.skip_special_tokens);
    let again = run(draft(some())).unwrap().0;
    assert_ne!((again.id, again.sampling.seed), (request.id, seed));
}

#[test]
fn without_a_seed_the_id_is_the_seed() {
    let seed = |id: &str, part| {
        let draft = Draft { request_id: Some(id.into()), part, ..draft(some()) };
        run(draft).unwrap().0.sampling.seed
    };
    let drawn = "0192f0c1-2d3e-7f00-8000-000000000000";
    let seeds = [seed("mine", None), seed("mine", Some(0)), seed("mine", Some(1)), seed(drawn, None)];
    assert_eq!(seeds, GOLDEN_SEEDS);
    assert_eq!(seed("mine-1", None), GOLDEN_SEEDS[2], "a part is its own id");
}

#[test]
fn calls_with_different_stop_strings_share_no_stream() {
    let key = |stop: &[&str], skip_special_tokens| {
        let stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let sampling = SamplingOptions { stop, skip_special_tokens, ..some() };
        let draft = Draft { request_id: Some("mine".into()), ..draft(sampling) };
        run(draft).unwrap().0.stream_key()
    };
    assert_eq!(key(&["a", "b"], None), key(&["a", "b"], Some(true)));
    assert_eq!(key(&[], None), key(&[], Some(false)), "the tokens are the same");
    let keys = [key(&[], None), key(&["ab"], None), key(&["a", "b"], None), key(&["ab"], Some(false))];
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
}

#[test]
fn absent_values_take_the_models_defaults() {
    let generation = json!({"do_sample": true, "temperature": 0.5, "top_k": 7, "max_new_tokens": 5});
    let text = testing::model_text_with(&generation, None);
    let run = |draft| {
        validate(
            draft,
            &text,
            Offer { model: &MODEL, adapters: &KnownAdapters::default() },
            &RequestLimits::default(),
            Timestamp::ZERO,
        )
        .unwrap()
        .0
    };
    let sampling = run(draft(some())).sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.max_tokens), (0.5, 7, 5));
    let given = SamplingOptions { temperature: Some(0.0), top_k: Some(-1), max_tokens: Some(9), ..some() };
    let sampling = run(draft(given)).sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.max_tokens), (0.0, 0, 9));
}

#[test]
fn values_are_clamped_where_the_api_says_so() {
    let given = SamplingOptions {
        logit_bias: vec![(1, 1000.0), (2, -1e9)],
        temperature: Some(1e-9),
        top_k: Some(1_000_000),
        seed: Some(-1),
        ..some()
    };
    let sampling = run(draft(given)).unwrap().0.sampling;
    assert_eq!(sampling.logit_bias, [(1, 100.0), (2, -100.0)]);
    assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.0, 300, u64::MAX));
}

#[test]
fn a_name_is_the_models_or_an_adapters_or_refused() {
    let text = testing::model_text();
    let by_name = [("sql".into(), AdapterId(7))].into();
    let adapters = KnownAdapters { by_name, list: Vec::new() };
    let named = |model: Option<&str>| {
        let draft = Draft { model: model.map(str::to_owned), ..draft(some()) };
        validate(
            draft,
            &text,
            Offer { model: &MODEL, adapters: &adapters },
            &RequestLimits::default(),
            Timestamp::ZERO,
        )
    };
    assert_eq!(named(None).unwrap().0.adapter, None);
    assert_eq!(named(Some(&text.name())).unwrap().0.adapter, None);
    let request = named(Some("sql")).unwrap().0;
    assert_eq!(request.adapter.as_ref().map(|adapter| adapter.id), Some(AdapterId(7)));
    assert_eq!(&**request.shown_model(), "sql");
    let refused = named(Some("sqlx")).unwrap_err().to_string();
    assert_eq!(refused, "The model `sqlx` does not exist; this server has `test`, `sql`.");
}

#[test]
fn texts_are_known_to_requests_of_the_same_salt_and_tenant_only() {
    let text = testing::model_text();
    let model = ModelLimits { max_model_len: 10_000, ..MODEL };
    let prompt = "a word ".repeat(500);
    let tokens = prompt.len() + 1;
    let known = |own_salt: &str, tenant: Tenant, truncation| {
        let draft = Draft {
            prompt: Prompt::Text(prompt.clone()),
            cache_salt: own_salt.to_owned(),
            tenant,
            truncation,
            ..Draft::default()
        };
        let before = text.tokenizer.kept_counts().known;
        let offer = Offer { model: &model, adapters: &KnownAdapters::default() };
        let limits = RequestLimits::default();
        let (request, _) = validate(draft, &text, offer, &limits, Timestamp::ZERO).unwrap();
        (text.tokenizer.kept_counts().known > before, request.prompt.len())
    };
    let (key, nobody) = (Tenant::of_key("one"), Tenant::default());
    assert_eq!(known("", nobody.clone(), None), (false, tokens));
    assert_eq!(known("", nobody.clone(), None), (true, tokens));
    assert_eq!(known("x", nobody.clone(), None), (false, tokens));
    assert_eq!(known("", key.clone(), None), (false, tokens));
    assert_eq!(known("", key.clone(), None), (true, tokens));
    assert!(!known("", Tenant::of_key("other"), None).0);
    let truncation = Some(Truncation { tokens: 100, keep_first: false });
    assert_eq!(known("x", key, truncation).1, 100);
}
