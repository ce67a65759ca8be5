//! The binary on the emulated GPU, and on machines without a usable GPU: its output and exit codes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use skein_bench::models::{Dtype, QuantisedForm, SHAPES, make_without_weights};

/// A machine without a usable GPU, the expected message, and the variable that makes the emulation behave so.
type Machine = (&'static str, &'static str, Option<(&'static str, &'static str)>);

const UNUSABLE: [Machine; 3] = [
    ("no driver", "libcuda.so.1 was not found", None),
    ("no device", "no device is visible", Some(("EMU_DEVICES", "0"))),
    ("an old driver", "supports CUDA 12.4, and Skein needs 13.0", Some(("EMU_DRIVER", "12040"))),
];

/// `skein` with `arguments` and the emulation in place of NVIDIA's libraries; `None` without an emulation.
fn on_emulation(arguments: &[&str]) -> Option<Command> {
    let Some(libraries) = skein_cuda_emulation::directory() else {
        eprintln!("SKIPPED: no CUDA emulation; install a C++ compiler (g++) and build again");
        return None;
    };
    let mut command = skein(arguments);
    command.env("LD_LIBRARY_PATH", libraries);
    Some(command)
}

/// `skein` with `arguments`, without NVIDIA's libraries and without this environment's settings.
fn skein(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skein"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SKEIN_")) {
        command.env_remove(name);
    }
    command.env_remove("LD_LIBRARY_PATH").args(arguments).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn passed(output: &Output) -> String {
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    said
}

/// A directory with the config of a tiny model, without weights. `form`: name of the form of its codes.
fn without_weights(dir: &tempfile::TempDir, form: Option<&str>) -> PathBuf {
    let model = dir.path().join(format!("tiny-{}", form.unwrap_or("plain")));
    let form = form.map(|name| QuantisedForm::of(name).expect("a known form"));
    make_without_weights(&SHAPES[0], Dtype::Bf16, form, &skein_golden::shipped(), &model)
        .expect("it is made");
    model
}

#[test]
fn kernels_are_checked_and_the_table_says_so() {
    let Some(mut command) = on_emulation(&["gpu-check", "kernels", "--only", "norm"]) else { return };
    let said = passed(&command.output().expect("it ends"));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("Skein emulated device: compute capability 9.0"), "{said}");
    assert!(lines.iter().any(|line| line.starts_with("add_rms_norm_bf16 1x64")), "{said}");
    let summary = lines.iter().find(|line| line.starts_with("kernels: ")).expect("there is a summary");
    let counts: Vec<usize> = summary.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(counts[0] > 0 && counts[0] == counts[1], "{summary}");

    let Some(mut nothing) = on_emulation(&["gpu-check", "kernels", "--only", "no such case"]) else { return };
    let output = nothing.output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "a run without cases has not passed");
}

/// Groups of a few short cases each, in their order.
const SHORT_GROUPS: &str = "mma,cublaslt,embed,softcap,quantize";
/// Limits in seconds that no machine reaches without a fault.
const FAR: [&str; 4] = ["--wait-limit", "600", "--group-timeout", "600"];

/// Exit code, JSON report and standard error of `gpu-check kernels` with a variable of the emulation.
fn check_kernels(flags: &[&str], variable: (&str, &str)) -> Option<(Option<i32>, serde_json::Value, String)> {
    let mut command = on_emulation(&[&["gpu-check", "kernels", "--json"], flags].concat())?;
    let output = command.env(variable.0, variable.1).output().expect("it ends");
    let report = serde_json::from_slice(&output.stdout).expect("it is JSON");
    Some((output.status.code(), report, text(&output.stderr)))
}

/// Requires that of [`SHORT_GROUPS`] only `name` failed; returns its entry in the report.
fn only_failed<'a>(report: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let groups = report["groups"].as_array().expect("a list");
    assert_eq!(groups.len(), SHORT_GROUPS.split(',').count(), "{report:#}");
    for group in groups {
        assert_eq!(group["passed"] == true, group["name"] != name, "{group:#}");
        assert!(group["name"] == name || group["comparisons"].as_u64() > Some(0), "{group:#}");
    }
    groups.iter().find(|group| group["name"] == name).expect("the group was run")
}

