//! Checks the names in a template at start, so that an unknown one does not fail a request.

use std::collections::HashSet;

use super::lex::{Kind, Piece, Tag, Token, pieces};

/// Jinja2's filters, and transformers'.
const FILTERS: [&str; 48] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
];
/// Filters of Jinja2 that are not supported.
const NO_FILTERS: [&str; 6] = ["pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"];
/// Jinja2's tests.
const TESTS: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];
/// Methods of Python's strings and numbers that are not supported.
const NO_METHODS: [&str; 18] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "casefold",
    "conjugate",
    "encode",
    "expandtabs",
    "format_map",
    "from_bytes",
    "fromhex",
    "hex",
    "is_integer",
    "isidentifier",
    "istitle",
    "maketrans",
    "swapcase",
    "to_bytes",
    "translate",
];
/// Tags that need other templates, which a chat template does not have, or that escape its text.
const NO_TAGS: [&str; 5] = ["autoescape", "extends", "from", "import", "include"];

/// Checks the names in `source`.
///
/// # Errors
/// What is not supported, with its name.
pub fn check(source: &str) -> Result<(), String> {
    let mut names = Names::default();
    for piece in pieces(source) {
        if let Piece::Tag(tag) = piece {
            names.tag(&tag)?;
        }
    }
    Ok(())
}

/// Blocks around the current tag.
#[derive(Default)]
struct Names {
    conditions: usize,
    macros: usize,
}

impl Names {
    fn tag(&mut self, tag: &Tag<'_>) -> Result<(), String> {
        let word = tag.word().unwrap_or_default();
        if NO_TAGS.contains(&word) {
            return Err(format!("the tag `{word}` is not supported in a chat template"));
        }
        match word {
            "if" => self.conditions += 1,
            "endif" => self.conditions = self.conditions.saturating_sub(1),
            "macro" | "call" => self.macros += 1,
            "endmacro" | "endcall" => self.macros = self.macros.saturating_sub(1),
            _ => {}
        }
        if word == "macro" {
            defaults(tag)?;
        }
        let conditional = self.conditions > 0 || tag.tokens.iter().any(|token| token.text == "if");
        (0..tag.tokens.len()).try_for_each(|at| self.token(tag, at, conditional))
    }

