//! Runs a call: its texts become requests, a bounded number of which are in flight. The first failure ends
//! the others.

use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt};
use skein_choice::limits::ModelLimits;
use skein_node::clock;
use skein_node::trace;
use skein_proto::finish::FinishReason;
use skein_proto::pooling::PooledModel;

use super::draft::{PooledDraft, PooledInput};
use super::refused;
use crate::app::App;
use crate::drain::Lease;
use crate::generator::Generator;
use crate::refusal::Refusal;
use crate::request::TokenRequest;
use crate::validate::pooled::{CheckedCall, check_call, request_of};

/// Most requests of one call in flight: enough to fill a worker's steps with short texts.
const MAX_IN_FLIGHT: usize = 128;
/// A call takes at most one in so many of the requests that the queue still has room for.
const SHARE_OF_QUEUE: usize = 4;
/// Bytes of text that one thread tokenises of a call; further ones go to other threads.
const PIECE_BYTES: usize = 64 * 1024;

/// A call's vectors.
#[derive(Debug)]
pub struct PooledCall {
    /// Id of the call.
    pub id: Arc<str>,
    /// Name that answers show.
    pub model: Arc<str>,
    /// The model's vectors, one for each input, as the worker sent them.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of each input.
    pub prompt_tokens: Vec<u32>,
}

impl PooledCall {
    /// Tokens of all inputs.
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens.iter().map(|tokens| u64::from(*tokens)).sum()
    }
}

impl App {
    /// What the model's vectors are.
    ///
    /// # Errors
    /// If it generates instead, or no worker was ever ready.
    pub fn pooled_model(&self) -> Result<Arc<PooledModel>, Refusal> {
        self.fleet.pooled()?.ok_or_else(|| refused::generates(&self.text.name()))
    }

    /// Vectors of a call's inputs.
    ///
    /// # Errors
    /// The first refusal of the call, of one of its inputs, or of a worker.
    pub async fn pool(&self, draft: PooledDraft) -> Result<PooledCall, Refusal> {
        let id = draft.request_id.clone().unwrap_or_default();
        let prepared = self.prepared_inputs(draft).await.inspect_err(|refusal| {
            self.metrics.refused(refusal);
            refusal.trace(&trace::current());
            refusal.log(&id);
        });
        let (lease, id, width, requests) = prepared?;
        let model =
            requests.first().map_or_else(|| self.text.name(), |request| request.shown_model().clone());
        let prompt_tokens = requests.iter().map(|request| request.prompt.len());
        let prompt_tokens = prompt_tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)).collect();
        let at_once = self.at_once(&requests);
        let vectors = run(&self.generator, requests, at_once, width, lease).await;
        let vectors = vectors.inspect_err(|refusal| refusal.log(&id))?;
        Ok(PooledCall { id, model, vectors, prompt_tokens })
    }

    /// Requests in flight at once: never more than the key allows, nor than a quarter of what is left of the
    /// queue, so that a few calls do not fill it for all others.
    fn at_once(&self, requests: &[TokenRequest]) -> usize {
        let most = self.config.admission.max_num_queued_reqs;
        let left = most.saturating_sub(self.fleet.running().requests);
        let queue = usize::try_from(left).unwrap_or(usize::MAX) / SHARE_OF_QUEUE;
        let key = requests.first().and_then(|request| request.tenant.key()?.most_at_once());
        let key = key.map_or(usize::MAX, |most| most as usize);
        MAX_IN_FLIGHT.min(queue).min(key).max(1)
    }

    async fn prepared_inputs(
        &self,
        mut draft: PooledDraft,
    ) -> Result<(Lease, Arc<str>, usize, Vec<TokenRequest>), Refusal> {
        let lease = self.drain.enter()?;
        let (limits, pooled) = (self.fleet.model_limits()?, self.pooled_model()?);
        let inputs = std::mem::take(&mut draft.inputs);
        let (adapters, now) = (self.adapters.known(), clock::now());
        let call = check_call(draft, inputs.len(), &self.text, &adapters, &self.config.limits, &pooled, now)?;
        let (call, trace, receipts) = (Arc::new(call), trace::current(), self.receipts());
        let pieces = pieces(inputs).into_iter().map(|piece| self.tokenized(piece, &call, limits));
        // In the order of the inputs; each piece runs on a thread of its own if it is long.
        let pieces = futures::future::try_join_all(pieces).await?;
        let complete = |request: TokenRequest| TokenRequest {
            arrived: Some(now),
            trace: trace.clone(),
            receipts: receipts.clone(),
            ..request
        };
        let requests = pieces.into_iter().flatten().map(complete).collect();
        Ok((lease, call.id.clone(), pooled.width as usize, requests))
    }

    async fn tokenized(
        &self,
        piece: Vec<(usize, PooledInput)>,
        call: &Arc<CheckedCall>,
        limits: ModelLimits,
    ) -> Result<Vec<TokenRequest>, Refusal> {
        let bytes = piece.iter().map(|(_, input)| input.bytes()).sum();
        let (app, call) = (self.clone(), call.clone());
        let work = move || {
            piece.into_iter().map(|(at, input)| request_of(at, &input, &call, &app.text, &limits)).collect()
        };
        self.text_work(bytes, work).await
    }
}

