//! Renders chat templates for `tests/golden/compare_templates.py`: a JSON array of cases on standard input,
//! one of their texts on standard output.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use skein_text::chat_template::ChatTemplate;

/// The time of the golden files, 2026-03-09 08:05:07.
fn clock() -> Duration {
    Duration::from_secs(1_773_043_507)
}

fn main() -> io::Result<()> {
    let cases: Vec<Value> = serde_json::from_reader(io::stdin().lock())?;
    println!("{}", cases.iter().map(render).collect::<Value>());
    Ok(())
}

/// `{"expected": text}`; `{"error": …}` if the template refuses, `{"refused": …}` if it does not compile.
fn render(case: &Value) -> Value {
    let fields = |name: &str| case[name].as_object().cloned().unwrap_or_default();
    let own = fields("own").into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned())));
    let source = case["template"].as_str().unwrap_or_default();
    let template = match ChatTemplate::compile(source, own.collect(), clock) {
        Ok(template) => template,
        Err(error) => return json!({"refused": error.to_string()}),
    };
    let opening = case["add_generation_prompt"] == true;
    match template.render(&case["messages"], opening, &fields("arguments")) {
        Ok(text) => json!({"expected": text}),
        Err(error) => json!({"error": error.to_string()}),
    }
}