#[test]
fn an_illegal_address_ends_its_group_and_names_the_case() {
    let flags = [&["--group", SHORT_GROUPS, "--jobs", "2"], &FAR[..]].concat();
    let fault = ("EMU_FAULT", "illegal:softcap");
    let Some((code, report, said)) = check_kernels(&flags, fault) else { return };
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("1 groups of kernels failed: softcap"), "{said}");
    let softcap = only_failed(&report, "softcap");
    let broken = softcap["broken"][0].as_str().expect("it says why");
    assert!(broken.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{broken}");
    assert!(broken.ends_with("in case `softcap 1 cap 1.5`; nothing was compared before"), "{broken}");
    assert_eq!(softcap["not_reached"].as_array().map(Vec::len), Some(5), "{softcap:#}");
    assert!(softcap["stderr"].to_string().contains("illegal address in softcap"), "{softcap:#}");

    // In words.
    let mut command = on_emulation(&[&["gpu-check", "kernels"], &flags[..]].concat()).expect("as above");
    let said = text(&command.env(fault.0, fault.1).output().expect("it ends").stdout);
    assert!(said.contains(" 4 of 5 groups, seed 1"), "{said}");
    assert!(said.contains(&format!("FAILED group softcap\n  {broken}\n")), "{said}");
    assert!(said.contains("  not reached: 5 cases: `softcap 1 cap 30`, "), "{said}");
}

#[test]
fn a_kernel_that_never_ends_costs_its_group() {
    let flags = ["--group", SHORT_GROUPS, "--wait-limit", "5", "--group-timeout", "600"];
    let Some((code, report, said)) = check_kernels(&flags, ("EMU_FAULT", "hang:softcap")) else { return };
    assert_eq!(code, Some(1), "{said}");
    let broken = only_failed(&report, "softcap")["broken"][0].as_str().expect("it says why").to_owned();
    assert!(broken.contains("did not finish its work within 5s"), "{broken}");
    assert!(broken.contains("in case `softcap 1 cap 1.5`"), "{broken}");
}

#[test]
fn a_group_that_does_not_end_is_stopped() {
    let flags = ["--group", "softcap", "--wait-limit", "600", "--group-timeout", "10"];
    let Some((code, report, said)) = check_kernels(&flags, ("EMU_FAULT", "hang:softcap")) else { return };
    assert_eq!(code, Some(1), "{said}");
    let broken = report["groups"][0]["broken"][0].as_str().expect("it says why");
    assert!(broken.contains("did not end within 10 s (--group-timeout) in case `softcap 1"), "{broken}");
}

#[test]
fn a_missing_cublaslt_fails_unless_it_is_left_out() {
    let flags = [&["--group", SHORT_GROUPS], &FAR[..]].concat();
    let missing = ("EMU_CUBLASLT_VERSION", "0");
    let Some((code, report, said)) = check_kernels(&flags, missing) else { return };
    assert_eq!(code, Some(1), "{said}");
    only_failed(&report, "cublaslt");
    let cases = report["kernels"].as_array().expect("a list");
    let of_group = cases.iter().find(|case| case["group"] == "cublaslt").expect("its cases failed");
    let why = of_group["why"].as_str().expect("it says why");
    assert!(why.starts_with("cuBLASLt was not found") && why.contains("--without-cublaslt"), "{why}");

    let without = [&flags[..], &["--without-cublaslt"]].concat();
    let (code, report, said) = check_kernels(&without, missing).expect("as above");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(report["groups"].as_array().map(Vec::len), Some(4), "{report:#}");

    let mut nothing = on_emulation(&["gpu-check", "kernels", "--group", "cublaslt", "--without-cublaslt"])
        .expect("as above");
    let refused = nothing.output().expect("it ends");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("leaves out the only group"), "{said}");
}

#[test]
fn a_check_that_is_stopped_says_what_it_did_not_reach() {
    let flags = ["gpu-check", "kernels", "--group", "mma,softcap,quantize", "--jobs", "1"];
    let Some(mut command) = on_emulation(&[&flags[..], &FAR].concat()) else { return };
    let mut check =
        command.env("EMU_FAULT", "hang:softcap").stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(check.stdout.take().expect("it is piped")).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("group mma: 9 of 9")));
    let ended = Command::new("kill").args(["-TERM", &check.id().to_string()]).status();
    assert!(ended.is_ok_and(|status| status.success()));
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(check.wait().expect("it ends").code(), Some(1), "{rest:#?}");
    let of_quantize = rest.iter().position(|line| line == "FAILED group quantize").expect("it is named");
    assert!(rest[of_quantize + 1].contains("not reached: 1 of its 1 processes"), "{rest:#?}");
    assert!(rest.iter().any(|line| line == "FAILED group softcap"), "{rest:#?}");
}

