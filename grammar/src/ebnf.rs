//! Translates EBNF with `::=`, the notation of llama.cpp's GBNF and xgrammar, to Lark.
//!
//! Lark divides a grammar into terminals, matched greedily, and rules over terminals. EBNF makes no such
//! distinction. A rule that is not recursive becomes one terminal, which is exact; only recursive rules
//! remain rules.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Refused, check_size};
use crate::lark::quoted;
use crate::limits::MAX_DEPTH;

/// Whether `text` is EBNF rather than Lark.
pub fn is_ebnf(text: &str) -> bool {
    text.contains("::=")
}

/// Part of a rule's body.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    /// Text in Lark's notation.
    Literal(String),
    /// Name of another rule.
    Rule(String),
    /// Alternatives, each a sequence.
    Group(Vec<Vec<Part>>),
    /// Part with `*`, `+`, `?` or `{m,n}`.
    Repeat(Box<Part>, String),
}

/// Translates `text`, whose start rule is `root`, to Lark.
///
/// # Errors
/// [`Refused::Unusable`] with the faulty line.
pub fn to_lark(text: &str) -> Result<String, Refused> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    let mut rules = BTreeMap::new();
    let mut order = Vec::new();
    loop {
        parser.skip(true);
        if parser.rest().is_empty() {
            break;
        }
        let (name, body) = parser.rule()?;
        if rules.insert(name.clone(), body).is_some() {
            return Err(parser.wrong(&format!("the rule `{name}` is defined twice")));
        }
        order.push(name);
    }
    if !rules.contains_key("root") {
        return Err(parser.wrong("it has no rule `root`"));
    }
    let recursive = recursive(&rules);
    let named = |name: &str| lark_name(name, &order, recursive.contains(name));
    for name in rules.values().flatten().flatten().flat_map(used) {
        if !rules.contains_key(&name) {
            return Err(parser.wrong(&format!("the rule `{name}` is used but not defined")));
        }
    }
    let mut lark = format!("start: {}\n", named("root"));
    for name in &order {
        lark += &format!("{}: {}\n", named(name), alternatives(&rules[name], &named));
    }
    Ok(lark)
}

/// Name in Lark: upper case for terminals, lower case for rules.
fn lark_name(name: &str, order: &[String], is_rule: bool) -> String {
    let at = order.iter().position(|other| other == name).unwrap_or(order.len());
    if is_rule { format!("r{at}") } else { format!("T{at}") }
}

/// Recursive rules and all rules that use one.
fn recursive(rules: &BTreeMap<String, Vec<Vec<Part>>>) -> BTreeSet<String> {
    let uses: BTreeMap<&str, BTreeSet<String>> = rules
        .iter()
        .map(|(name, body)| (name.as_str(), body.iter().flatten().flat_map(used).collect()))
        .collect();
    // A rule is a terminal if all rules that it uses are terminals; the remaining ones lead to a recursion.
    let mut terminals: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = terminals.len();
        for (name, uses) in &uses {
            if uses.iter().all(|used| terminals.contains(used.as_str())) {
                terminals.insert(name);
            }
        }
        if terminals.len() == before {
            break;
        }
    }
    rules.keys().filter(|name| !terminals.contains(name.as_str())).cloned().collect()
}

/// Names of the rules used in `part`.
fn used(part: &Part) -> Vec<String> {
    match part {
        Part::Literal(_) => Vec::new(),
        Part::Rule(name) => vec![name.clone()],
        Part::Group(alternatives) => alternatives.iter().flatten().flat_map(used).collect(),
        Part::Repeat(part, _) => used(part),
    }
}

fn alternatives(all: &[Vec<Part>], named: &impl Fn(&str) -> String) -> String {
    let sequence = |parts: &Vec<Part>| {
        let parts: Vec<String> = parts.iter().map(|part| written(part, named)).collect();
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    };
    all.iter().map(sequence).collect::<Vec<_>>().join(" | ")
}

