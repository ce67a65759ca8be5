//! Limited versions of the Jinja filters that can produce huge values from small ones. Each checks the size
//! of its result before allocation; minijinja does the rest of the work.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Output, State, Value, escape_formatter, filters};

use super::formatted::{check_formatted, plain};
use super::limits::{MAX_ITEMS, check, check_replaced};
use super::printed::{Printed, printed};

/// Replaces the unlimited functions of `env`.
pub fn install(env: &mut Environment<'_>) {
    env.set_formatter(print);
    env.set_unknown_method_callback(super::methods::call);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("format", format);
    env.add_filter("string", string);
    // `debug` prints all variables at any depth; in Jinja2 it is an optional extension.
    env.remove_global("debug");
}

/// Prints the value of `{{ … }}`.
fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            out.write_str(&printed(value)?).map_err(Error::from)
        }
        _ => escape_formatter(out, state, value),
    }
}

fn batch(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check(count, MAX_ITEMS, "items")?;
    filters::batch(state, value, count, fill)
}

fn slice(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check(count, MAX_ITEMS, "items")?;
    filters::slice(state, value, count, fill)
}

fn replace(value: &Value, from: &Value, to: &Value, most: Option<i64>) -> Result<String, Error> {
    let (text, from, to) = (printed(value)?, printed(from)?, printed(to)?);
    check_replaced(&text, &from, &to)?;
    let most = most.and_then(|most| usize::try_from(most).ok());
    Ok(most.map_or_else(|| text.replace(&from, &to), |most| text.replacen(&from, &to, most)))
}

fn join(
    value: &Value,
    joiner: Option<&Value>,
    attribute: Option<&Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let joiner = joiner.cloned().or(options.get("d")?).unwrap_or_default();
    let attribute = attribute.cloned().or(options.get("attribute")?).unwrap_or_default();
    options.assert_all_used()?;
    let (joiner, mut out) = (printed(&joiner)?, Printed::default());
    for (at, item) in value.try_iter()?.enumerate() {
        out.push(if at > 0 { &joiner } else { "" })?;
        out.add(&path(item, &attribute)?)?;
    }
    Ok(out.text)
}

/// The attribute `a.b.0` of `item`; undefined = the item.
fn path(item: Value, attribute: &Value) -> Result<Value, Error> {
    match attribute.as_str() {
        Some(path) => path.split('.').try_fold(item, |item, part| match part.parse::<i64>() {
            Ok(at) => item.get_item(&Value::from(at)),
            Err(_) => item.get_item(&Value::from(part)),
        }),
        None if attribute.is_undefined() || attribute.is_none() => Ok(item),
        None => item.get_item(attribute),
    }
}

fn format(state: &mut State<'_, '_>, text: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let arguments = arguments.iter().map(plain).collect::<Result<Vec<_>, _>>()?;
    check_formatted(text.as_str().unwrap_or_default(), '%', &arguments)?;
    filters::format(state, text, Rest(arguments.into_iter().map(ValueOrKwargs::from).collect()))
}

fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() { Ok(value.clone()) } else { printed(value).map(Value::from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, String> {
        let mut env = Environment::new();
        crate::jinja::install(&mut env);
        env.render_str(&crate::jinja::rewrite(source), ()).map_err(|error| error.to_string())
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
            "{% set a = 'x' * 10000000 %}{{ a ~ a ~ a ~ a }}",
            "{{ ('x' * 1000000000)|length }}",
            "{{ ([1] * 1000000000)|length }}",
            "{{ 'x'|center(1000000000) }}",
            "{{ 'x'.center(1000000000) }}{{ 'x'.ljust(1000000000, 'é') }}",
            "{{ '1'.zfill(1000000000) }}",
            "{{ '%*d' % (1000000000, 1) }}",
            "{{ '%1000000000s' % 'x' }}",
            "{{ [1]|tojson(indent=1000000000) }}",
            "{{ 'a b'|truncate(3, true, 'x' * 40000000, 0) }}",
            "{{ ('<' * 30000000)|escape }}",
            "{{ ('é' * 10000000)|urlencode }}",
            "{{ ('x\n' * 100000)|indent('y' * 1000) }}",
        ] {
            let error = render(source).unwrap_err();
            assert!(error.contains("it produces a value of over"), "{source}: {error}");
        }
    }

    #[test]
    fn an_endless_value_is_not_printed() {
        for write in
            ["ns", "ns|string", "ns ~ 1", "[ns]|join", "'{}'.format(ns)", "'%s'|format(ns)", "'%s' % ns"]
        {
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
