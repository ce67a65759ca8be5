//! Jinja2's functions that answer otherwise at each call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Object, ObjectRepr, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::arguments::invalid;

/// Adds them to `env`.
pub fn install(env: &mut Environment<'_>) {
    env.add_function("joiner", |separator: Option<String>| {
        let separator = separator.unwrap_or_else(|| ", ".to_owned());
        Value::from_object(Joiner { separator, used: AtomicUsize::new(0) })
    });
    env.add_function("cycler", |items: Rest<Value>| match items.is_empty() {
        true => Err(invalid("cycler: give at least one item")),
        false => Ok(Value::from_object(Cycler { items: items.to_vec(), at: AtomicUsize::new(0) })),
    });
}

/// `joiner`: nothing when first called, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: String,
    used: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
        let first = self.used.swap(1, Ordering::Relaxed) == 0;
        Ok(Value::from(if first { "" } else { &self.separator }))
    }
}

/// `cycler`: its items in turn.
#[derive(Debug)]
pub struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = self.at.load(Ordering::Relaxed) % self.items.len();
        (key.as_str() == Some("current")).then(|| self.items[at].clone())
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, name: &str, _: &[Value]) -> Result<Value, Error> {
        match name {
            "next" => Ok(self.items[self.at.fetch_add(1, Ordering::Relaxed) % self.items.len()].clone()),
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
