//! Limited versions of the Jinja filters and Python methods that can produce huge values from small ones.
//! Each checks the size of its result before allocation; minijinja does the actual work.

use std::fmt::{self, Write};

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter, filters};

/// Longest text that a template may produce, final or intermediate, in bytes.
pub const MAX_TEXT_BYTES: usize = 32 * 1024 * 1024;
/// Most items of a list that a filter may produce.
const MAX_ITEMS: usize = 1_000_000;
/// Deepest nesting of a printed value; a namespace that contains itself is infinitely deep.
const MAX_DEPTH: usize = 160;

/// Replaces the unlimited functions of `env`.
pub fn install(env: &mut Environment<'_>) {
    env.set_formatter(print);
    env.set_unknown_method_callback(method);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("indent", indent);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("format", format);
    env.add_filter("string", string);
    env.add_filter("pprint", pprint);
    // `debug` prints all variables at any depth; in Jinja2 it is an optional extension.
    env.remove_global("debug");
}

/// Fails if `bytes` exceeds the size limit of a text.
pub fn check_bytes(bytes: usize) -> Result<(), Error> {
    check(bytes, MAX_TEXT_BYTES, "bytes")
}

fn check(made: usize, most: usize, unit: &str) -> Result<(), Error> {
    if made > most {
        let message = format!("it produces a value of over {most} {unit}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// Prints the value of `{{ … }}`.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    check_nesting(value, MAX_DEPTH, &mut 0)?;
    escape_formatter(out, state, value)
}

fn batch(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check(count, MAX_ITEMS, "items")?;
    filters::batch(state, value, count, fill)
}

fn slice(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check(count, MAX_ITEMS, "items")?;
    filters::slice(state, value, count, fill)
}

fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let width = match width {
        Some(width) => width,
        None => options.get::<Option<usize>>("width")?.unwrap_or(4),
    };
    let text = value.as_str();
    let lines = text.matches('\n').count() + 1;
    check_bytes(width.saturating_mul(lines).saturating_add(text.len()))?;
    filters::indent(value, Some(width), first, blank, options)
}

fn replace(
    state: &mut State<'_, '_>,
    value: StringInput<'_>,
    from: StringInput<'_>,
    to: StringInput<'_>,
) -> Result<Value, Error> {
    check_replaced(value.as_str(), from.as_str(), to.as_str())?;
    filters::replace(state, value, from, to)
}

fn check_replaced(text: &str, from: &str, to: &str) -> Result<(), Error> {
    // A replacement that is not longer cannot exceed the limit.
    if to.len() <= from.len() {
        return Ok(());
    }
    check_bytes(text.matches(from).count().saturating_mul(to.len() - from.len()).saturating_add(text.len()))
}

fn join(
    state: &mut State<'_, '_>,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named = if joiner.is_none() { options.get::<Option<String>>("d")? } else { None };
    let joiner_bytes = joiner.as_ref().map(StringInput::as_str).or(named.as_deref()).map_or(0, str::len);
    let path = match attribute {
        Some(attribute) => Some(attribute),
        None => options.get::<Option<&str>>("attribute")?,
    };
    // Collected, because some iterators work only once.
    let items: Vec<Value> = match value.try_iter() {
        Ok(items) => items.collect(),
        Err(_) => return filters::join(state, value, joiner, attribute, options),
    };
    let written = |item: &Value| match path {
        // A missing path is reported by the filter itself.
        Some(path) => item.get_item(&Value::from(path)).unwrap_or_default(),
        None => item.clone(),
    };
    check_joined(items.iter().map(written), joiner_bytes)?;
    filters::join(state, &Value::from(items), joiner, attribute, options)
}

fn check_joined(items: impl Iterator<Item = Value>, joiner_bytes: usize) -> Result<(), Error> {
    let mut bytes = 0_usize;
    for item in items {
        bytes = bytes.saturating_add(joiner_bytes).saturating_add(printed_bytes(&item)?);
        check_bytes(bytes)?;
    }
    Ok(())
}

fn format(state: &mut State<'_, '_>, text: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    check_formatted(text.as_str().unwrap_or_default(), '%', &arguments)?;
    filters::format(state, text, Rest(arguments.into_iter().map(ValueOrKwargs::from).collect()))
}

/// Upper bound: every placeholder may take the longest argument, and every number may be a width.
fn check_formatted(text: &str, place: char, arguments: &[Value]) -> Result<(), Error> {
    let mut longest = 0;
    let mut widths = 0_usize;
    for argument in arguments {
        longest = longest.max(printed_bytes(argument)?);
        // With `*`, an argument is the width.
        widths = widths.saturating_add(usize::try_from(argument.clone()).unwrap_or(0));
    }
    if !text.contains('*') {
        widths = 0;
    }
    for digits in text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        widths = widths.saturating_add(digits.parse().unwrap_or(usize::MAX));
    }
    let places = text.matches(place).count();
    check_bytes(places.saturating_mul(longest).saturating_add(widths).saturating_add(text.len()))
}

fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    printed_bytes(value)?;
    filters::string(state, value)
}

fn pprint(value: &Value) -> Result<String, Error> {
    check_nesting(value, MAX_DEPTH, &mut 0)?;
    let mut out = Bounded { bytes: 0, text: Some(String::new()) };
    write!(out, "{value:#?}").or_else(|_| check_bytes(usize::MAX))?;
    Ok(out.text.unwrap_or_default())
}

