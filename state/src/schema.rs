//! Tables of a store, and the settings of a connection to it.

use std::io::{ErrorKind, Read};
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::error::StateError;
use crate::files;

/// Marks a database as one of these: `Skn1` (SQLite's `application_id`).
const APPLICATION: i32 = 0x536b_6e31;
/// The layout of the tables; another one gets another number.
const LAYOUT: i32 = 1;

/// How a database of SQLite begins. Its header has the counter of changes of the tables at byte 40,
/// `user_version` at 60 and `application_id` at 68 (SQLite's file format, 1.3).
const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;

/// `trees.used` is in seconds since 1970. A turn with a `request` is still to be answered.
const TABLES: &str = "
CREATE TABLE owners (
    name TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE trees (
    number INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    used INTEGER NOT NULL
);
CREATE INDEX trees_of_owner ON trees (owner, used);
CREATE INDEX trees_by_use ON trees (used);
CREATE TABLE turns (
    number INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    tree INTEGER NOT NULL,
    previous TEXT,
    bytes INTEGER NOT NULL,
    input TEXT NOT NULL,
    answer TEXT NOT NULL,
    request TEXT,
    UNIQUE (owner, id)
);
CREATE INDEX turns_of_tree ON turns (tree);
CREATE INDEX unanswered ON turns (tree) WHERE request IS NOT NULL;
";

/// Opens the store in the file at `path`, makes its tables if it is empty.
///
/// # Errors
/// If it is something else, or the disk fails.
pub fn open(path: &Path) -> Result<Connection, StateError> {
    let connection = Connection::open(path)?;
    let not_ours = |reason: String| StateError::NotAStore { path: path.to_owned(), reason };
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (application, layout, tables) = match (number("application_id"), number("user_version")) {
        (Ok(application), Ok(layout)) => (application, layout, number("schema_version")?),
        (Err(error), _) | (_, Err(error)) => {
            return Err(match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt) => {
                    not_ours("SQLite does not read it".to_owned())
                }
                _ => error.into(),
            });
        }
    };
    check(application, layout, tables).map_err(not_ours)?;
    if tables == 0 {
        // Only before there are tables can a file be one that shrinks.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A commit is on the disk before a client learns of it.
    connection.pragma_update(None, "synchronous", "FULL")?;
    prepare(&connection)?;
    if tables == 0 {
        make(&connection)?;
    }
    Ok(connection)
}

/// Whether a database with these numbers is one of these, or empty; else what it is.
fn check(application: i32, layout: i32, tables: i32) -> Result<(), String> {
    match (application, layout) {
        (0, 0) if tables == 0 => Ok(()),
        (APPLICATION, LAYOUT) => Ok(()),
        (APPLICATION, other) => Err(format!("its layout is {other}, and this release reads {LAYOUT}")),
        _ => Err("it is another program's database".to_owned()),
    }
}

/// Looks at the beginning of the database in `directory`, if there is one, and changes nothing.
///
/// # Errors
/// If it is something else, or cannot be read.
pub fn check_file(directory: &Path) -> Result<(), StateError> {
    let path = files::database(directory);
    let not_ours = |reason: String| StateError::NotAStore { path: path.clone(), reason };
    let mut header = [0; HEADER_BYTES];
    let read = match std::fs::File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.and_then(|mut file| file.read(&mut header)),
    };
    let read = read.map_err(|error| StateError::Io { path: path.clone(), error })?;
    if read == 0 {
        return Ok(());
    }
    if read < HEADER_BYTES || !header.starts_with(MAGIC) {
        return Err(not_ours("SQLite does not read it".to_owned()));
    }
    let number = |at: usize| i32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    check(number(68), number(60), number(40)).map_err(not_ours)
}

/// Opens the same store to read, beside the connection that writes.
///
/// # Errors
/// If the disk fails.
pub fn open_reader(path: &Path) -> Result<Connection, StateError> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    prepare(&connection)?;
    Ok(connection)
}

/// Makes a store in memory.
///
/// # Errors
/// If there is no memory for it.
pub fn in_memory() -> Result<Connection, StateError> {
    let connection = Connection::open_in_memory()?;
    prepare(&connection)?;
    make(&connection)?;
    Ok(connection)
}

fn prepare(connection: &Connection) -> Result<(), StateError> {
    // What is deleted is overwritten with zeros.
    connection.pragma_update(None, "secure_delete", "ON")?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

fn make(connection: &Connection) -> Result<(), StateError> {
    connection.execute_batch(&format!(
        "BEGIN; {TABLES} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {LAYOUT}; COMMIT;"
    ))?;
    Ok(())
}
