//! `skein quantize` as a process: killed in the middle and started again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use skein_node::clock;

/// Layers of the shipped model.
const LAYERS: usize = 8;
/// Time limit of one start on a busy machine.
const WITHIN: Duration = Duration::from_secs(300);

fn quantize(out: &Path) -> Command {
    let model = skein_golden::shipped();
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    command.arg("quantize").args([&model, out]).args(["--method", "gptq", "--calibration-samples", "6"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finish(out: &Path) -> String {
    let output = quantize(out).output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The finished weight files with their inodes.
fn layers(out: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = fs::read_dir(out).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.path().extension().is_some_and(|it| it == "safetensors"));
    files.map(|entry| (entry.path(), entry.metadata().expect("it is there").ino())).collect()
}

fn contents(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(out).expect("it was written").flatten();
    let file = |entry: fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("it is a file"))
    };
    entries.map(file).collect()
}

#[test]
fn a_killed_run_goes_on_with_the_layer_where_it_stopped_and_gives_the_same_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let [calm, killed] = ["calm", "killed"].map(|name| directory.path().join(name));
    finish(&calm);
    let mut before = BTreeMap::new();
    for least in [1, 3, 6] {
        let mut run = quantize(&killed).spawn().expect("the binary starts");
        let start = clock::now();
        while layers(&killed).len() < least && clock::now().since(start) < WITHIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        run.kill().expect("it runs"); // SIGKILL
        run.wait().expect("it ends");
        assert!(!killed.join("config.json").exists(), "the kill came too late to show anything");
        let now = layers(&killed);
        assert!((least..=LAYERS).contains(&now.len()), "{} layers", now.len());
        assert!(before.iter().all(|(file, inode)| now[file] == *inode), "no layer was done again");
        before = now;
    }
    let said = finish(&killed);
    let found = format!("{} found finished", before.len().min(LAYERS));
    assert!(said.contains(&found), "{said}");
    assert!(contents(&calm) == contents(&killed), "the same files with the same bytes");
}