/// Calls Python's methods of strings and other values.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match (name, arguments) {
            ("replace", [from, to, ..]) => {
                check_replaced(text, from.as_str().unwrap_or_default(), to.as_str().unwrap_or_default())?;
            }
            ("join", [items]) if items.kind() != ValueKind::Iterable => {
                check_joined(items.try_iter()?, text.len())?;
            }
            ("join", [items]) => {
                let items: Vec<Value> = items.try_iter()?.collect();
                return method(state, value, name, &[Value::from(items)]);
            }
            ("format", arguments) => check_formatted(text, '{', arguments)?,
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Length of `value` when printed; an error above the limit.
fn printed_bytes(value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    check_nesting(value, MAX_DEPTH, &mut 0)?;
    let mut out = Bounded { bytes: 0, text: None };
    write!(out, "{value}").or_else(|_| check_bytes(usize::MAX))?;
    Ok(out.bytes)
}

/// Fails if `value` is nested too deeply to print on the stack, or has too many items. `items` counts over
/// the whole value, in which one list may occur many times.
fn check_nesting(value: &Value, depth: usize, items: &mut usize) -> Result<(), Error> {
    let kind = value.kind();
    if !matches!(kind, ValueKind::Seq | ValueKind::Map) {
        return Ok(());
    }
    if depth == 0 {
        let message = format!("it prints a value nested deeper than {MAX_DEPTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    for item in value.try_iter()? {
        *items += 1;
        check(*items, MAX_ITEMS, "items")?;
        match kind {
            ValueKind::Map => check_nesting(&value.get_item(&item)?, depth - 1, items)?,
            _ => check_nesting(&item, depth - 1, items)?,
        }
    }
    Ok(())
}

/// Counts the bytes written, keeps them if `text` is set, and fails above the limit.
struct Bounded {
    bytes: usize,
    text: Option<String>,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes += text.len();
        if self.bytes > MAX_TEXT_BYTES {
            return Err(fmt::Error);
        }
        self.text.iter_mut().for_each(|kept| kept.push_str(text));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, String> {
        let mut env = Environment::new();
        install(&mut env);
        env.render_str(source, ()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_short_expression_cannot_make_a_huge_value() {
        for source in [
            "{{ [1]|batch(1000000000, 'x') }}",
            "{{ [1]|slice(1000000000) }}",
            "{{ 'x\n'|indent(1000000000) }}",
            "{{ 'x\n'|indent(width=1000000000) }}",
            "{{ '{:>1000000000}'.format('x') }}",
            "{{ '%1000000000s'|format('x') }}",
            "{{ '%*d'|format(1000000000, 1) }}",
            "{{ '{0}{0}{0}{0}{0}'.format('x' * 10000000) }}",
            "{{ ('x' * 100000).replace('x', 'y' * 1000) }}",
            "{{ ('x' * 100000)|replace('x', 'y' * 1000) }}",
            "{{ ('x' * 100000)|replace('', 'y' * 1000) }}",
            "{% set a = 'x' * 10000000 %}{{ [a, a, a, a]|join('') }}",
            "{% set a = 'x' * 10000000 %}{{ ''.join([a, a, a, a]) }}",
            "{{ range(100000)|join('x' * 1000) }}",
            "{{ range(100000)|join(d='x' * 1000) }}",
            "{% set a = 'x' * 10000000 %}{{ [{'a': a}, {'a': a}, {'a': a}, {'a': a}]|join('', 'a')|length }}",
            "{% set a = ['x' * 10000000] %}{{ [a, a, a, a]|string }}",
            "{% set a = ['x' * 10000000] %}{{ [a, a, a, a]|pprint }}",
        ] {
            let error = render(source).unwrap_err();
            assert!(error.contains("it produces a value of over"), "{source}: {error}");
        }
    }

    #[test]
    fn an_endless_value_is_not_printed() {
        for write in ["ns", "ns|string", "ns|pprint", "[ns]|join", "'{}'.format(ns)", "'%s'|format(ns)"] {
            let source = format!("{{% set ns = namespace() %}}{{% set ns.a = ns %}}{{{{ {write} }}}}");
            let error = render(&source).unwrap_err();
            assert!(error.contains("nested deeper"), "{write}: {error}");
        }
    }

    #[test]
    fn normal_expressions_work_as_before() {
        for (source, expected) in [
            ("{{ [1, 2, 3]|batch(2, 0)|list }}", "[[1, 2], [3, 0]]"),
            ("{{ 'a\nb'|indent(2) }}{{ 'c'|indent(width=1, first=true) }}", "a\n  b c"),
            ("{{ 'aXb'.replace('X', '--') }}{{ 'aXb'|replace('X', '') }}", "a--bab"),
            ("{{ [1, 2]|join(', ') }}{{ [{'a': 1}, {'a': 2}]|join(attribute='a') }}", "1, 212"),
            ("{{ ', '.join(['a', 'b']) }}{{ '-'.join({'k': 1}.keys()) }}", "a, bk"),
            ("{{ '%s is %05.1f'|format('pi', 3.14) }}{{ '{:>4}{}'.format(7, 'x') }}", "pi is 003.1   7x"),
            ("{{ '%(a)s'|format(a=1) }}{{ '{a}{0}'.format(2, a='x') }}", "1x2"),
            ("{{ [1, ['a']]|string }}{{ {'a': [1]} }}", "[1, ['a']]{'a': [1]}"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
        }
    }
}