fn written(part: &Part, named: &impl Fn(&str) -> String) -> String {
    match part {
        Part::Literal(text) => text.clone(),
        Part::Rule(name) => named(name),
        Part::Group(all) => format!("({})", alternatives(all, named)),
        // The library has no repetition of zero times.
        Part::Repeat(_, times) if ["{0}", "{0,0}"].contains(&times.as_str()) => "\"\"".to_owned(),
        Part::Repeat(part, times) => format!("({}){times}", written(part, named)),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn wrong(&self, what: &str) -> Refused {
        let line = self.text[..self.at].matches('\n').count() + 1;
        Refused::Unusable { what: "EBNF grammar", reason: format!("line {line}: {what}") }
    }

    /// Skips blanks and comments; with `lines`, also line breaks.
    fn skip(&mut self, lines: bool) {
        while let Some(next) = self.rest().chars().next() {
            match next {
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                '\n' if !lines => return,
                next if next.is_whitespace() => self.at += next.len_utf8(),
                _ => return,
            }
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.at += if found { text.len() } else { 0 };
        found
    }

    fn name(&mut self) -> Option<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let end = self.rest().find(|c| !is_part(c)).unwrap_or(self.rest().len());
        let name = self.rest()[..end].to_owned();
        self.at += end;
        (!name.is_empty()).then_some(name)
    }

    fn rule(&mut self) -> Result<(String, Vec<Vec<Part>>), Refused> {
        let name = self.name().ok_or_else(|| self.wrong("a rule's name is missing"))?;
        self.skip(false);
        if !self.take("::=") {
            return Err(self.wrong("`::=` is missing after the rule's name"));
        }
        let body = self.alternatives(false)?;
        if !self.rest().is_empty() && !self.rest().starts_with('\n') {
            return Err(self.wrong("this is not part of a rule"));
        }
        Ok((name, body))
    }

    /// Parses alternatives, which may span lines inside a group. Outside a group, a line that begins with `|`
    /// continues them.
    fn alternatives(&mut self, in_group: bool) -> Result<Vec<Vec<Part>>, Refused> {
        let mut all = vec![Vec::new()];
        // The body may start on the next line.
        self.skip(true);
        loop {
            self.skip(in_group);
            let here = self.at;
            self.skip(true);
            if self.take("|") {
                self.skip(true);
                all.push(Vec::new());
                continue;
            }
            self.at = here;
            match self.part()? {
                Some(part) => all.last_mut().into_iter().for_each(|last| last.push(part.clone())),
                None => return Ok(all),
            }
        }
    }

    fn part(&mut self) -> Result<Option<Part>, Refused> {
        let Some(next) = self.rest().chars().next() else { return Ok(None) };
        let part = match next {
            '"' | '\'' => Part::Literal(quoted(&self.string(next)?)),
            '[' => Part::Literal(self.class()?),
            '(' => {
                self.at += 1;
                self.depth += 1;
                check_size("EBNF grammar", self.depth, "nested levels", MAX_DEPTH)?;
                let all = self.alternatives(true)?;
                self.skip(true);
                if !self.take(")") {
                    return Err(self.wrong("`)` is missing"));
                }
                self.depth -= 1;
                Part::Group(all)
            }
            '.' => {
                self.at += 1;
                Part::Literal("/(?s:.)/".to_owned())
            }
            next if next.is_ascii_alphanumeric() || next == '_' => {
                Part::Rule(self.name().unwrap_or_default())
            }
            _ => return Ok(None),
        };
        Ok(Some(self.repeated(part)?))
    }

    fn repeated(&mut self, part: Part) -> Result<Part, Refused> {
        for sign in ["*", "+", "?"] {
            if self.take(sign) {
                return Ok(Part::Repeat(Box::new(part), sign.to_owned()));
            }
        }
        if !self.rest().starts_with('{') {
            return Ok(part);
        }
        let end = self.rest().find('}').ok_or_else(|| self.wrong("`}` is missing"))?;
        let times: String = self.rest()[..=end].chars().filter(|c| !c.is_whitespace()).collect();
        if !is_times(&times[1..times.len() - 1]) {
            return Err(self.wrong("a repetition is {m}, {m,} or {m,n}, with n at least m"));
        }
        self.at += end + 1;
        Ok(Part::Repeat(Box::new(part), times))
    }

    /// Parses a literal with JSON's escapes and `\xHH`.
    fn string(&mut self, quote: char) -> Result<String, Refused> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(next) = self.rest().chars().next().filter(|next| *next != '\n') else {
                return Err(self.wrong("a literal is not closed"));
            };
            self.at += next.len_utf8();
            match next {
                next if next == quote => return Ok(text),
                '\\' => text.push(self.escape()?),
                next => text.push(next),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Refused> {
        let next = self.rest().chars().next().unwrap_or('\n');
        self.at += next.len_utf8().min(self.rest().len());
        let digits = match next {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            // In a class, `\d` is no digit in any of the notations.
            next if next.is_ascii_alphanumeric() => {
                return Err(self.wrong(&format!("the escape `\\{next}` is not known")));
            }
            next => return Ok(next),
        };
        let hex = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let found = hex.and_then(char::from_u32).ok_or_else(|| self.wrong("an escape is not a character"))?;
        self.at += digits;
        Ok(found)
    }

    /// Parses a class such as `[a-z]`. It differs from a class in a regular expression only in its escapes.
    fn class(&mut self) -> Result<String, Refused> {
        self.at += 1;
        let mut class = String::from("/[");
        if self.take("^") {
            class.push('^');
        }
        loop {
            let Some(next) = self.rest().chars().next().filter(|next| *next != '\n') else {
                return Err(self.wrong("a class is not closed"));
            };
            self.at += next.len_utf8();
            match next {
                ']' => return Ok(class + "]/"),
                '-' => class.push('-'),
                '\\' => class += &in_class(self.escape()?),
                next => class += &in_class(next),
            }
        }
    }
}

/// Whether `text` is `m`, `m,` or `m,n`.
fn is_times(text: &str) -> bool {
    let (least, most) = text.split_once(',').unwrap_or((text, ""));
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| !text.starts_with('+'));
    match (number(least), number(most)) {
        (Some(least), Some(most)) => least <= most,
        (Some(_), None) => most.is_empty(),
        (None, _) => false,
    }
}

/// Escapes a character for a class in a regular expression.
fn in_class(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\u{{{:x}}}", u32::from(c)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_without_recursion_are_terminals() {
        let lark = to_lark("root ::= \"a\" digit+ # one\ndigit ::= [0-9] |\n  \"\\x41\"\n").unwrap();
        assert_eq!(lark, "start: T0\nT0: \"a\" (T1)+\nT1: /[0-9]/ | \"A\"\n");
        let lark = to_lark("root ::= \"(\" root? \")\" | x\nx ::= [^\\n]{1,3}").unwrap();
        assert_eq!(lark, "start: r0\nr0: \"(\" (r0)? \")\" | T1\nT1: (/[^\\u{a}]/){1,3}\n");
    }

    #[test]
    fn mistakes_are_refused_with_their_line() {
        let check = |text: &str, expected: &str| {
            let message = to_lark(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        };
        check("a ::= \"x\"", "no rule `root`");
        check("root ::= \"x\n\"", "line 1: a literal is not closed");
        check("root ::= x", "`x` is used but not defined");
        check("root ::= \"a\"\nroot ::= \"b\"", "defined twice");
        check("root ::= \"a\"\n\n1 = 2", "line 3: `::=` is missing");
        check("root ::= (\"a\"", "`)` is missing");
        check("root ::= [a-z", "a class is not closed");
        for times in ["{x}", "{,3}", "{3,2}", "{}", "{,}", "{1,2,3}"] {
            check(&format!("root ::= \"a\"{times}"), "a repetition is");
        }
        check(r"root ::= [\d]", "line 1: the escape `\\d` is not known");
        check(r#"root ::= "\w""#, "line 1: the escape `\\w` is not known");
        check("root ::= $", "not part of a rule");
    }
}
