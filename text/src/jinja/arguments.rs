//! Arguments of a filter or method, by position or by name, as Python binds them.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

/// Arguments of one call.
pub struct Arguments<'a> {
    positional: &'a [Value],
    named: Option<Kwargs>,
}

impl<'a> Arguments<'a> {
    /// Separates named arguments, which come last.
    pub fn new(values: &'a [Value]) -> Result<Self, Error> {
        match values.split_last() {
            Some((last, positional)) if last.is_kwargs() => {
                Ok(Self { positional, named: Some(Kwargs::try_from(last.clone())?) })
            }
            _ => Ok(Self { positional: values, named: None }),
        }
    }

    /// Binds the arguments to `names`. `Value::UNDEFINED` = not given.
    pub fn bind<const N: usize>(self, names: [&str; N]) -> Result<[Value; N], Error> {
        if self.positional.len() > N {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut bound = [const { Value::UNDEFINED }; N];
        for (at, name) in names.into_iter().enumerate() {
            bound[at] = match (self.positional.get(at), &self.named) {
                (Some(value), _) => value.clone(),
                (None, Some(named)) if named.has(name) => named.get(name)?,
                (None, _) => Value::UNDEFINED,
            };
        }
        if let Some(named) = self.named {
            named.assert_all_used()?;
        }
        Ok(bound)
    }
}

/// `value` as text.
pub fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, Error> {
    value.as_str().ok_or_else(|| invalid(format!("{name} must be a string, not {}", value.kind())))
}

/// `value` as an integer; `None` if it is not given or none.
pub fn integer(value: &Value) -> Result<Option<i64>, Error> {
    if value.is_undefined() || value.is_none() { Ok(None) } else { i64::try_from(value.clone()).map(Some) }
}

/// `value` as a width: zero if it is negative.
pub fn width(value: &Value, default: usize) -> Result<usize, Error> {
    Ok(integer(value)?.map_or(default, |width| usize::try_from(width).unwrap_or(0)))
}

/// An error of the template.
pub fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
