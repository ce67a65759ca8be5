//! Jinja2's filters that sort and compare, with their options by position, too.

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters};

use super::arguments::Arguments;

/// Adds the filters to `env`.
pub fn install(env: &mut Environment<'_>) {
    env.add_filter("sort", |state: &State<'_, '_>, value: Value, given: Rest<ValueOrKwargs>| {
        filters::sort(state, value, named(given, ["reverse", "case_sensitive", "attribute"])?)
    });
    env.add_filter("dictsort", |value: &Value, given: Rest<ValueOrKwargs>| {
        filters::dictsort(value, named(given, ["case_sensitive", "by", "reverse"])?)
    });
    env.add_filter("unique", |state: &State<'_, '_>, value: Value, given: Rest<ValueOrKwargs>| {
        filters::unique(state, value, named(given, ["case_sensitive", "attribute"])?)
    });
    env.add_filter("min", |state: &State<'_, '_>, value: Value, given: Rest<ValueOrKwargs>| {
        filters::min(state, value, named(given, ["case_sensitive", "attribute"])?)
    });
    env.add_filter("max", |state: &State<'_, '_>, value: Value, given: Rest<ValueOrKwargs>| {
        filters::max(state, value, named(given, ["case_sensitive", "attribute"])?)
    });
}

fn named<const N: usize>(given: Rest<ValueOrKwargs>, names: [&str; N]) -> Result<Kwargs, Error> {
    let given = given.into_values();
    let values = Arguments::new(&given)?.bind(names)?;
    Ok(names.into_iter().zip(values).filter(|(_, value)| !value.is_undefined()).collect())
}
