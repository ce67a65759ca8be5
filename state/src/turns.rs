//! Turns in the tables: adding, reading and deleting. The caller opens and commits transactions.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::StateError;
use crate::limits::{MAX_CONTEXT_BYTES, MAX_TURNS};
use crate::room;
use crate::turn::{NewTurn, Turn, Unanswered};

/// Adds `turn` to the tree of the one that it continues, or to a new tree, which is used `now`, in seconds
/// since 1970. Returns how many turns were removed to make room.
///
/// # Errors
/// If the tree would have more bytes than the store may have, or the database fails; the transaction must
/// then be rolled back.
pub fn add(connection: &Connection, turn: &NewTurn, now: i64, limit: u64) -> Result<u64, StateError> {
    let of_previous = |previous: &String| tree_of(connection, &turn.owner, previous);
    let known = turn.previous.as_ref().map(of_previous).transpose()?.flatten();
    let tree = match known {
        Some(tree) => {
            let sql = "UPDATE trees SET used = max(used, ?2) WHERE number = ?1";
            connection.prepare_cached(sql)?.execute(params![tree, now])?;
            tree
        }
        None => {
            let sql = "INSERT INTO trees (owner, used) VALUES (?1, ?2)";
            connection.prepare_cached(sql)?.execute(params![turn.owner, now])?;
            connection.last_insert_rowid()
        }
    };
    let bytes = i64::try_from(turn.bytes()).unwrap_or(i64::MAX);
    let sql = "INSERT INTO turns (owner, id, tree, previous, bytes, input, answer, request) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    connection.prepare_cached(sql)?.execute(params![
        turn.owner,
        turn.id,
        tree,
        turn.previous,
        bytes,
        turn.input,
        turn.answer,
        turn.request
    ])?;
    room::count(connection, &turn.owner, bytes)?;
    room::make(connection, limit, tree)
}

/// Replaces the answer of the turn `id` of `owner`, which is still to be answered; with `is_last` it is then
/// answered. Returns how many turns were removed to make room; `None` if there is no such turn, or it has its
/// answer.
///
/// # Errors
/// As [`add`].
pub fn answer(
    connection: &Connection,
    key: (&str, &str),
    answer: &str,
    is_last: bool,
    limit: u64,
) -> Result<Option<u64>, StateError> {
    let (owner, id) = key;
    let sql = "SELECT number, tree, bytes, octet_length(answer), octet_length(request) FROM turns \
               WHERE owner = ?1 AND id = ?2 AND request IS NOT NULL";
    let found = connection.prepare_cached(sql)?.query_row([owner, id], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, [row.get(2)?, row.get(3)?, row.get::<_, i64>(4)?]))
    });
    let Some((number, tree, [before, of_answer, of_request])) = found.optional()? else { return Ok(None) };
    let freed = of_answer + if is_last { of_request } else { 0 };
    let bytes = before - freed + i64::try_from(answer.len()).unwrap_or(i64::MAX);
    let sql = "UPDATE turns SET answer = ?2, bytes = ?3, request = CASE WHEN ?4 THEN NULL ELSE request END \
               WHERE number = ?1";
    connection.prepare_cached(sql)?.execute(params![number, answer, bytes, is_last])?;
    room::count(connection, owner, bytes - before)?;
    room::make(connection, limit, tree).map(Some)
}

/// The turns that are still to be answered, in the order in which they came.
///
/// # Errors
/// If the database fails.
pub fn unanswered(connection: &Connection) -> Result<Vec<Unanswered>, StateError> {
    let sql = "SELECT owner, id, request FROM turns WHERE request IS NOT NULL ORDER BY number";
    let read = |row: &Row<'_>| Ok(Unanswered { owner: row.get(0)?, id: row.get(1)?, request: row.get(2)? });
    Ok(connection.prepare_cached(sql)?.query_map([], read)?.collect::<Result<_, _>>()?)
}

fn tree_of(connection: &Connection, owner: &str, id: &str) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT tree FROM turns WHERE owner = ?1 AND id = ?2";
    connection.prepare_cached(sql)?.query_row([owner, id], |row| row.get(0)).optional()
}

/// The turn `id` of `owner`.
///
/// # Errors
/// If the database fails.
pub fn one(connection: &Connection, owner: &str, id: &str) -> Result<Option<Turn>, StateError> {
    let sql = "SELECT id, previous, input, answer FROM turns WHERE owner = ?1 AND id = ?2";
    Ok(connection.prepare_cached(sql)?.query_row([owner, id], read).optional()?)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Turn> {
    Ok(Turn { id: row.get(0)?, previous: row.get(1)?, input: row.get(2)?, answer: row.get(3)? })
}

/// The turn `id` of `owner` after those that it continues, the first one first.
///
/// # Errors
/// If one of them is not stored, they are too many or too long, or the database fails.
pub fn up_to(connection: &Connection, owner: &str, id: &str) -> Result<Vec<Turn>, StateError> {
    let mut turns: Vec<Turn> = Vec::new();
    let mut next = Some(id.to_owned());
    let mut bytes = 0;
    let too_long = |limit| StateError::TooLong { id: id.to_owned(), limit };
    while let Some(wanted) = next.take() {
        if turns.len() == MAX_TURNS {
            return Err(too_long(format!("{MAX_TURNS} turns")));
        }
        let Some(turn) = one(connection, owner, &wanted)? else {
            return Err(match turns.is_empty() {
                true => StateError::Unknown(wanted),
                false => StateError::Broken { id: id.to_owned(), missing: wanted },
            });
        };
        bytes += (turn.input.len() + turn.answer.len()) as u64;
        if bytes > MAX_CONTEXT_BYTES {
            return Err(too_long(format!("{MAX_CONTEXT_BYTES} bytes")));
        }
        next.clone_from(&turn.previous);
        turns.push(turn);
    }
    turns.reverse();
    Ok(turns)
}

/// Deletes the turn `id` of `owner`, and its tree with its last turn. Returns whether there was one.
///
/// # Errors
/// If the database fails; the transaction must then be rolled back.
pub fn delete(connection: &Connection, owner: &str, id: &str) -> Result<bool, StateError> {
    let sql = "DELETE FROM turns WHERE owner = ?1 AND id = ?2 RETURNING tree, bytes";
    let deleted = connection
        .prepare_cached(sql)?
        .query_row([owner, id], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    let Some((tree, bytes)) = deleted else { return Ok(false) };
    room::count(connection, owner, -bytes)?;
    let sql = "DELETE FROM trees WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM turns WHERE tree = ?1)";
    connection.prepare_cached(sql)?.execute([tree])?;
    Ok(true)
}
