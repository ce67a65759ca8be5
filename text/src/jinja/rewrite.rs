//! Rewrites what minijinja computes otherwise than Jinja2: `~`, `%` and `*`, whose operands may be numbers
//! that Python prints in another form, a format, or a negative count; attributes that are also methods of a
//! dictionary; and the tag `generation`, by which transformers marks the assistant's text.

use super::lex::{Kind, Piece, Tag, Token, pieces};

/// Filter that joins the texts of a tuple.
pub const CONCAT: &str = "__concat";
/// Filter that adds a pair; `+` only where the template marks text as safe.
pub const ADD: &str = "__add";
/// Filter that computes the remainder of a pair, or formats.
pub const REMAINDER: &str = "__remainder";
/// Filter that multiplies a pair.
pub const TIMES: &str = "__times";
/// Filter that finds an attribute as Jinja2 does: methods first.
pub const ATTRIBUTE: &str = "__attribute";
/// Filter that finds an item as Jinja2 does: methods last.
pub const ITEM: &str = "__item";
/// Filter that takes every so many items.
pub const SLICE: &str = "__slice";
/// Most tokens of a slice that is rewritten.
const MAX_SLICE_TOKENS: usize = 64;
/// Attributes of a dictionary that hide items of the same name.
pub const METHODS_OF_MAPS: [&str; 5] = ["items", "keys", "values", "get", "copy"];

/// The source for minijinja. Lines keep their numbers.
pub fn rewrite(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let pieces = pieces(source);
    let marks_safe = pieces.iter().any(|piece| matches!(piece, Piece::Tag(tag) if marks_safe(tag)));
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Tag(tag) => write_tag(&tag, marks_safe, &mut out),
        }
    }
    out
}

/// Whether a filter marks a text as safe: then adding to it escapes what is added.
fn marks_safe(tag: &Tag<'_>) -> bool {
    let filters = tag.tokens.windows(2).filter(|pair| matches!(pair[0].text, "|" | "filter"));
    filters.into_iter().any(|pair| ["safe", "e", "escape", "forceescape"].contains(&pair[1].text))
}

fn write_tag(tag: &Tag<'_>, marks_safe: bool, out: &mut String) {
    out.push_str(tag.open);
    match (tag.word(), tag.tokens.as_slice()) {
        // Jinja2 makes its body a macro, so what is set inside stays inside.
        (Some("generation"), [word]) => out.extend([word.blank, "with"]),
        (Some("endgeneration"), [word]) => out.extend([word.blank, "endwith"]),
        (_, tokens) => {
            let mut writer = Writer { tokens, at: 0, marks_safe, out };
            while writer.at < tokens.len() {
                writer.level(if tag.is_block() { Level::Statement } else { Level::Expression });
            }
        }
    }
    out.push_str(tag.close);
}

/// What the tokens of one level are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The first one is a statement's word.
    Statement,
    Expression,
    /// The parts of a slice, which become arguments.
    Slice,
}

struct Writer<'a, 'b> {
    tokens: &'a [Token<'b>],
    at: usize,
    /// Whether `+` is rewritten.
    marks_safe: bool,
    out: &'a mut String,
}

/// Operands at one level of brackets, as places in the output.
#[derive(Default)]
struct Chain {
    /// Start of the terms of `+` and `-`.
    sum: Option<usize>,
    /// Whether a `+` waits for its right term.
    adds: bool,
    /// Start of the operands of `~`, or of the first one.
    concat: Option<usize>,
    /// Whether a `~` was written.
    concats: bool,
    /// Start of the current operand of `~`.
    product: Option<usize>,
    /// Start of the operand's name, literal or brackets, without signs.
    primary: Option<usize>,
    /// Filter of the `*` or `%` that waits for its right operand.
    pair: Option<&'static str>,
}

impl Writer<'_, '_> {
    /// Writes tokens up to the bracket that closes this level, and that bracket.
    fn level(&mut self, level: Level) {
        let mut chain = Chain::default();
        let (first, mut after_operand) = (self.at, false);
        while let Some(token) = self.tokens.get(self.at).copied() {
            let closes = matches!(token.text, ")" | "]" | "}") && token.kind == Kind::Operator;
            let word = level == Level::Statement && self.at == first;
            let sign = self.marks_safe && after_operand && token.kind == Kind::Operator;
            if sign && matches!(token.text, "+" | "-") {
                self.sign(token, &mut chain);
                after_operand = false;
            } else if closes || word || self.separates(token, after_operand) {
                self.finish(&mut chain);
                if level == Level::Slice {
                    self.slice_mark(token)
                } else {
                    self.write(token)
                }
                after_operand = false;
            } else {
                after_operand = self.operand(token, after_operand, &mut chain);
            }
            if closes {
                return;
            }
        }
        self.finish(&mut chain);
    }

