//! How the texts of a pair, a query and a document, become one prompt for a model that scores them: by the
//! tokenizer's pair encoding, by a chat template that knows the roles `query` and `document`, or in the form
//! in which the Qwen3 rerankers were trained. What the directory has decides, not the model's name.

use serde_json::{Value, json};

use crate::control::unused_mark;
use crate::model_text::{ChatPrompt, ModelText};
use crate::pair_form::PairForm;
use crate::pooled_ids::{PooledForm, PooledIds};
use crate::refused::TextRefused;

/// What Qwen3's rerankers judge by if the request says nothing else.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";
/// How often a document is cut further until its pair fits: a cut text may have a few tokens more.
const CUTS: usize = 8;

/// A query and a document.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The query.
    pub first: &'a str,
    /// The document.
    pub second: &'a str,
    /// What relevance means, for models that read it.
    pub instruction: Option<&'a str>,
}

impl ModelText {
    /// Ids of a pair in the form that the model reads. If there are more than `form.most`, its texts are cut;
    /// in a chat only the document is. `scope` is that of [kept ids](crate::kept_ids).
    ///
    /// # Errors
    /// If the form has no place for an instruction, the rest of a chat alone is too long, or the tokenizer or
    /// the template refuses the texts.
    pub fn encode_pair(
        &self,
        pair: Pair<'_>,
        form: PooledForm,
        scope: &str,
    ) -> Result<PooledIds, TextRefused> {
        if self.pair_form == PairForm::Tokenizer {
            if pair.instruction.is_some() {
                let message = "instruction is not read by this model; leave it out.";
                return Err(TextRefused::invalid("instruction", message));
            }
            return self.tokenizer.encode_pooled(pair.first, Some(pair.second), form);
        }
        let mut ids = self.chat_of(pair, scope)?;
        let Some(most) = form.most else { return Ok(PooledIds { ids, second_from: None }) };
        let mut room = self.tokenizer.encode(pair.second, false)?.len();
        for _ in 0..CUTS {
            let over = ids.len().saturating_sub(most);
            if over == 0 {
                return Ok(PooledIds { ids, second_from: None });
            }
            let Some(left) = room.checked_sub(over) else { break };
            room = left;
            let second = self.tokenizer.beginning(pair.second, room)?;
            ids = self.chat_of(Pair { second: &second, ..pair }, scope)?;
        }
        let message =
            format!("query: without the document the prompt has more than {most} tokens; shorten it.");
        Err(TextRefused::invalid("query", message))
    }

    fn chat_of(&self, pair: Pair<'_>, scope: &str) -> Result<Vec<u32>, TextRefused> {
        match self.pair_form {
            PairForm::Template => self.templated(pair, scope),
            PairForm::Judge | PairForm::Tokenizer => self.judged(pair, scope),
        }
    }

    fn templated(&self, pair: Pair<'_>, scope: &str) -> Result<Vec<u32>, TextRefused> {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages = vec![message("query", pair.first), message("document", pair.second)];
        let mut template_kwargs = self.pooled.template_kwargs.clone();
        let adds = template_kwargs.shift_remove("add_generation_prompt");
        let reads = |name: &str| self.chat_template.as_ref().is_some_and(|template| template.reads(name));
        match pair.instruction {
            None => {}
            Some(instruction) if reads("instruction") => {
                template_kwargs.insert("instruction".to_owned(), instruction.into());
            }
            // As sentence-transformers passes it.
            Some(instruction) if reads("system") => messages.insert(0, message("system", instruction)),
            Some(_) => {
                let message = "instruction is not read by this model's chat template; leave it out.";
                return Err(TextRefused::invalid("instruction", message));
            }
        }
        let prompt = ChatPrompt {
            messages: &messages,
            add_generation_prompt: adds == Some(true.into()),
            continue_final_message: false,
            template_kwargs: &template_kwargs,
            kept_in: Some(scope),
        };
        self.open_chat(&prompt, u32::MAX).map(|(ids, _)| ids)
    }

