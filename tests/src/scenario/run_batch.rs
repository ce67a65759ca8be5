//! `kill -9` on the runner of a batch, on the router it sends to, and on workers, at random lines. At the end
//! every line is answered once, with the answer of an undisturbed run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use skein_node::clock;

use super::{Plan, addresses};
use crate::child::{Process, Spec, binary_under_test};
use crate::nodes::Front;
use crate::report::Report;
use crate::seeded::SeededRng;

/// Longest time without a new answer; a killed process must be back within it.
const NO_ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Interval between two checks of the file of answers.
const POLL: Duration = Duration::from_millis(5);
/// One line in this many is refused.
const REFUSED_EVERY: u64 = 30;
const REFUSED_AT: u64 = 7;

/// Runs the scenario: `plan.requests` lines, `plan.rounds` kills.
pub async fn run(plan: &Plan) -> Report {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| directory.path().join(name);
    let (input, calm, killed) = (file("in.jsonl"), file("calm.jsonl"), file("killed.jsonl"));
    write_requests(&input, plan.requests);
    let mut workers = plan.start_workers().await;
    let mut router = Front::router(&plan.binary, &addresses(&workers), &plan.front_extras()).await;
    let runner = |output: &Path| Process::prepare(runner(plan, &input, output, &router.url));

    let mut undisturbed = runner(&calm);
    undisturbed.restart();
    let code = undisturbed.wait_end(Duration::from_secs(3600)).await;
    assert_eq!(code, Some(0), "the undisturbed run ends:\n{}", undisturbed.log());

    let mut disturbed = runner(&killed);
    disturbed.restart();
    let mut rng = SeededRng::new(plan.seed ^ 0x6261_7463);
    let start = clock::now();
    let (mut kills, mut at) = ([0_u32; 3], Vec::new());
    for (mark, victim) in kills_of(plan, &mut rng) {
        reach(&killed, mark, &mut disturbed).await;
        at.push(lines_of(&killed));
        kills[victim] += 1;
        match victim {
            0 => disturbed.restart(),
            1 => router.process.restart(),
            _ => workers[rng.below(plan.workers)].process.restart(),
        }
    }
    let code = disturbed.wait_end(Duration::from_secs(3600)).await;
    let took = clock::now().since(start);

    let mut report = Report::new(format!("run-batch, kill -9 at random lines, seed {}", plan.seed));
    report.require(code == Some(0), || format!("the batch ended with {code:?}:\n{}", disturbed.log()));
    let [of_runner, of_router, of_workers] = kills;
    report.say("lines", plan.requests);
    report.say(
        "kills",
        format!("{of_runner} of the runner, {of_router} of the router, {of_workers} of workers"),
    );
    report.say("took", format!("{:.0} s", took.as_secs_f64()));
    let before_the_end = at.iter().filter(|lines| **lines < plan.requests).count();
    report.require(before_the_end == at.len(), || format!("{} kills came after the last line", at.len()));
    compare(&mut report, plan.requests, &calm, &killed);
    report
}

/// The kills in order: the number of answers before each, and its victim (0 = the runner, 1 = the router, 2 =
/// a worker). Each victim is killed equally often, give or take one.
fn kills_of(plan: &Plan, rng: &mut SeededRng) -> Vec<(u64, usize)> {
    let last = plan.requests * 95 / 100;
    let mut marks: Vec<u64> = (0..plan.rounds).map(|_| rng.below(last as usize) as u64).collect();
    marks.sort_unstable();
    let mut victims: Vec<usize> = (0..plan.rounds as usize).map(|round| round % 3).collect();
    for index in (1..victims.len()).rev() {
        victims.swap(index, rng.below(index + 1));
    }
    marks.into_iter().zip(victims).collect()
}

fn runner(plan: &Plan, input: &Path, output: &Path, url: &str) -> Spec {
    let path = |path: &Path| path.to_str().expect("temporary paths are UTF-8").to_owned();
    let given =
        ["run-batch", "--server", url, "--max-concurrency", "16", "-i", &path(input), "-o", &path(output)];
    Spec {
        name: "run-batch".into(),
        binary: binary_under_test(&plan.binary),
        arguments: given.map(str::to_owned).to_vec(),
        ..Spec::default()
    }
}

