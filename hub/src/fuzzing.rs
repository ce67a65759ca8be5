//! Doors for `tests/fuzz` to what this crate keeps to itself.

use crate::files::{self, Weights};
use crate::{api, name::is_part};

/// Reads the listing of a repository; names of files that it would download are plain.
pub fn listing(body: &[u8]) {
    let Ok(listing) = api::parse_listing(body) else { return };
    let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
    let _ = files::text(&names);
    let _: Result<Weights, String> = files::weights(&names);
    for blob in listing.files.iter().filter_map(|file| file.blob.as_ref()) {
        assert!(is_part(&blob.etag), "{:?} becomes a file's name", blob.etag);
    }
}

/// Reads an index of weights; the files that it names are beside it.
pub fn shards(index: &[u8]) {
    for file in files::shards(index).into_iter().flatten() {
        assert!(is_part(&file), "{file:?} is not beside the index");
    }
}
