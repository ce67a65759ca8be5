//! Commands of other servers that Skein does not have, and what to use instead.

/// Names of commands, and what does the same here.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["chat", "repl", "cli"],
        "`skein run MODEL` talks to a model, and with `--url http://HOST:PORT` to a server",
    ),
    (&["complete", "generate"], "`skein run --raw MODEL 'TEXT'` continues a text"),
    (
        &["start", "launch", "up", "server", "api-server"],
        "`skein serve MODEL` starts a cluster on this machine",
    ),
    (&["stop", "down", "kill"], "Ctrl-C or `kill PID` ends `skein serve`; running requests finish first"),
    (
        &["ps", "stats", "monitor"],
        "`skein status` shows what a running cluster does, `skein top` goes on showing it",
    ),
    (
        &["list", "ls", "models"],
        "a server's `/v1/models` lists what it serves; `skein pull` prints where a model is",
    ),
    (
        &["rm", "remove", "delete"],
        "a pulled model is a directory of Hugging Face's cache; delete the directory",
    ),
    (&["eval", "perplexity"], "`skein bench perplexity` measures a model on a text"),
    (
        &["convert"],
        "Skein reads directories and GGUF files as they are; `skein quantize` writes a smaller model",
    ),
];

/// What to use instead of the command `name`; `None` if no other server has it.
pub fn instead_of(name: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(names, _)| names.contains(&name)).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_another_server_has_advice_and_a_typing_error_has_none() {
        assert!(instead_of("chat").is_some_and(|advice| advice.contains("skein run")));
        assert_eq!(instead_of("serv"), None);
    }

    #[test]
    fn no_command_has_two_pieces_of_advice() {
        let mut names: Vec<&str> = COMMANDS.iter().flat_map(|(names, _)| *names).copied().collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
