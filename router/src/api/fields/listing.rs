//! The fields that a reader of bodies takes, listed as it takes them. The API's description is made of this
//! list, so that it has each field that is read, and no other.

use std::sync::{Arc, Mutex, PoisonError};

/// What a field is taken as. Null counts as absent for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// true or false.
    Boolean,
    /// A 64-bit integer.
    Integer,
    /// A number.
    Number,
    /// A string.
    Text,
    /// A string or a list of strings.
    Texts,
    /// A list of integers.
    Integers,
    /// An object of any members.
    Object,
    /// Any value.
    Any,
    /// Any value, which changes nothing.
    WithoutEffect,
    /// What a component of the description says.
    Shaped(&'static str),
    /// A list of what a component of the description says.
    ListOf(&'static str),
}

/// A field, by the name under which clients send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name of the field.
    pub name: &'static str,
    /// Name of the field that it is read as: the one that bounds apply to.
    pub read_as: &'static str,
    /// The member of the body that holds it; `None` = the body itself.
    pub within: Option<&'static str>,
    /// What it is taken as.
    pub kind: Kind,
}

/// What a reader takes.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The fields, in the order in which they are taken.
    pub fields: Vec<Listed>,
    /// Fields without which the body is refused.
    pub required: Vec<&'static str>,
    /// Names that stand for others: (sent, read as).
    other_names: Vec<(&'static str, &'static str)>,
    /// Fields that readers make from others.
    made: Vec<String>,
    /// Fields that come as members of another.
    members: Vec<(&'static str, &'static [&'static str])>,
}

impl Listing {
    fn take(&mut self, name: &'static str, kind: Kind) {
        if self.made.iter().any(|made| made == name) {
            return;
        }
        let within = self.members.iter().find(|(_, names)| names.contains(&name)).map(|(member, _)| *member);
        let other = self.other_names.iter().find(|(_, read_as)| *read_as == name).map(|(sent, _)| *sent);
        for (name, read_as) in other.map(|sent| (sent, name)).into_iter().chain([(name, name)]) {
            let listed = Listed { name, read_as, within, kind };
            if !self.fields.iter().any(|known| known.name == name && known.within == within) {
                self.fields.push(listed);
            }
        }
    }
}

/// A listing in the making, shared with the fields that are being read.
#[derive(Debug, Clone, Default)]
pub struct Lister(Arc<Mutex<Listing>>);

impl Lister {
    fn with(&self, change: impl FnOnce(&mut Listing)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Adds a field.
    pub fn take(&self, name: &'static str, kind: Kind) {
        self.with(|listing| listing.take(name, kind));
    }

    /// Says that `sent` is another name of `read_as`, which is taken later.
    pub fn other_name(&self, sent: &'static str, read_as: &'static str) {
        self.with(|listing| listing.other_names.push((sent, read_as)));
    }

    /// Says that `names`, which are taken later, come as members of the object `member`.
    pub fn members(&self, member: &'static str, names: &'static [&'static str]) {
        self.with(|listing| listing.members.push((member, names)));
    }

    /// Says that a reader makes the field `name`, which is taken later, from another one.
    pub fn made(&self, name: &str) {
        self.with(|listing| listing.made.push(name.to_owned()));
    }

    /// Fields whose absence is a fault.
    pub fn require(&self, names: impl Iterator<Item = &'static str>) {
        self.with(|listing| listing.required.extend(names));
    }

    /// What has been taken.
    pub fn into_listing(self) -> Listing {
        let mut listing = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Listing { fields, required, .. } = &mut listing;
        required.retain(|name| fields.iter().any(|field| field.name == *name && field.within.is_none()));
        listing
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::fields::object::Fields;
    use crate::refusal::Refusal;

    /// Takes fields in all the ways in which they come.
    fn read(mut fields: Fields) -> Option<String> {
        let name = fields.string("name");
        if name.is_none() {
            fields.note(Refusal::invalid("name", "name is required."));
        }
        fields.rename("halts", "stop");
        fields.strings("stop");
        fields.spread("options", &["seed"]);
        fields.i64("seed");
        fields.put("made", json!(1));
        fields.i64("made");
        fields.take_strange("functions");
        fields.bool("flag");
        fields.bool("flag");
        fields.finish(false).ok()?;
        name
    }

    #[test]
    fn what_a_reader_takes_is_listed_by_the_names_that_clients_send() {
        let lister = Lister::default();
        assert_eq!(read(Fields::listed(lister.clone())), None);
        let Listing { fields, required, .. } = lister.into_listing();
        let listed: Vec<_> =
            fields.iter().map(|field| (field.within, field.name, field.read_as, field.kind)).collect();
        assert_eq!(
            listed,
            [
                (None, "name", "name", Kind::Text),
                (None, "halts", "stop", Kind::Texts),
                (None, "stop", "stop", Kind::Texts),
                (None, "options", "options", Kind::Object),
                (Some("options"), "seed", "seed", Kind::Integer),
                (None, "flag", "flag", Kind::Boolean),
            ]
        );
        assert_eq!(required, ["name"]);
    }

    #[test]
    fn a_body_is_read_under_other_names_and_from_members() {
        let body = br#"{"name": "x", "halts": ["a"], "options": {"seed": 7, "other": 1}}"#;
        let mut fields = Fields::parse(body).unwrap();
        fields.rename("halts", "stop");
        assert_eq!(fields.strings("stop"), ["a"]);
        let others = fields.spread("options", &["seed"]);
        assert_eq!((fields.i64("seed"), others.contains_key("other")), (Some(7), true));
        assert_eq!(fields.finish(false).unwrap().unwrap(), "name");
    }
}
