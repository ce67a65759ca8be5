//! What an agent must know of a server.

use serde_json::Value;

use crate::cluster_view::server::Server;
use crate::exit::{Failure, USAGE};

/// A server and one of its models.
#[derive(Debug, Clone)]
pub struct Served {
    /// Address without a path.
    pub base_url: String,
    /// The server's key; `None` = it needs none.
    pub api_key: Option<String>,
    /// Name of the model.
    pub model: String,
    /// Longest prompt and answer together, tokens; `None` if the server does not say.
    pub max_model_len: Option<u32>,
}

impl Served {
    /// Asks `server` for the model of this name, or the first that it lists.
    ///
    /// # Errors
    /// If the server does not answer, or has no such model.
    pub async fn ask(
        server: &Server,
        model: Option<&String>,
        api_key: Option<String>,
    ) -> Result<Self, Failure> {
        let failed = |why: String| Failure::other(format!("{}: {why}", server.base_url));
        let answer = server.get("/v1/models").await.map_err(failed)?;
        let answer = answer.json().await.map_err(|error| failed(error.to_string()))?;
        let (model, max_model_len) = chosen(&answer, model)?;
        check_generates(server, &model).await?;
        Ok(Self { base_url: server.base_url.clone(), api_key, model, max_model_len })
    }

    /// The key, or a word for programs that insist on one.
    pub fn key(&self) -> &str {
        self.api_key.as_deref().unwrap_or("unused")
    }

    /// Address of OpenAI's API.
    pub fn openai_url(&self) -> String {
        format!("{}/v1", self.base_url)
    }

    /// Most tokens of an answer to ask for: an eighth of the context.
    pub fn answer_tokens(&self) -> Option<u32> {
        self.max_model_len.map(|tokens| tokens / 8)
    }
}

/// Refuses a model that is known to generate no text. Other servers may not say it.
async fn check_generates(server: &Server, model: &str) -> Result<(), Failure> {
    let asked = serde_json::json!({"model": model});
    let Ok(answer) = server.post("/api/show", &asked).await else { return Ok(()) };
    let Ok(answer) = answer.json().await else { return Ok(()) };
    let able = answer["capabilities"].as_array();
    if able.is_none_or(|able| able.iter().any(|one| one == "completion")) {
        return Ok(());
    }
    Err(Failure::other(format!(
        "{model} gives vectors or scores of texts and generates none; an agent needs a model that does"
    )))
}

/// Name and context of the wanted model in a list of models.
fn chosen(list: &Value, wanted: Option<&String>) -> Result<(String, Option<u32>), Failure> {
    let models = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |model: &Value| model["id"].as_str().unwrap_or_default().to_owned();
    let found = match wanted {
        Some(wanted) => models.iter().find(|model| model["id"].as_str() == Some(wanted)),
        None => models.first(),
    };
    let Some(found) = found else {
        let names: Vec<String> = models.iter().map(name).collect();
        let said = wanted.map_or("the server lists no model".into(), |wanted| {
            format!("the server has no model {wanted}; it has {}", names.join(", "))
        });
        return Err(Failure::new(USAGE, said));
    };
    let tokens = found["max_model_len"].as_u64().and_then(|tokens| u32::try_from(tokens).ok());
    Ok((name(found), tokens))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_model_is_taken_unless_one_is_named() {
        let list = json!({"data": [{"id": "a", "max_model_len": 4096}, {"id": "b"}]});
        assert_eq!(chosen(&list, None), Ok(("a".into(), Some(4096))));
        assert_eq!(chosen(&list, Some(&"b".into())), Ok(("b".into(), None)));
        let missing = chosen(&list, Some(&"c".into())).expect_err("there is none");
        assert_eq!(missing.message, "the server has no model c; it has a, b");
        assert!(chosen(&json!({"error": {}}), None).is_err());
    }
}
