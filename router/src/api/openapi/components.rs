//! The components written by hand, with the limits that they have from the code.

use serde_json::{Map, Value};
use skein_text::formats::MAX_NAME_BYTES;

use crate::config::RouterConfig;
use crate::pooled::draft::MAX_INPUTS;

/// Shapes within fields and of answers, a file for each API.
const FILES: [&str; 10] = [
    include_str!("components/constraints.json"),
    include_str!("components/chat.json"),
    include_str!("components/completions.json"),
    include_str!("components/embeddings.json"),
    include_str!("components/responses.json"),
    include_str!("components/messages.json"),
    include_str!("components/ollama.json"),
    include_str!("components/kserve.json"),
    include_str!("components/skein.json"),
    include_str!("components/errors.json"),
];

/// Those that only a server of several models has.
const OF_SEVERAL: &str = include_str!("components/repository.json");

/// All of them, by name.
pub fn all(config: &RouterConfig) -> Map<String, Value> {
    let mut all = Map::new();
    let of_several = config.is_one_of_several.then_some(OF_SEVERAL);
    for file in FILES.into_iter().chain(of_several) {
        all.extend(serde_json::from_str::<Map<String, Value>>(file).unwrap_or_default());
    }
    let prompts = config.limits.prompts;
    limit(&mut all, "Prompt", "/anyOf/1/maxItems", prompts);
    for (name, path) in [("PooledInput", "/anyOf/1/maxItems"), ("ScoredTexts", "/anyOf/2/maxItems")] {
        limit(&mut all, name, path, MAX_INPUTS);
    }
    limit(&mut all, "Function", "/properties/name/maxLength", MAX_NAME_BYTES);
    all
}

/// Adds a limit to the object that the path within a component ends in.
fn limit(all: &mut Map<String, Value>, name: &str, path: &str, limit: usize) {
    let Some((object, member)) = path.rsplit_once('/') else { return };
    if let Some(object) = all.get_mut(name).and_then(|component| component.pointer_mut(object)) {
        object[member] = limit.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_whole_and_no_name_is_used_twice() {
        let read = |file| serde_json::from_str::<Map<String, Value>>(file).expect("JSON");
        let (files, of_several) = (FILES.map(read), read(OF_SEVERAL));
        let all = super::all(&crate::testing::config());
        let count = files.iter().map(Map::len).sum::<usize>();
        assert_eq!(count, all.len());
        let config = RouterConfig { is_one_of_several: true, ..crate::testing::config() };
        assert_eq!(count + of_several.len(), super::all(&config).len());
        assert_eq!(all["Prompt"]["anyOf"][1]["maxItems"], 128);
        assert_eq!(all["Function"]["properties"]["name"]["maxLength"], MAX_NAME_BYTES);
    }
}
