//! Jinja2's tests where minijinja's differ, by Python's types.

use minijinja::value::{ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};

use super::characters::is_cased;
use super::printed::printed;
use super::turns::Cycler;

/// Replaces tests of `env`.
pub fn install(env: &mut Environment<'_>) {
    env.add_test("iterable", |value: &Value| is_sequence(value) || value.kind() == ValueKind::Bytes);
    env.add_test("sequence", is_sequence);
    env.add_test("integer", |value: &Value| value.kind() == ValueKind::Number && value.is_integer());
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("callable", is_callable);
    env.add_test("divisibleby", is_divisible);
    env.add_test("lower", |value: &Value| printed(value).map(|text| is_cased(&text, char::is_lowercase)));
    env.add_test("upper", |value: &Value| printed(value).map(|text| is_cased(&text, char::is_uppercase)));
    for name in ["startingwith", "endingwith", "safe", "int"] {
        env.remove_test(name);
    }
    env.add_test("escaped", |value: &Value| value.is_safe());
}

/// Python's sequences have a length and items by key, so strings and dictionaries are some, and what is
/// undefined.
fn is_sequence(value: &Value) -> bool {
    let kinds =
        [ValueKind::Undefined, ValueKind::String, ValueKind::Seq, ValueKind::Iterable, ValueKind::Map];
    kinds.contains(&value.kind())
}

fn is_callable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined => true,
        _ if value.as_object().is_some_and(|object| object.type_name().ends_with("::Macro")) => true,
        ValueKind::Plain => value.downcast_object_ref::<Cycler>().is_none(),
        _ => false,
    }
}

fn is_divisible(value: &Value, by: ValueOrKwargs) -> Result<bool, Error> {
    let rest = super::operators::remainder(value, &by.into_value())?;
    Ok(rest == Value::from(0))
}
