//! The manual's table of models and their formats, held against the models' own templates.

use super::*;

/// Models of a row of the table, and their templates in `tests/golden/formats.json`.
const TEMPLATES: [(&str, &[&str]); 19] = [
    ("Qwen 3.5, 3.6 and 3.8", &["Qwen3.5-4B", "qwen3.6", "qwen3.8"]),
    ("Qwen3-Next, Instruct", &["Qwen3-Next-Instruct"]),
    ("Qwen3-Next, Thinking", &["Qwen3-Next-Thinking"]),
    ("Qwen3-Coder", &["Qwen3-Coder"]),
    ("Gemma 4", &["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"]),
    ("LFM2 and LFM2.5", &["LFM2-8B-A1B"]),
    ("LFM2.5-8B-A1B", &["LFM2.5-8B-A1B"]),
    ("Nemotron 3 Nano", &["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"]),
    ("Nemotron Nano 2", &["NVIDIA-Nemotron-Nano-v2"]),
    ("Granite 4", &["ibm-granite-granite-4.0", "ibm-granite-granite-4.1"]),
    ("Kimi K2, Instruct", &["moonshotai-Kimi-K2", "Kimi-K2-Instruct"]),
    ("Kimi K2 Thinking", &["Kimi-K2-Thinking"]),
    ("Kimi K2.5", &["Kimi-K2.5"]),
    ("MiniMax-M2, M2.5", &["MiniMax-M2", "MiniMax-M2.5"]),
    ("GLM-4.7, GLM-4.7-Flash, GLM-5.3", &["GLM-4.7", "GLM-4.7-Flash", "glm-5.3"]),
    ("Seed-OSS", &["ByteDance-Seed-OSS"]),
    ("ERNIE 4.5", &["Ernie4.5"]),
    ("OLMo 3.1, Instruct", &["Olmo-3.1-32B-Instruct"]),
    ("EXAONE 4", &["EXAONE-4.0-32B"]),
];

/// What stands between the first backquotes of a cell, or nothing.
fn quoted(cell: &str) -> Option<String> {
    Some(cell.split('`').nth(1)?.replace("\\|", "|"))
}

#[test]
fn the_manual_names_the_formats_of_each_familys_own_template() {
    let page = include_str!("../../../../docs/src/tools.md");
    let goldens: Value = serde_json::from_str(include_str!("../../../../tests/golden/formats.json")).unwrap();
    let mut wrong = Vec::new();
    let mut check = |is_right: bool, what: String| {
        if !is_right {
            wrong.push(what)
        }
    };
    for (models, templates) in TEMPLATES {
        let row = page.lines().find(|line| line.starts_with(&format!("| {models} |"))).expect(models);
        let cells: Vec<&str> = row.split(" | ").collect();
        for name in templates {
            let golden =
                goldens.as_array().unwrap().iter().find(|golden| golden["name"] == *name).expect(name);
            let marks: Vec<&str> =
                golden["marks"].as_array().unwrap().iter().map(|mark| mark.as_str().unwrap()).collect();
            let has_token =
                |token: &str| cells[1].contains("vocabulary") && token.contains("tool_call_start");
            let formats = Formats::of_template(&marks.join("\n")).or_of_vocabulary("{{ tools }}", has_token);
            let calls = formats.calls.map(|format| format.names[0].to_owned());
            check(calls == quoted(cells[1]), format!("{name}: calls are {calls:?}"));
            let reasoning = formats.reasoning.map(|reasoning| reasoning.open.to_owned());
            check(reasoning == quoted(cells[2]), format!("{name}: reasoning is {reasoning:?}"));
            let cases = golden["cases"].as_array().unwrap();
            let opens =
                |case: &Value| formats.opening(case["prompt_end"].as_str().unwrap()) == Opening::InReasoning;
            let is_opened = formats.reasoning.is_some() && cases.iter().any(opens);
            let says_opened = cells[2].contains("opened by the prompt");
            check(is_opened == says_opened, format!("{name}: the prompt opens it: {is_opened}"));
            let Some(end) = quoted(cells[3]) else { continue };
            let ends = |case: &Value| case["text"].as_str().unwrap().contains(&end);
            let is_role = cells[3].contains("the next role");
            check(is_role || cases.iter().any(ends), format!("{name}: no turn ends with {end}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
