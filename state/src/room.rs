//! Room in a store: the bytes of each owner, and which trees of turns are removed. When the store is full,
//! the owner with the most bytes loses the tree that was not used for the longest time, so no owner's turns
//! push out those of others who have less.

use rusqlite::{Connection, OptionalExtension, params};

use crate::error::StateError;

/// Trees of which no turn is still to be answered.
const ANSWERED: &str = "NOT EXISTS (SELECT 1 FROM turns WHERE tree = trees.number AND request IS NOT NULL)";

/// Adds `bytes`, which may be negative, to those of `owner`.
///
/// # Errors
/// If the database fails.
pub fn count(connection: &Connection, owner: &str, bytes: i64) -> Result<(), StateError> {
    let sql = "INSERT INTO owners (name, bytes) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET bytes = bytes + excluded.bytes";
    connection.prepare_cached(sql)?.execute(params![owner, bytes])?;
    let sql = "DELETE FROM owners WHERE name = ?1 AND bytes <= 0";
    connection.prepare_cached(sql)?.execute([owner])?;
    Ok(())
}

/// How many turns there are. Reads an index from end to end.
///
/// # Errors
/// If the database fails.
pub fn turns(connection: &Connection) -> Result<u64, StateError> {
    let turns: i64 = connection.query_row("SELECT count(*) FROM turns", [], |row| row.get(0))?;
    Ok(turns.max(0).unsigned_abs())
}

/// Bytes of all owners.
///
/// # Errors
/// If the database fails.
pub fn bytes(connection: &Connection) -> Result<u64, StateError> {
    let sql = "SELECT coalesce(sum(bytes), 0) FROM owners";
    let bytes: i64 = connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    Ok(bytes.max(0).unsigned_abs())
}

/// Removes trees until all turns have at most `limit` bytes; `kept` stays. Returns how many turns were
/// removed.
///
/// # Errors
/// If the owner with the most bytes has no other tree than `kept`, or the database fails.
pub fn make(connection: &Connection, limit: u64, kept: i64) -> Result<u64, StateError> {
    let mut removed = 0;
    loop {
        if bytes(connection)? <= limit {
            return Ok(removed);
        }
        let sql = "SELECT name, bytes FROM owners ORDER BY bytes DESC, name LIMIT 1";
        let (owner, bytes) = connection
            .prepare_cached(sql)?
            .query_row([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        let oldest = connection
            .prepare_cached(&format!(
                "SELECT number FROM trees WHERE owner = ?1 AND number != ?2 AND {ANSWERED} ORDER BY used, number LIMIT 1"
            ))?
            .query_row(params![owner, kept], |row| row.get::<_, i64>(0))
            .optional()?;
        let bytes = bytes.max(0).unsigned_abs();
        let Some(oldest) = oldest else { return Err(StateError::TooLarge { bytes, limit }) };
        removed += remove(connection, oldest)?;
    }
}

/// Removes at most `most` trees that were last used before `before`, in seconds since 1970. Returns how many
/// turns they had, and whether there may be more.
///
/// # Errors
/// If the database fails.
pub fn expire(connection: &Connection, before: i64, most: usize) -> Result<(u64, bool), StateError> {
    let sql = &format!("SELECT number FROM trees WHERE used < ?1 AND {ANSWERED} ORDER BY used LIMIT ?2");
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let trees: Vec<i64> = connection
        .prepare_cached(sql)?
        .query_map([before, limit], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let is_more = trees.len() == most;
    let removed = trees
        .into_iter()
        .try_fold(0, |removed, tree| remove(connection, tree).map(|turns| removed + turns))?;
    Ok((removed, is_more))
}

/// Removes a tree; returns how many turns it had.
fn remove(connection: &Connection, tree: i64) -> Result<u64, StateError> {
    let sql = "SELECT owner, coalesce(sum(bytes), 0) FROM turns WHERE tree = ?1 GROUP BY owner";
    let counted = connection
        .prepare_cached(sql)?
        .query_row([tree], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))
        .optional()?;
    if let Some((owner, bytes)) = counted {
        count(connection, &owner, -bytes)?;
    }
    let turns = connection.prepare_cached("DELETE FROM turns WHERE tree = ?1")?.execute([tree])?;
    connection.prepare_cached("DELETE FROM trees WHERE number = ?1")?.execute([tree])?;
    Ok(turns as u64)
}
