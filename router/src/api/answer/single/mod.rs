//! An answer with one choice, part by part as it arrives. Responses and Messages are built on it: [`request`]
//! contains the common parts of their requests, [`output`] runs a request and writes its answer.

pub mod output;
pub mod request;

use skein_proto::logprobs::TokenLogprobs;
use skein_text::formats::Piece;

use super::call_stream::CallStream;
use super::choices::{CallIds, Choices};
use crate::app::App;
use crate::metrics::ParserCounts;
use crate::refusal::Refusal;
use crate::request::Draft;
use crate::request::tenant::Tenant;
use crate::text::text_stream::{TextFinish, Usage};

/// Stream of a running answer. Dropping it cancels the request.
pub struct Single {
    merged: CallStream,
    split: Choices,
    ids: CallIds,
}

/// Pieces that have arrived since the last part.
#[derive(Debug, Default)]
pub struct Part {
    /// New pieces, in order.
    pub pieces: Vec<Piece>,
    /// Log-probabilities of the new tokens, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Set in the last part.
    pub finish: Option<TextFinish>,
}

impl Single {
    /// Starts `draft` and waits briefly for its first token, so that an early refusal is sent as a status.
    pub async fn start(
        app: &App,
        tenant: &Tenant,
        draft: Draft,
        include_reasoning: bool,
        counts: ParserCounts,
    ) -> Result<Self, Refusal> {
        let mut merged = CallStream::start(app, tenant, vec![draft]).await?;
        merged.wait_for_first().await?;
        let prompt = merged.prompts().first().ok_or(Refusal::Internal)?;
        let plan = prompt.split.as_ref();
        let split = Choices::new(plan, 1, include_reasoning).counted(plan, || counts);
        let ids = CallIds::new(&prompt.request, prompt.split.as_ref());
        Ok(Self { merged, split, ids })
    }

    /// Next part; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Part, Refusal>> {
        let delta = match self.merged.next().await? {
            Ok((_, delta)) => delta,
            Err(refusal) => return Some(Err(refusal)),
        };
        let mut pieces = self.split.push(0, delta.text, &delta.control_at);
        if delta.finish.is_some() {
            pieces.extend(self.split.finish(0));
        }
        Some(Ok(Part { pieces, logprobs: delta.logprobs, finish: delta.finish }))
    }

    /// Id of the call at `index`.
    pub fn call_id(&self, index: u32, name: &str) -> String {
        self.ids.id(0, index, name)
    }

    /// Token counts so far.
    pub fn usage(&self) -> Usage {
        self.merged.usage()
    }
}
