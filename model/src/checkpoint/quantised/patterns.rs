//! Names of modules in a `quantization_config`, as libraries compare them. Pure.

/// A module, or all with similar names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    /// A name, or some successive parts of it.
    Name(String),
    /// Parts of a text that match a whole name, or its start.
    Text {
        /// Parts in order.
        parts: Vec<Part>,
        /// Whether the name must end where the text does.
        is_whole: bool,
    },
}

/// Part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// This character.
    Is(char),
    /// Any character.
    One,
    /// Any characters.
    Any,
}

impl Pattern {
    /// Reads a name, a text with `*`, or `re:` before a regular expression of literal characters, `.` and
    /// `.*`, which most published checkpoints get by with. `None` for other expressions.
    pub fn parse(text: &str) -> Option<Self> {
        let Some(expression) = text.strip_prefix("re:") else {
            if !text.contains('*') {
                return Some(Self::Name(text.to_owned()));
            }
            let parts = text.chars().map(|c| if c == '*' { Part::Any } else { Part::Is(c) }).collect();
            // Of a module's name the text may be the start.
            return Some(Self::Text { parts, is_whole: false });
        };
        let (mut parts, mut is_whole) = (Vec::new(), false);
        let mut rest = expression.strip_prefix('^').unwrap_or(expression).chars().peekable();
        while let Some(c) = rest.next() {
            parts.push(match c {
                '$' if rest.peek().is_none() => {
                    is_whole = true;
                    continue;
                }
                '\\' => match rest.next()? {
                    literal if !literal.is_alphanumeric() => Part::Is(literal),
                    _ => return None,
                },
                '.' if rest.next_if_eq(&'*').is_some() => Part::Any,
                '.' => Part::One,
                '$' | '^' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' => return None,
                literal => Part::Is(literal),
            });
            // A repetition of anything but `.`.
            if matches!(rest.peek(), Some('*' | '+' | '?' | '{')) {
                return None;
            }
        }
        Some(Self::Text { parts, is_whole })
    }

    /// Whether it is a name of `module`.
    pub fn is_of(&self, module: &str) -> bool {
        match self {
            Self::Name(name) => format!(".{module}.").contains(&format!(".{name}.")),
            Self::Text { parts, is_whole } => {
                let module: Vec<char> = module.chars().collect();
                matches(parts, &module, *is_whole)
            }
        }
    }
}

/// Whether `parts` are a text, or its start unless `is_whole`. Takes time for parts times characters,
/// whatever the parts are, because a hostile config.json may have any.
fn matches(parts: &[Part], text: &[char], is_whole: bool) -> bool {
    // Whether the parts so far match the text up to here.
    let mut ends = vec![false; text.len() + 1];
    ends[0] = true;
    for part in parts {
        let from = ends.iter().position(|end| *end).unwrap_or(ends.len());
        match part {
            Part::Any => ends[from..].fill(true),
            Part::One | Part::Is(_) => {
                for at in (0..text.len()).rev() {
                    ends[at + 1] = ends[at] && (*part == Part::One || *part == Part::Is(text[at]));
                }
                ends[0] = false;
            }
        }
    }
    if is_whole { ends[text.len()] } else { ends.contains(&true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_as_libraries_do() {
        let check = |pattern: &str, module: &str, expected: bool| {
            assert_eq!(Pattern::parse(pattern).unwrap().is_of(module), expected, "{pattern} {module}");
        };
        let down = "model.layers.10.mlp.down_proj";
        check("lm_head", "lm_head", true);
        check("down_proj", down, true);
        check("model.layers.10", down, true);
        check("model.layers.1", down, false);
        check("model.layers.*.mlp", down, true);
        check("model.layers.*.self_attn", down, false);
        check("*down_proj", down, true);
        check("re:.*layers.10.mlp.*", down, true);
        check("re:.*layers.0.mlp.*", down, false);
        check("re:.*mlp$", down, false);
        check(r"re:^model\.layers\.10\.mlp\.down_proj$", down, true);
        check("re:layers", down, false);
        for expression in ["re:.*(up|down)_proj", "re:[^.]+", r"re:\d", "re:a*", "re:.+"] {
            assert_eq!(Pattern::parse(expression), None, "{expression}");
        }
    }
}