    /// Whether `token` ends an operand of `~`.
    fn separates(&self, token: Token<'_>, after_operand: bool) -> bool {
        let before = self.before(1);
        match token.kind {
            Kind::Name if before == "." || before == "|" => false,
            Kind::Name => match token.text {
                "not" | "in" => {
                    before != "is" && !(token.text == "in" && before == "not" && self.before(2) == "is")
                }
                "and" | "or" | "if" | "else" => true,
                "recursive" => after_operand,
                _ => false,
            },
            Kind::Operator => match token.text {
                "+" | "-" => after_operand,
                text => ["==", "!=", "<=", ">=", "<", ">", ",", ":", "="].contains(&text),
            },
            Kind::Number | Kind::String => false,
        }
    }

    /// The token `back` places ago.
    fn before(&self, back: usize) -> &str {
        self.at.checked_sub(back).and_then(|at| self.tokens.get(at)).map_or("", |token| token.text)
    }

    /// Writes a token of an operand, with its brackets. Returns whether an operand may end here.
    fn operand(&mut self, token: Token<'_>, after_operand: bool, chain: &mut Chain) -> bool {
        let binary = after_operand && token.kind == Kind::Operator;
        match token.text {
            "~" if binary => self.concat(token, chain),
            "%" if binary => self.pair(token, REMAINDER, chain),
            "*" if binary => self.pair(token, TIMES, chain),
            "/" | "//" if binary => {
                self.finish_pair(chain);
                self.write(token);
            }
            _ => {
                let start = self.out.len() + token.blank.len();
                chain.sum.get_or_insert(start);
                chain.product.get_or_insert(start);
                chain.concat.get_or_insert(start);
                return self.part(token, after_operand, chain);
            }
        }
        false
    }

    fn part(&mut self, token: Token<'_>, after_operand: bool, chain: &mut Chain) -> bool {
        if after_operand && (self.looked_up(chain) || self.stepped(token, chain)) {
            return true;
        }
        if !after_operand && !matches!(self.before(1), "." | "|") {
            chain.primary = Some(self.out.len() + token.blank.len());
        }
        // minijinja has no `+` before a number.
        let plus = !after_operand && token.text == "+";
        self.replace(token, if plus { "" } else { token.text });
        match token.kind {
            Kind::Operator if matches!(token.text, "(" | "[" | "{") => {
                self.level(Level::Expression);
                true
            }
            Kind::Operator => false,
            Kind::Name => token.text != "is",
            Kind::Number | Kind::String => true,
        }
    }

    /// Writes `.items` without a call, or `['items']`, as a filter.
    fn looked_up(&mut self, chain: &Chain) -> bool {
        let ahead = &self.tokens[self.at..];
        let text = |at: usize| ahead.get(at).map_or("", |token| token.text);
        let (filter, name, length) = match (text(0), text(2)) {
            (".", next) if next != "(" => (ATTRIBUTE, text(1), 2),
            ("[", "]") if text(3) != "(" => (ITEM, ahead[1].literal().unwrap_or_default(), 3),
            _ => return false,
        };
        let target = self.tokens[0].text == "set" && self.at < 4 && ["=", ""].contains(&text(2));
        if target || !METHODS_OF_MAPS.contains(&name) {
            return false;
        }
        let blanks: String = ahead[..length].iter().map(|token| token.blank).collect();
        self.out.insert(chain.primary.unwrap_or(self.out.len()), '(');
        self.out.extend([&blanks, "|", filter, "('", name, "'))"]);
        self.at += length;
        true
    }