/// The inputs with their positions, in pieces of about [`PIECE_BYTES`].
fn pieces(inputs: Vec<PooledInput>) -> Vec<Vec<(usize, PooledInput)>> {
    let mut pieces = Vec::new();
    let (mut piece, mut bytes) = (Vec::new(), 0_usize);
    for (at, input) in inputs.into_iter().enumerate() {
        bytes += input.bytes();
        piece.push((at, input));
        if bytes >= PIECE_BYTES {
            pieces.push(std::mem::take(&mut piece));
            bytes = 0;
        }
    }
    pieces.extend((!piece.is_empty()).then_some(piece));
    pieces
}

/// The vectors of `requests`, at most `at_once` of which are in flight.
async fn run(
    generator: &Arc<dyn Generator>,
    requests: Vec<TokenRequest>,
    at_once: usize,
    width: usize,
    lease: Lease,
) -> Result<Vec<Vec<f32>>, Refusal> {
    let mut vectors = vec![Vec::new(); requests.len()];
    let mut waiting = requests.into_iter().enumerate();
    let one = async |(at, request)| vector(generator, request, width).await.map(|vector| (at, vector));
    let mut running: FuturesUnordered<_> = waiting.by_ref().take(at_once).map(&one).collect();
    let all = async {
        while let Some((at, vector)) = running.try_next().await? {
            vectors[at] = vector;
            running.extend(waiting.next().map(&one));
        }
        Ok::<_, Refusal>(())
    };
    tokio::select! {
        biased;
        done = all => done?,
        () = lease.ended() => return Err(Refusal::Draining),
    }
    Ok(vectors)
}

/// The vector of one request.
async fn vector(
    generator: &Arc<dyn Generator>,
    request: TokenRequest,
    width: usize,
) -> Result<Vec<f32>, Refusal> {
    let id = request.id.clone();
    let mut source = generator.submit(request).await?;
    let mut vector = Vec::new();
    // To its end, so that the request counts as completed.
    while let Some(delta) = source.next().await {
        let delta = delta?;
        match delta.finish {
            Some(FinishReason::Stop(_)) => vector = delta.pooled,
            Some(FinishReason::Abort) => return Err(refused::aborted()),
            _ => {}
        }
    }
    if vector.len() != width {
        tracing::error!(request = &*id, got = vector.len(), width, "a vector of another width");
        return Err(Refusal::Internal);
    }
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Prompt;

    #[test]
    fn long_texts_are_tokenised_apart_and_short_ones_together() {
        let text = |bytes: usize| PooledInput::One(Prompt::Text("x".repeat(bytes)));
        let sizes = |inputs: Vec<PooledInput>| {
            let pieces = pieces(inputs);
            let order: Vec<usize> = pieces.iter().flatten().map(|(at, _)| *at).collect();
            assert!(order.is_sorted());
            pieces.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(vec![text(10), text(10), text(10)]), [3]);
        assert_eq!(sizes(vec![text(PIECE_BYTES), text(1), text(PIECE_BYTES), text(2)]), [1, 2, 1]);
        assert_eq!(sizes(Vec::new()), [0_usize; 0]);
    }
}