#[test]
fn a_signal_ends_the_stages_after_the_kernels_too() {
    let Some(mut command) = on_emulation(&["gpu-check", "--only", "softcap"]) else { return };
    let mut check = command
        .env("EMU_FAULT", "hang:softcap")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(check.stdout.take().expect("it is piped")).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.starts_with("group mma")));
    let ended = Command::new("kill").args(["-TERM", &check.id().to_string()]).status();
    assert!(ended.is_ok_and(|status| status.success()));
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let output = check.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("a signal ended the check"), "{said}");
    assert!(!rest.iter().any(|line| line.starts_with("models:")), "{rest:#?}");
}

#[test]
fn the_cost_of_a_check_is_never_a_result() {
    let flags = ["gpu-check", "kernels", "--group", "mma,softcap"];
    let skipping = |flags: &[&str]| {
        let output = on_emulation(flags)?.env("EMU_LAUNCH", "nothing").output().expect("it ends");
        Some((output.status.code(), text(&output.stdout)))
    };
    let Some((code, said)) = skipping(&[&flags[..], &["--dry-run"], &FAR].concat()) else { return };
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("cost only") && said.contains("CPU s") && !said.contains("passed"), "{said}");
    let (code, said) = skipping(&[&flags[..], &FAR].concat()).expect("as above");
    assert_eq!(code, Some(1), "{said}");

    let refused = |flags: &[&str]| {
        let output = skein(&[&["gpu-check"], flags].concat()).output().expect("it ends");
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let said = refused(&["kernels", "--group", "softcap,gemm"]);
    assert!(said.contains("no group is called `gemm`; there are mma, sm90, attention, "), "{said}");
    assert!(refused(&["--dry-run"]).contains("--dry-run belongs to the stage kernels"));
}

#[test]
fn models_are_those_of_the_cpu() {
    let arguments = ["gpu-check", "models", "--only", "tiny-llama", "--json"];
    let Some(mut command) = on_emulation(&arguments) else { return };
    let said = passed(&command.output().expect("it ends"));
    let report: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let models = report["models"].as_array().expect("a list");
    assert!(models.len() >= 8 && models.iter().all(|it| it["passed"] == true), "{said}");
}