    /// Writes `[a:b:c]` as a filter: minijinja fails if there is nothing to step back over.
    fn stepped(&mut self, token: Token<'_>, chain: &Chain) -> bool {
        let (mut depth, mut colons) = (0_usize, 0);
        for ahead in self.tokens[self.at..].iter().take(MAX_SLICE_TOKENS) {
            match ahead.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                ":" if depth == 1 => colons += 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        if token.text != "[" || depth > 0 || colons != 2 {
            return false;
        }
        self.out.insert(chain.primary.unwrap_or(self.out.len()), '(');
        self.out.extend([token.blank, "|", SLICE, "("]);
        self.at += 1;
        self.level(Level::Slice);
        self.out.push(')');
        true
    }

    /// Writes a colon or the end of a slice; a part before it that is left out is none.
    fn slice_mark(&mut self, token: Token<'_>) {
        let mark = match token.text {
            ":" => ",",
            "]" => ")",
            _ => return self.write(token),
        };
        if matches!(self.before(1), "[" | ":") {
            self.out.push_str("none");
        }
        self.replace(token, mark);
    }

    fn sign(&mut self, token: Token<'_>, chain: &mut Chain) {
        let sum = chain.sum;
        self.finish(chain);
        chain.sum = sum;
        if token.text == "-" {
            return self.write(token);
        }
        self.out.insert(sum.unwrap_or(self.out.len()), '(');
        self.replace(token, ",");
        chain.adds = true;
    }

    fn concat(&mut self, token: Token<'_>, chain: &mut Chain) {
        self.finish_pair(chain);
        if !chain.concats {
            self.out.insert(chain.concat.unwrap_or(self.out.len()), '(');
        }
        self.replace(token, ",");
        (chain.concats, chain.product) = (true, None);
    }

    fn pair(&mut self, token: Token<'_>, filter: &'static str, chain: &mut Chain) {
        self.finish_pair(chain);
        self.out.insert(chain.product.unwrap_or(self.out.len()), '(');
        self.replace(token, ",");
        chain.pair = Some(filter);
    }

    fn finish_pair(&mut self, chain: &mut Chain) {
        if let Some(filter) = chain.pair.take() {
            self.out.extend([")|", filter]);
        }
    }

    fn finish(&mut self, chain: &mut Chain) {
        self.finish_pair(chain);
        if chain.concats {
            self.out.extend([")|", CONCAT]);
        }
        if chain.adds {
            self.out.extend([")|", ADD]);
        }
        *chain = Chain::default();
    }

    fn write(&mut self, token: Token<'_>) {
        self.replace(token, token.text);
    }

    fn replace(&mut self, token: Token<'_>, text: &str) {
        self.out.extend([token.blank, text]);
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_become_filters_with_the_precedence_of_jinja2() {
        for (source, expected) in [
            ("{{ a ~ b ~ 'c' }}", "{{ (a, b, 'c')|__concat }}"),
            ("{{ x + a ~ b * 2 - y }}", "{{ x + (a, (b, 2)|__times)|__concat - y }}"),
            ("{{ a|f ~ -b.c(d ~ e)[1] is g }}", "{{ (a|f, -b.c((d, e)|__concat)[1] is g)|__concat }}"),
            ("{{ a ~ b if not c ~ d else e }}", "{{ (a, b)|__concat if not (c, d)|__concat else e }}"),
            ("{% elif a ~ b == c %}", "{% elif (a, b)|__concat == c %}"),
            (
                "{% set x = a % 2 * 3 % b ~ c %}",
                "{% set x = ((((a, 2)|__remainder, 3)|__times, b)|__remainder, c)|__concat %}",
            ),
            ("{% for x in a ~ b recursive %}", "{% for x in (a, b)|__concat recursive %}"),
            ("{{ a is not in b ~ c }}", "{{ (a is not in b, c)|__concat }}"),
            ("{%- generation -%}\n{% endgeneration %}", "{%- with -%}\n{% endwith %}"),
            ("{{ a.items ~ b.items() }}", "{{ ((a|__attribute('items')), b.items())|__concat }}"),
            ("{% set ns.items = a.items %}", "{% set ns.items = (a|__attribute('items')) %}"),
            (
                "{{ -a.b['keys'].get.c, ['keys'] }}",
                "{{ -((a.b|__item('keys'))|__attribute('get')).c, ['keys'] }}",
            ),
            ("{{ a.b[::-1][1:] }}", "{{ (a.b|__slice(none,none,-1))[1:] }}"),
            ("{{ a[b ~ c:[d][0]:2] }}", "{{ (a|__slice((b, c)|__concat,[d][0],2)) }}"),
            ("{{ +a - +b }}", "{{ a - b }}"),
            ("{{ a + b ~ c - d + e|safe }}", "{{ ((a, (b, c)|__concat)|__add - d, e|safe)|__add }}"),
            ("~ % {# ~ #}{% raw %}{{ a ~ b }}{% endraw %}", "~ % {# ~ #}{% raw %}{{ a ~ b }}{% endraw %}"),
        ] {
            let got = rewrite(source).replace(" ,", ",");
            assert_eq!(got, expected, "{source}");
        }
    }
}
