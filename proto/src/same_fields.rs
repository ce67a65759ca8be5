//! From one form of a message to the other: the plain type and the one on the wire have most fields in common.

/// `Self` with the fields named first taken from `$from` as they are, and the others as given. As in any struct
/// expression, a field that is not named does not compile.
macro_rules! same_fields {
    ($from:ident: $($same:ident),+; $($field:ident: $value:expr),+) => {
        Self { $($same: $from.$same,)+ $($field: $value,)+ }
    };
}

pub(crate) use same_fields;