    fn token(&self, tag: &Tag<'_>, at: usize, conditional: bool) -> Result<(), String> {
        let text = |at: usize| tag.tokens.get(at).map_or("", |token| token.text);
        let before = |back: usize| at.checked_sub(back).map_or("", text);
        let (token, next) = (tag.tokens[at], text(at + 1));
        if token.kind == Kind::String {
            return conversion(token.text, next, text(at + 2));
        }
        if token.kind != Kind::Name {
            return Ok(());
        }
        let is_test = before(1) == "is" && token.text != "not" || before(1) == "not" && before(2) == "is";
        match (before(1), token.text) {
            ("|", name) => {
                filter(name, conditional)?;
                named_by_text(name, &tag.tokens[at + 1..], conditional)
            }
            ("filter", name) if at == 1 && tag.is_block() => filter(name, conditional),
            (".", name) if next == "(" && NO_METHODS.contains(&name) => {
                Err(format!("the method `{name}` is not supported"))
            }
            (".", _) => Ok(()),
            (_, name) if is_test => test(name, conditional),
            (_, "lipsum") if next == "(" => Err("the function `lipsum` is not supported".to_owned()),
            (_, name @ ("varargs" | "kwargs")) if self.macros > 0 && next != "=" => {
                Err(format!("`{name}` of a macro is not supported; name its parameters"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks `'name'` in `map('name')`, `select('name')` and `selectattr('x', 'name')`.
fn named_by_text(filter_name: &str, tokens: &[Token<'_>], conditional: bool) -> Result<(), String> {
    let literal = |at: usize| tokens.get(at).and_then(Token::literal);
    let first = literal(1).filter(|_| tokens[0].text == "(");
    match (filter_name, first) {
        ("map", Some(name)) => filter(name, conditional),
        ("select" | "reject", Some(name)) => test(name, conditional),
        ("selectattr" | "rejectattr", Some(_)) => literal(3).map_or(Ok(()), |name| test(name, conditional)),
        _ => Ok(()),
    }
}

/// Refuses a macro whose default reads another parameter: minijinja sets them in another order.
fn defaults(tag: &Tag<'_>) -> Result<(), String> {
    let names = || tag.tokens.windows(2).filter(|pair| pair[1].kind == Kind::Name);
    let is_parameter = |before: &str| before == "(" || before == ",";
    let parameters: HashSet<&str> =
        names().filter(|pair| is_parameter(pair[0].text)).map(|pair| pair[1].text).collect();
    let reads = |pair: &&[Token<'_>]| {
        !matches!(pair[0].text, "(" | "," | "." | "|" | "macro") && parameters.contains(pair[1].text)
    };
    match names().find(reads) {
        Some(pair) => Err(format!(
            "a default of a macro reads its parameter `{}`, which is not supported",
            pair[1].text
        )),
        None => Ok(()),
    }
}

/// Refuses a format that asks for `repr`.
fn conversion(format: &str, next: &str, after: &str) -> Result<(), String> {
    let wanted = match (next, after) {
        ("%", _) | ("|", "format") => "%r",
        (".", "format") => "!r",
        _ => return Ok(()),
    };
    if format.contains(wanted) {
        Err(format!("the conversion `{wanted}` of a format is not supported"))
    } else {
        Ok(())
    }
}

fn filter(name: &str, conditional: bool) -> Result<(), String> {
    if NO_FILTERS.contains(&name) {
        return Err(format!("the filter `{name}` is not supported"));
    }
    known("filter", name, FILTERS.contains(&name) || conditional)
}

fn test(name: &str, conditional: bool) -> Result<(), String> {
    known("test", name, TESTS.contains(&name) || conditional)
}

/// Jinja2 does not know the name, either. Behind a condition it fails only when it is reached.
fn known(kind: &str, name: &str, known: bool) -> Result<(), String> {
    if known { Ok(()) } else { Err(format!("there is no {kind} named `{name}`")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_found_at_start() {
        for (source, expected) in [
            ("{{ x|random }}", "the filter `random` is not supported"),
            ("{% if false %}{{ x|pprint }}{% endif %}", "the filter `pprint` is not supported"),
            ("{{ x|nope }}", "there is no filter named `nope`"),
            ("{{ x|map('nope')|list }}", "there is no filter named `nope`"),
            ("{{ x is nope }}", "there is no test named `nope`"),
            ("{{ x is not nope }}", "there is no test named `nope`"),
            ("{{ x|selectattr('a', 'nope')|list }}", "there is no test named `nope`"),
            ("{% filter nope %}{% endfilter %}", "there is no filter named `nope`"),
            ("{{ x.encode('utf-8') }}", "the method `encode` is not supported"),
            ("{{ '{!r}'.format(x) }}", "the conversion `!r` of a format is not supported"),
            ("{{ '%r' % x }}", "the conversion `%r` of a format is not supported"),
            ("{% macro m(a, b='x' ~ a) %}{% endmacro %}", "a default of a macro reads its parameter `a`"),
            ("{{ lipsum() }}", "the function `lipsum` is not supported"),
            ("{% include 'x' %}", "the tag `include` is not supported"),
            ("{% macro m() %}{{ varargs }}{% endmacro %}", "`varargs` of a macro is not supported"),
        ] {
            let error = check(source).unwrap_err();
            assert!(error.starts_with(expected), "{source}: {error}");
        }
    }

    #[test]
    fn names_behind_a_condition_and_fields_are_left_alone() {
        for source in [
            "{% if false %}{{ x|nope }}{{ x is nope }}{% endif %}",
            "{{ x|nope if x is defined else '' }}{% macro a(a, b=c.a, d=e) %}{% endmacro %}",
            "{{ x.encode }}{{ x.random }}{{ 'x|nope' }}{# x|nope #}{{ f(kwargs=1) }}",
            "{{ x|map(attribute='nope')|selectattr('nope')|select('in', y)|list }}",
        ] {
            assert_eq!(check(source), Ok(()), "{source}");
        }
    }
}
