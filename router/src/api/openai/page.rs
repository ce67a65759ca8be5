//! A page of a list: `after`, `limit` and `order` in the query.

use serde_json::{Value, json};

use crate::api::http::query::{UrlQuery, wrong};
use crate::refusal::Refusal;

/// Which part of a list, newest first, is asked for.
pub struct Page {
    after: Option<String>,
    limit: usize,
    is_ascending: bool,
}

/// The page that `query` asks for, of `usual` entries unless the client asks for another number, at most
/// `most`.
///
/// # Errors
/// If a field is out of range.
pub fn page(mut query: UrlQuery, usual: usize, most: usize) -> Result<Page, Refusal> {
    let limit = match query.take("limit") {
        None => usual,
        Some(given) => given
            .parse()
            .ok()
            .filter(|limit| (1..=most).contains(limit))
            .ok_or_else(|| wrong("limit", &format!("a whole number from 1 to {most}"), &given))?,
    };
    let is_ascending = match query.take("order").as_deref() {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(other) => return Err(wrong("order", "\"asc\" or \"desc\"", other)),
    };
    Ok(Page { after: query.take("after"), limit, is_ascending })
}

impl Page {
    /// OpenAI's list object with this page of `all`, which are objects with an `id`, newest first.
    ///
    /// # Errors
    /// If `after` is none of them.
    pub fn of(&self, mut all: Vec<Value>) -> Result<Value, Refusal> {
        if self.is_ascending {
            all.reverse();
        }
        let start = match &self.after {
            None => 0,
            Some(after) => {
                1 + all
                    .iter()
                    .position(|entry| entry["id"] == **after)
                    .ok_or_else(|| wrong("after", "the id of an entry of this list", after))?
            }
        };
        let has_more = all.len() > start + self.limit;
        let data: Vec<Value> = all.drain(start..).take(self.limit).collect();
        let id = |entry: Option<&Value>| entry.map_or(Value::Null, |entry| entry["id"].clone());
        Ok(json!({
            "object": "list", "first_id": id(data.first()), "last_id": id(data.last()), "has_more": has_more,
            "data": data,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<String, String> {
        let uri = format!("/v1/files?{query}").parse().unwrap();
        let all = ["c", "b", "a"].map(|id| json!({"id": id})).to_vec();
        let list =
            UrlQuery::parse(&uri).and_then(|query| super::page(query, 2, 100)).and_then(|page| page.of(all));
        let list = list.map_err(|refusal| refusal.to_string())?;
        let ids: String =
            list["data"].as_array().unwrap().iter().filter_map(|it| it["id"].as_str()).collect();
        let edge = |name: &str| list[name].as_str().unwrap_or("-").to_owned();
        Ok(format!("{ids} {}{} {}", edge("first_id"), edge("last_id"), list["has_more"]))
    }

    #[test]
    fn a_page_is_what_the_query_asks_for() {
        for (query, expected) in [
            ("", "cb cb true"),
            ("limit=3", "cba ca false"),
            ("limit=1&after=c", "b bb true"),
            ("after=c&limit=2", "ba ba false"),
            ("after=a", " -- false"),
            ("order=asc", "ab ab true"),
            ("order=asc&after=b", "c cc false"),
            ("order=desc&limit=1&other=1", "c cc true"),
        ] {
            assert_eq!(page(query).as_deref(), Ok(expected), "{query}");
        }
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_its_name() {
        for (query, expected) in [
            ("limit=-1", "limit must be a whole number from 1 to 100, got \"-1\"."),
            ("limit=0", "limit must be a whole number from 1 to 100, got \"0\"."),
            ("limit=101", "limit must be a whole number from 1 to 100, got \"101\"."),
            ("limit=ten", "limit must be a whole number from 1 to 100, got \"ten\"."),
            (
                "limit=99999999999999999999",
                "limit must be a whole number from 1 to 100, got \"99999999999999999999\".",
            ),
            ("order=up", "order must be \"asc\" or \"desc\", got \"up\"."),
            ("after=x", "after must be the id of an entry of this list, got \"x\"."),
        ] {
            assert_eq!(page(query).unwrap_err(), expected, "{query}");
        }
    }
}
