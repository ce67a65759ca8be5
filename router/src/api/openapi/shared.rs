//! Fields that several bodies have in the same form: written once, because most bodies have the sampling
//! parameters.

use serde_json::{Map, Value};

use super::schema::reference;

/// Makes components of the fields that are equal in several of `bodies`, which are names of `schemas`.
pub fn share(schemas: &mut Map<String, Value>, bodies: &[&str]) {
    let mut known: Vec<(String, Value, usize)> = Vec::new();
    for body in bodies {
        for (name, field) in schemas[*body]["properties"].as_object().into_iter().flatten() {
            match known.iter_mut().find(|(known, schema, _)| known == name && schema == field) {
                Some((.., times)) => *times += 1,
                None => known.push((name.clone(), field.clone(), 1)),
            }
        }
    }
    known.retain(|(.., times)| *times > 1);
    for (at, (name, field, _)) in known.iter().enumerate() {
        let earlier = known[..at].iter().filter(|(other, ..)| other == name).count();
        let component =
            if earlier == 0 { format!("field.{name}") } else { format!("field.{name}.{earlier}") };
        for body in bodies {
            if let Some(given) = schemas[*body]["properties"].get_mut(name).filter(|given| *given == field) {
                *given = reference(&component);
            }
        }
        schemas.insert(component, field.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_are_equal_are_written_once() {
        let body = |n: u32, text: &str| json!({"properties": {"n": {"maximum": n}, "text": {"type": text}}});
        let bodies = ["a", "b", "c", "d"];
        let all = [body(1, "string"), body(1, "array"), body(2, "array"), body(2, "object")];
        let mut schemas: Map<String, Value> = bodies.iter().map(|name| (*name).to_owned()).zip(all).collect();
        share(&mut schemas, &bodies);
        assert_eq!(schemas["field.n"], json!({"maximum": 1}));
        assert_eq!(schemas["field.n.1"], json!({"maximum": 2}));
        assert_eq!(schemas["d"]["properties"]["n"], reference("field.n.1"));
        assert_eq!(schemas["c"]["properties"]["text"], reference("field.text"));
        assert_eq!(schemas["d"]["properties"]["text"], json!({"type": "object"}));
    }
}
