use super::*;

/// Names that vLLM's releases publish.
const RELEASES: [&str; 3] = [
    include_str!("../../tests/vllm/0.8.5.txt"),
    include_str!("../../tests/vllm/0.11.0.txt"),
    include_str!("../../tests/vllm/0.33.0.txt"),
];

fn read(line: &str) -> Vec<String> {
    let words = std::iter::once("skein").chain(line.split_whitespace()).map(str::to_owned).collect();
    let read = prepare(&crate::command(), words, |word| word == "DIR");
    read[1..].to_vec()
}

/// The words passed on, and the notes of one kind.
fn notes(line: &str, kind: &str) -> Vec<String> {
    let start = format!("--{kind}=");
    read(line).iter().filter_map(|word| word.strip_prefix(&start).map(str::to_owned)).collect()
}

#[test]
fn every_flag_that_vllm_publishes_has_an_answer() {
    let names: std::collections::BTreeSet<&str> =
        RELEASES.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with('-')).collect();
    assert!(names.len() > 350, "{} names", names.len());
    for name in names {
        let words = read(&format!("serve {name} 1"));
        let matches =
            crate::command().try_get_matches_from([vec!["skein".to_owned()], words.clone()].concat());
        assert!(matches.is_ok(), "{name}: {:?}", matches.err().map(|error| error.to_string()));
        let is_answered = |word: &String| {
            let note = word.starts_with("--flag-refused=") || word.starts_with("--flag-taken=");
            (note && word.contains(&format!("={name}"))) || word.starts_with(&format!("{name}="))
        };
        let translates = |row: &Row| {
            matches!(row.answer, Answer::Means(_) | Answer::Speculative | Answer::StructuredOutputs)
        };
        let means = find(name.trim_start_matches("--")).is_some_and(translates);
        let switch = words.contains(&name.to_owned());
        assert!(words.iter().any(is_answered) || means || switch, "{name} has no answer: {words:?}");
        assert!(!words.iter().any(|word| word.contains("no such flag")), "{name} is unknown: {words:?}");
    }
}

#[test]
fn no_name_has_two_answers() {
    let mut names: Vec<&str> = TABLE.iter().flat_map(|row| row.names).copied().collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "a name stands in two rows");
    let skein = crate::command();
    let serve = skein.find_subcommand("serve").expect("it is a command");
    for row in TABLE {
        if let Answer::Means(ours) = row.answer {
            assert!(
                serve.get_arguments().any(|arg| arg.get_long() == Some(ours)),
                "--{ours} is no flag of serve"
            );
        }
    }
    for own in serve.get_arguments().filter_map(clap::Arg::get_long) {
        assert!(find(own).is_none(), "--{own} is a setting, so the table must not answer for it");
    }
}

