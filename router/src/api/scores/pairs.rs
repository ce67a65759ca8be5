//! One score for each pair of texts: what a model for scores gives for the pair, or the cosine of two
//! embeddings.

use std::sync::Arc;

use skein_proto::pooling::{Activation, PooledKind};

use crate::api::fields::{pooled, prompt_name};
use crate::app::App;
use crate::pooled::draft::{PairInput, PooledDraft, PooledInput};
use crate::pooled::run::PooledCall;
use crate::pooled::{refused, values};
use crate::refusal::Refusal;
use crate::request::Prompt;

/// Pairs to score.
#[derive(Debug, Clone)]
pub struct Pairs {
    /// The queries: one for all documents, or as many as these.
    pub first: Vec<Arc<str>>,
    /// The documents, at least one.
    pub second: Vec<Arc<str>>,
    /// What relevance means, for models that read it.
    pub instruction: Option<Arc<str>>,
    /// Most tokens of a document; `None` = all.
    pub most_of_second: Option<usize>,
    /// Whether logits are activated; `None` = they are.
    pub is_activated: Option<bool>,
}

/// Scores of a call.
#[derive(Debug)]
pub struct Scored {
    /// Id of the call.
    pub id: Arc<str>,
    /// Name that answers show.
    pub model: Arc<str>,
    /// One for each document.
    pub scores: Vec<f32>,
    /// Tokens that were read.
    pub tokens: u64,
}

impl Pairs {
    /// Scores the pairs with what `draft` says beside its inputs.
    ///
    /// # Errors
    /// If the model generates or has several scores, or the call is refused.
    pub async fn scored(mut self, app: &App, mut draft: PooledDraft) -> Result<Scored, Refusal> {
        let model = app.pooled_model()?;
        if let Some(most) = self.most_of_second {
            self.second = beginnings(app, self.second, most).await?;
        }
        match model.kind {
            PooledKind::Embedding { .. } => self.cosines(app, draft).await,
            PooledKind::Scores(_) if model.width != 1 => Err(refused::classifies(&app.text.name(), &model)),
            PooledKind::Scores(activation) => {
                draft.inputs = self.inputs();
                pooled::prepare(&mut draft.inputs, "", &app.text.pooled);
                let activation =
                    if self.is_activated == Some(false) { Activation::Identity } else { activation };
                let call = app.pool(draft).await?;
                let tokens = call.tokens();
                let PooledCall { id, model, vectors, .. } = call;
                let score = |logits| values::scores(logits, activation)[0];
                Ok(Scored { id, model, scores: vectors.into_iter().map(score).collect(), tokens })
            }
        }
    }

    fn inputs(&self) -> Vec<PooledInput> {
        let pair = |(at, second): (usize, &Arc<str>)| {
            let (first, second) = (self.query(at).clone(), second.clone());
            PooledInput::Pair(PairInput { first, second, instruction: self.instruction.clone() })
        };
        self.second.iter().enumerate().map(pair).collect()
    }

    /// The query of the document at position `at`.
    fn query(&self, at: usize) -> &Arc<str> {
        &self.first[if self.first.len() == 1 { 0 } else { at }]
    }

    async fn cosines(self, app: &App, mut draft: PooledDraft) -> Result<Scored, Refusal> {
        if self.instruction.is_some() {
            let message =
                "instruction is read by models for reranking; this one gives embeddings: leave it out.";
            return Err(Refusal::invalid("instruction", message));
        }
        let text = &app.text.pooled;
        let inputs = |texts: &[Arc<str>], meaning| {
            let one = |text: &Arc<str>| PooledInput::One(Prompt::Text(text.to_string()));
            let mut inputs: Vec<PooledInput> = texts.iter().map(one).collect();
            pooled::prepare(&mut inputs, prompt_name::of_meaning(meaning, text), text);
            inputs
        };
        draft.inputs = inputs(&self.first, "query");
        draft.inputs.extend(inputs(&self.second, "document"));
        let call = app.pool(draft).await?;
        let tokens = call.tokens();
        let (first, second) = call.vectors.split_at(self.first.len());
        let score = |(at, vector): (usize, &Vec<f32>)| {
            values::cosine(if first.len() == 1 { &first[0] } else { &first[at] }, vector)
        };
        let scores = second.iter().enumerate().map(score).collect();
        Ok(Scored { id: call.id, model: call.model, scores, tokens })
    }
}

/// The beginning of each text.
async fn beginnings(app: &App, texts: Vec<Arc<str>>, most: usize) -> Result<Vec<Arc<str>>, Refusal> {
    let bytes = texts.iter().map(|text| text.len()).sum();
    let text = app.text.clone();
    let work = move || {
        let beginning = |one: &Arc<str>| Ok(Arc::from(text.tokenizer.beginning(one, most)?));
        texts.iter().map(beginning).collect()
    };
    app.text_work(bytes, work).await
}