    /// The form of Qwen3's rerankers. Control tokens that a text spells stay text.
    fn judged(&self, pair: Pair<'_>, scope: &str) -> Result<Vec<u32>, TextRefused> {
        let Pair { first, second, instruction } = pair;
        let texts: Value = [first, second, instruction.unwrap_or(INSTRUCTION)].into_iter().collect();
        let mark = unused_mark(&[&texts]).ok_or_else(|| {
            TextRefused::invalid("query", "Texts must not contain all of the noncharacters U+FDD0 to U+FDDF.")
        })?;
        let texts = self.tokenizer.control().shield(&texts, mark);
        let [query, document, instruction] = [0, 1, 2].map(|at| texts[at].as_str().unwrap_or_default());
        let text = format!(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
             provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
             <Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n\
             <|im_start|>assistant\n<think>\n\n</think>\n\n"
        );
        self.tokenizer.encode_shielded(&text, mark, Some(scope))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pair_form::{THOUGHTS, TURNS};

    fn shipped() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/skein-7m/tokenizer.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// The shipped tokenizer with Qwen3's tokens for turns, without the one for a beginning.
    fn qwen() -> ModelText {
        let mut tree = shipped();
        tree["post_processor"] = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false});
        let added = tree["added_tokens"].as_array_mut().unwrap();
        let next = 100_000;
        for (at, token) in TURNS.iter().chain(&THOUGHTS).enumerate() {
            added.push(json!({"id": next + at, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": at < TURNS.len()}));
        }
        text(&tree, None)
    }

    fn text(tokenizer: &Value, template: Option<&str>) -> ModelText {
        let (names, template) = (vec![Arc::from("m")], template.map(str::to_owned));
        let json = tokenizer.to_string();
        ModelText::from_parts(names, json.as_bytes(), &Value::Null, template, &Value::Null).unwrap()
    }

    fn form(most: Option<usize>) -> PooledForm {
        PooledForm { add_special_tokens: true, most, keeps_end: false }
    }

    fn shown(text: &ModelText, pair: Pair<'_>, most: Option<usize>) -> Result<String, String> {
        let ids = text.encode_pair(pair, form(most), "").map_err(|refused| refused.to_string())?;
        assert_eq!(ids.second_from, None);
        assert!(most.is_none_or(|most| ids.ids.len() <= most));
        Ok(text.tokenizer.decode(&ids.ids, false).unwrap())
    }

    const PAIR: Pair<'_> = Pair { first: "why?", second: "because <|im_end|> it is", instruction: None };

    #[test]
    fn a_vocabulary_of_qwen3_without_a_template_for_pairs_has_them_judged() {
        let text = qwen();
        assert_eq!(text.pair_form, PairForm::Judge);
        let prompt = shown(&text, PAIR, None).unwrap();
        let begin = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
            Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
            <Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: why?\n\
            <Document>: because <|im_end|> it is<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert_eq!(prompt, begin);
        let ids = text.encode_pair(PAIR, form(None), "").unwrap().ids;
        let end = text.tokenizer.id("<|im_end|>").unwrap();
        assert_eq!(ids.iter().filter(|id| **id == end).count(), 2, "that of the document is text");
        let own = shown(&text, Pair { instruction: Some("find jokes"), ..PAIR }, None).unwrap();
        assert!(own.contains("<Instruct>: find jokes\n"), "{own}");
    }

    #[test]
    fn only_the_document_of_a_chat_is_cut() {
        let text = qwen();
        let long = "one two three four five six seven eight nine ten ".repeat(20);
        let pair = Pair { second: &long, ..PAIR };
        let whole = text.encode_pair(pair, form(None), "").unwrap().ids.len();
        let cut = shown(&text, pair, Some(whole - 50)).unwrap();
        assert!(cut.contains("<Query>: why?\n<Document>: one two three"), "{cut}");
        assert!(cut.ends_with("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"), "{cut}");
        let refused = shown(&text, pair, Some(20)).unwrap_err();
        assert!(refused.contains("more than 20 tokens"), "{refused}");
    }

    #[test]
    fn a_template_that_knows_queries_and_documents_writes_the_pair() {
        let template = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'query' %}Q {{ m.content }}{% else %}{% if \
            m.role == \"document\" %}D {{ m.content }}{% endif %}{% endif %}{% endfor %}";
        let text = text(&shipped(), Some(template));
        assert_eq!(text.pair_form, PairForm::Template);
        assert_eq!(shown(&text, PAIR, None).unwrap(), "[query]Q why?[document]D because <|im_end|> it is");
        let refused = shown(&text, Pair { instruction: Some("x"), ..PAIR }, None).unwrap_err();
        assert!(refused.contains("instruction is not read"), "{refused}");
        let with_system = self::text(
            &shipped(),
            Some(&template.replace("[{{", "[{% if m.role == 'system' %}S {{ m.content }}{% endif %}{{")),
        );
        let prompt = shown(&with_system, Pair { instruction: Some("x"), ..PAIR }, None).unwrap();
        assert!(prompt.starts_with("[S xsystem][query]Q why?"), "{prompt}");
    }

    #[test]
    fn every_other_tokenizer_encodes_pairs_itself() {
        let text = text(&shipped(), Some("{{ messages }} query document"));
        assert_eq!(text.pair_form, PairForm::Tokenizer);
        let refused = text.encode_pair(Pair { instruction: Some("x"), ..PAIR }, form(None), "").unwrap_err();
        assert_eq!(refused.param(), Some("instruction"));
    }
}