#[test]
fn flags_that_mean_the_same_are_passed_on() {
    let check = |line: &str, expected: &str| {
        let expected: Vec<String> = expected.split_whitespace().map(str::to_owned).collect();
        assert_eq!(read(line), expected, "{line}");
    };
    check("serve DIR --max_model_len 64", "serve DIR --max-model-len=64");
    check("serve DIR -dp 3 -q int8", "serve DIR --workers=3 --quantization=int8");
    check(
        "serve DIR --load-format safetensors --dtype float",
        "serve DIR --load-format=auto --dtype=float32",
    );
    check("serve --served-model-name a b DIR", "serve --served-model-name=a --served-model-name=b DIR");
    check("serve DIR --served-model-name a DIR", "serve DIR --served-model-name=a --served-model-name=DIR");
    check("serve --api-key a b --port 1", "serve --api-key=a --api-key=b --port=1");
    check("serve --api-key a DIR --port 1", "serve --api-key=a DIR --port=1");
    check("serve --api-key a DIR --port 1 DIR", "serve --api-key=a --api-key=DIR --port=1 DIR");
    check(
        "serve --served-model-name a DIR --max_model_len 8",
        "serve --served-model-name=a DIR --max-model-len=8",
    );
    check("run --url u --api-key a hello", "run --url=u --api-key=a hello");
    check(r#"serve --speculative-config={"method":"ngram"}"#, "serve --speculate=ngram");
    check("serve --speculative-config.method suffix", "serve --speculate=suffix");
    check("serve --spec-model small", "serve --speculate=small");
    check(
        r#"serve --structured-outputs-config={"backend":"guidance","disable_any_whitespace":true}"#,
        "serve --no-structured-outputs-whitespace",
    );
    check(
        "serve --structured-outputs-config.disable_additional_properties true",
        "serve --no-structured-outputs-additional-properties",
    );
    check("serve --no-enable-prefix-caching", "serve --no-enable-prefix-caching");
    check("run --temperature 0 -- --not-a-flag", "run --temperature=0 -- --not-a-flag");
    check("bench serve --whatever 1", "bench serve --whatever 1");
    check("config show --port 1", "config show --port=1");
    check("serve --help", "serve --help");
}

#[test]
fn flags_are_taken_or_refused_by_name_form_and_value() {
    let check = |line: &str, kind: &str, expected: &[&str]| {
        let notes = notes(line, kind);
        assert_eq!(notes.len(), expected.len(), "{line}: {notes:?}");
        for (note, expected) in notes.iter().zip(expected) {
            assert!(note.starts_with(expected), "{line}: {note}");
        }
    };
    check("serve --enable-chunked-prefill DIR", TAKEN, &["--enable-chunked-prefill: prompts are always"]);
    check("serve --no-enable-chunked-prefill", REFUSED, &["--no-enable-chunked-prefill: prompts are always"]);
    check("serve --trust-remote-code", REFUSED, &["--trust-remote-code: Skein never runs code"]);
    check("serve --enable-lora --max-loras 4 --max-lora-rank 64 --max-cpu-loras 8", REFUSED, &[]);
    check("serve --fully-sharded-loras", REFUSED, &["--fully-sharded-loras: LoRA adapters are served by"]);
    check("serve -tp 2", REFUSED, &[]);
    check("serve --tensor-parallel-size=2", REFUSED, &[]);
    check("gateway -tp 2", REFUSED, &["-tp: is --tensor-parallel-size of skein serve"]);
    check("serve -pp 2 -n 2 -r 0", REFUSED, &[]);
    check("serve --decode-context-parallel-size 2", REFUSED, &["--decode-context-parallel-size 2: a worker"]);
    check("worker --master-addr a", REFUSED, &["--master-addr: give --leader HOST:PORT"]);
    check("serve --dtype half", TAKEN, &["--dtype half: activations follow"]);
    check(
        "serve -O3 --compilation-config.level 3",
        TAKEN,
        &["-O3: the model", "--compilation-config.level: the"],
    );
    check("serve --speculative-config.model a", REFUSED, &[]);
    check("serve --speculative-config.x a", REFUSED, &["--speculative-config.x: x has no counterpart"]);
    check("gateway --spec-method ngram", REFUSED, &["--spec-method: is --speculate of skein serve"]);
    check("serve --spec-tokens 5", TAKEN, &["--spec-tokens: how many tokens"]);
    check(
        "serve --structured-outputs-config.enable_in_reasoning true",
        REFUSED,
        &["--structured-outputs-config.enable_in_reasoning: enable_in_reasoning"],
    );
    check("router --data-parallel-size 2", REFUSED, &[]);
    check("gateway --data-parallel-size 2", REFUSED, &["--data-parallel-size: is --workers of skein serve"]);
}

#[test]
fn all_unknown_flags_of_a_line_are_reported_together() {
    let refused = notes("serve --prot 1 DIR --hots a --bananas", REFUSED);
    assert_eq!(
        refused,
        [
            "--prot: no such flag; did you mean --port?",
            "--hots: no such flag; did you mean --host?",
            "--bananas: no such flag; --help lists them",
        ]
    );
    assert!(read("serve --prot 1 DIR").contains(&"DIR".to_owned()));
}

#[test]
fn a_negative_time_reaches_its_setting_without_a_wrong_hint() {
    assert_eq!(read("serve --request-timeout -3s"), ["serve", "--request-timeout=-3s"]);
    let line = "skein serve --request-timeout=-3s".split(' ');
    let matches = crate::command().try_get_matches_from(line).expect("clap takes it");
    let (_, matches) = matches.subcommand().expect("a command");
    assert_eq!(matches.get_one::<String>("request-timeout").map(String::as_str), Some("-3s"));
}