/// Waits until the batch has `mark` answers.
async fn reach(output: &Path, mark: u64, runner: &mut Process) {
    let (mut seen, mut since) = (lines_of(output), clock::now());
    while seen < mark {
        runner.assert_running("it had answered all");
        tokio::time::sleep(POLL).await;
        let now = lines_of(output);
        if now > seen {
            (seen, since) = (now, clock::now());
        }
        let silent = clock::now().since(since);
        assert!(silent < NO_ANSWER_WITHIN, "no answer for {silent:?} after {seen}:\n{}", runner.log());
    }
}

fn lines_of(path: &Path) -> u64 {
    std::fs::read(path).map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count() as u64)
}

fn compare(report: &mut Report, lines: u64, calm: &Path, killed: &Path) {
    let (expected, got) = (answers(calm), answers(killed));
    let (Ok(expected), Ok(got)) = (&expected, &got) else {
        for fault in [expected.err(), got.err()].into_iter().flatten() {
            report.require(false, || fault);
        }
        return;
    };
    let differ: Vec<&String> =
        expected.iter().filter(|(id, line)| got.get(*id) != Some(*line)).map(|(id, _)| id).collect();
    let refused = expected.values().filter(|line| is_refused(line)).count() as u64;
    report.say(
        "answers",
        format!("{}, each id once; {} differ from the undisturbed run", got.len(), differ.len()),
    );
    report.require(got.len() as u64 == lines, || format!("{} of {lines} lines are answered", got.len()));
    report.require(differ.is_empty(), || {
        let first = differ[0];
        let line =
            |answers: &BTreeMap<String, Value>| answers.get(first).map_or("nothing".into(), Value::to_string);
        format!("{} answers differ; the first:\n{}\n{}", differ.len(), line(expected), line(got))
    });
    let bad = (lines + REFUSED_EVERY - 1 - REFUSED_AT) / REFUSED_EVERY;
    report.require(refused == bad, || format!("{refused} lines were refused instead of {bad}"));
}

/// Writes `count` requests of every kind to `path`. The server refuses every thirtieth.
pub fn write_requests(path: &Path, count: u64) {
    let line = |n: u64| {
        let (url, mut body) = match n % 2 {
            0 => ("/v1/completions", json!({"prompt": format!("Story {n}: once")})),
            _ => (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": format!("Story {n}")}]}),
            ),
        };
        let more = match n % 5 {
            0 => json!({"temperature": 0}),
            1 => json!({"temperature": 1.1, "top_p": 0.9}),
            2 => json!({"n": 2}),
            3 => json!({"seed": n, "frequency_penalty": 0.5, "repetition_penalty": 1.1}),
            _ => json!({}),
        };
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        body["model"] = "skein-7m".into();
        body["max_tokens"] = (8 + n % 40).into();
        if n % REFUSED_EVERY == REFUSED_AT {
            body["temperature"] = 9.into();
        }
        json!({"custom_id": format!("r-{n}"), "method": "POST", "url": url, "body": body}).to_string() + "\n"
    };
    std::fs::write(path, (0..count).map(line).collect::<String>()).expect("it can be written");
}

/// The answers in `path` by id, without their time, their cached tokens, and notes that a request moved to
/// another worker with the same tokens.
///
/// # Errors
/// If a line is not JSON, or its id is missing or repeated.
pub fn answers(path: &Path) -> Result<BTreeMap<String, Value>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut answers = BTreeMap::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        if let Some(body) = line["response"]["body"].as_object_mut() {
            body.remove("created");
            if body.get("skein").is_some_and(|skein| skein["resume_exact"] == true) {
                body.remove("skein");
            }
            let usage = body.get_mut("usage").and_then(Value::as_object_mut);
            usage.map(|usage| usage.remove("prompt_tokens_details"));
        }
        let id = line["custom_id"].as_str().ok_or("a line has no custom_id")?.to_owned();
        if answers.insert(id.clone(), line).is_some() {
            return Err(format!("{id} is answered twice"));
        }
    }
    Ok(answers)
}

/// Whether an output line says that its request was refused.
pub fn is_refused(line: &Value) -> bool {
    line["response"]["status_code"].as_u64().is_none_or(|status| status >= 400)
}
