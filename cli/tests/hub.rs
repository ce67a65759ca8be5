//! Models by name on the command line: a download that is killed again and again, and the related commands.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use skein_node::clock;
use skein_tests::hub::{FakeHub, Faults, File, Model};
use skein_tests::seeded::SeededRng;

const NAME: &str = "skein-serve/skein-7m";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The shipped model as the fake hub publishes it.
fn model() -> Model {
    let directory = skein_golden::shipped();
    let read = |name: &str| std::fs::read(directory.join(name)).expect("it ships with the source");
    let mut files: Vec<File> = ["config.json", "generation_config.json", "tokenizer_config.json"]
        .map(|name| File::small(name, read(name)))
        .into();
    files.push(File::large("tokenizer.json", read("tokenizer.json")));
    files.push(File::large("model.safetensors", read("model.safetensors")));
    files.push(File::large("pytorch_model.bin", vec![0; 100]));
    Model { commit: COMMIT.to_owned(), files, token: None }
}

fn skein(hub: &FakeHub, cache: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    command.args(arguments).env("HF_ENDPOINT", &hub.endpoint).env("HF_HUB_CACHE", cache);
    command.env_remove("HF_TOKEN").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(hub: &FakeHub, cache: &Path, arguments: &[&str]) -> Output {
    skein(hub, cache, arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Size of each blob in the cache, by file name.
fn on_disk(cache: &Path, model: &Model) -> BTreeMap<String, u64> {
    let blobs = cache.join("models--skein-serve--skein-7m/blobs");
    let bytes = |name: String| std::fs::metadata(blobs.join(name)).map_or(0, |found| found.len());
    let of = |file: &File| bytes(file.etag.clone()).max(bytes(format!("{}.incomplete", file.etag)));
    model.files.iter().map(|file| (file.name.clone(), of(file))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_killed_twenty_times_is_whole_and_fetches_nothing_twice() {
    let model = model();
    let hub = FakeHub::start(1, [(NAME.to_owned(), model.clone())]).await;
    let cache = tempfile::tempdir().expect("a temporary directory");
    let (mut rng, mut kills, mut before) = (SeededRng::new(7), 0, on_disk(cache.path(), &model));
    hub.misbehave(Faults { pause: Duration::from_millis(10), ..Faults::default() });
    // The pause makes kills interrupt the download; the last attempt runs undisturbed.
    while kills < 20 {
        let mut pull = skein(&hub, cache.path(), &["pull", NAME]).spawn().expect("it starts");
        let begun = hub.wait_for_content().await;
        tokio::time::sleep(rng.between(Duration::ZERO, Duration::from_millis(250))).await;
        pull.kill().expect("it is ours");
        assert!(!pull.wait().expect("it ends").success(), "killed before its end");
        // Wait: the server still reads the last request of the killed process.
        tokio::time::sleep(Duration::from_millis(300)).await;
        kills += u32::from(begun);
        for sent in hub.take_sent() {
            assert_eq!(sent.start, before[&sent.file], "{}: goes on from what is on disk", sent.file);
        }
        before = on_disk(cache.path(), &model);
    }
    hub.misbehave(Faults::default());
    let last = run(&hub, cache.path(), &["pull", NAME]);
    assert!(last.status.success(), "{}", text(&last.stderr));
    for sent in hub.take_sent() {
        assert_eq!(sent.start, before[&sent.file], "{}", sent.file);
    }
    let snapshot = text(&last.stdout).trim().to_owned();
    for file in model.files.iter().filter(|file| !file.name.ends_with(".bin")) {
        let content = std::fs::read(Path::new(&snapshot).join(&file.name)).expect("it is there");
        assert!(content == file.content, "{}", file.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_pulled_listed_answered_and_removed_by_its_name() {
    let hub = FakeHub::start(2, [(NAME.to_owned(), model())]).await;
    let cache = tempfile::tempdir().expect("a temporary directory");
    let check = |arguments: &[&str], code: i32, words: &[&str]| {
        let output = run(&hub, cache.path(), arguments);
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    };
    check(&["list"], 0, &["no models in", "skein pull"]);
    check(&["pull", "skein"], 2, &["is not the name of a model"]);
    check(&["pull", "skein-serve/other"], 3, &["has no model `skein-serve/other`"]);
    check(&["serve", "skein-serve/other", "--port", "0"], 3, &["has no model"]);
    check(&["serve", NAME, "--revision", "v9", "--port", "0"], 3, &["has no revision `v9`"]);
    check(&["remove", NAME], 3, &["is not in"]);
    check(&["run", "Hello", "--revision", "main"], 2, &["only models of the hub have revisions"]);
    // `run` downloads the model and answers.
    check(&["run", NAME, "--revision", COMMIT, "Hello", "--max-tokens", "1", "--device", "cpu"], 0, &[]);
    check(&["run", NAME, "Hello", "--max-tokens", "4", "--temperature", "0", "--device", "cpu"], 0, &[]);
    hub.publish([]);
    check(&["run", NAME, "Hello", "--max-tokens", "4", "--temperature", "0", "--device", "cpu"], 0, &[]);
    check(&["list"], 0, &[NAME, "main 0123456"]);
    check(&["list", "--json"], 0, &["\"complete\": true", COMMIT]);
    check(&["remove", NAME], 0, &["removed skein-serve/skein-7m"]);
    check(&["list"], 0, &["no models in"]);
}

/// A lookup has 4 s, twice.
const NAME_WITHIN: Duration = Duration::from_secs(15);

#[test]
fn a_hub_whose_name_has_no_address_is_told_within_seconds() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    for arguments in [&["pull", NAME][..], &["serve", NAME, "--port", "0"], &["run", NAME, "Hello"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
        command.args(arguments).env("HF_ENDPOINT", "https://hub.invalid").env("HF_HUB_CACHE", cache.path());
        for proxy in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
            command.env_remove(proxy);
        }
        let started = clock::now();
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        let (took, said) = (clock::now().since(started), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        let words = ["`hub.invalid` cannot be resolved", "HF_HUB_OFFLINE=1", "HF_ENDPOINT", "HTTPS_PROXY"];
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
        assert!(took < NAME_WITHIN, "{arguments:?}: {took:?}");
    }
}
