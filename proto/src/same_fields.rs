//! Conversion between a plain type and its wire form, which have most fields in common.

/// `Self` with the fields before `;` copied from `$from` and the others as given. A missing field is a
/// compile error, as in any struct expression.
macro_rules! same_fields {
    ($from:ident: $($same:ident),+; $($field:ident: $value:expr),+) => {
        Self { $($same: $from.$same,)+ $($field: $value,)+ }
    };
}

pub(crate) use same_fields;