#[test]
fn exchanges_of_several_gpus_are_compared_with_the_hosts_sums() {
    let arguments = ["gpu-check", "ranks", "--ranks", "4", "--json"];
    let Some(mut command) = on_emulation(&arguments) else { return };
    let said = passed(&command.env("EMU_DEVICES", "4").output().expect("it ends"));
    let report: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let sizes = report["ranks"]["exchanges"].as_array().expect("a list");
    assert!(sizes.len() >= 4 && sizes.iter().all(|it| it["differing"] == 0 && it["rounds"] != 0), "{said}");
    let through_memory = &report["ranks"]["through_memory"];
    assert!(through_memory["checked"] == 60 && through_memory["sizes"][0]["small_us"].is_number(), "{said}");

    let with = |arguments: &[&str], devices, (variable, fault)| {
        let mut command = on_emulation(arguments).expect("there is an emulation");
        let output = command.env("EMU_DEVICES", devices).env(variable, fault).output();
        let output = output.expect("it ends");
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let failed = |arguments: &[&str], devices, fault| with(arguments, devices, ("EMU_NCCL_FAULT", fault));
    let two = ["gpu-check", "ranks", "--ranks", "2"];
    let (code, said) = failed(&two, "2", "wrong:1:3");
    assert!(code == Some(1) && said.contains("1 cases failed"), "{said}");
    let (code, said) = with(&two, "2", ("EMU_PEER", "wrong"));
    assert!(code == Some(1) && said.contains("finds other words in the inbox of rank 0"), "{said}");
    let (code, said) = with(&two, "2", ("EMU_PEER", "none"));
    assert!(code == Some(0) && said.contains("sums do not go through the GPUs' memory: rank 0 "), "{said}");
    let (code, said) = failed(&two, "2", "error:1:3");
    assert!(code == Some(1) && said.contains("rank 1") && said.contains("an injected error"), "{said}");
    let (code, said) = failed(&["gpu-check", "kernels", "--ranks", "2"], "2", "");
    assert!(code == Some(2) && said.contains("--ranks belongs to the stage ranks"), "{said}");
    let (code, said) = failed(&two, "1", "");
    assert!(
        code == Some(4) && said.contains("2 ranks need the GPUs 0 to 1, and this process sees 1"),
        "{said}"
    );
}

#[test]
fn the_kernel_table_has_every_operation() {
    let Some(mut command) = on_emulation(&["gpu-check", "bench"]) else { return };
    let said = passed(&command.output().expect("it ends"));
    for operation in [
        "step of 1, qkv",
        "gemv fp8",
        "cublaslt",
        "own gemm",
        "wgmma",
        "mma.sync",
        "decode, 3 rows",
        "sample greedy",
    ] {
        assert!(said.contains(operation), "{operation} is not in {said}");
    }
}

#[test]
fn latency_with_made_up_weights_says_how_long_the_device_waits() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let of = |form| without_weights(&dir, form).to_str().expect("a plain path").to_owned();
    let model = &of(None);
    let codes = ["gptq_act_order", "awq", "nvfp4"].map(|form| of(Some(form)));
    let flags = [&[][..], &["--quantization", "fp8", "--batch-invariant"], &["--quantization", "int4"]];
    let plain = flags.map(|flags| (model, flags)).into_iter();
    for (model, flags) in plain.chain(codes.iter().map(|model| (model, &[][..]))) {
        let arguments =
            [
                &[
                    "bench",
                    "latency",
                    model,
                    "--device",
                    "cuda",
                    "--load-format",
                    "dummy",
                    "--input-len",
                    "8",
                ][..],
                &["--output-len", "4", "--num-iters", "1", "--batch-size", "2", "--max-num-seqs", "2"],
                &["--max-model-len", "64", "--max-num-batched-tokens", "32", "--enforce-eager"],
                flags,
            ]
            .concat();
        let Some(mut command) = on_emulation(&arguments) else { return };
        let said = passed(&command.output().expect("it ends"));
        assert!(said.contains("device gap per step, batch 2: p50 "), "{model} {flags:?}: {said}");
    }
    let output = skein(&["serve", model, "--device", "cpu", "--load-format", "dummy"]).output();
    let output = output.expect("it ends");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("skein-dev make-model"), "{}", text(&output.stderr));
}

#[test]
fn a_machine_without_a_usable_gpu_says_what_it_has() {
    for (machine, says, variable) in UNUSABLE {
        for command in [
            &["gpu-check", "kernels"][..],
            &["worker", "--device", "cuda"],
            &["serve", "--device", "cuda", "--port", "0"],
        ] {
            let mut skein = match variable {
                None => skein(command),
                Some(variable) => {
                    let Some(mut skein) = on_emulation(command) else { return };
                    skein.env(variable.0, variable.1);
                    skein
                }
            };
            let output = skein.output().expect("it ends");
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(4), "{machine}, {command:?}: {said}");
            assert!(said.contains(says), "{machine}, {command:?}: {said}");
            assert_eq!(said.matches("error: ").count(), 1, "{machine}, {command:?}: {said}");
        }
    }
}

#[test]
fn auto_says_why_and_serves_from_the_cpu() {
    for (machine, says, variable) in UNUSABLE {
        let command = ["serve", "--device", "auto", "--workers", "1", "--port", "0", "--log-format", "human"];
        let mut skein = match variable {
            None => skein(&command),
            Some(variable) => {
                let Some(mut skein) = on_emulation(&command) else { return };
                skein.env(variable.0, variable.1);
                skein
            }
        };
        let mut serving =
            skein.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary starts");
        let mut said = String::new();
        let mut lines = BufReader::new(serving.stderr.take().expect("it is piped")).lines();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| {
            said += &line;
            said.push('\n');
            line.contains(" ready") && line.contains("url")
        });
        let ended = Command::new("kill").args(["-INT", &serving.id().to_string()]).status();
        assert!(ended.is_ok_and(|status| status.success()), "{machine}: {said}");
        // Read the rest too: the process could block on a full pipe while it shuts down.
        lines.map_while(Result::ok).for_each(drop);
        assert!(serving.wait().is_ok_and(|status| status.success()), "{machine}: {said}");
        assert!(is_ready, "{machine}: {said}");
        assert_eq!(said.matches(says).count(), 1, "{machine}: {said}");
        assert!(said.contains("using the CPU"), "{machine}: {said}");
    }
}
