//! Exchanges between ranks during a step, queued on its stream: embeddings, partial sums of products and of
//! adapters, outputs of experts, and logits. Every value is gathered from all ranks and then selected or
//! added in rank order, so all ranks have the same bits as a single rank.
//!
//! NCCL gathers. If the ranks reach each other's memory, partial sums go through it instead, in one launch
//! with the sum and, where the model allows, the residual addition and norm that follow; see [`Form`].

use std::sync::Arc;

use skein_kernels::cuda::memory::Element;
use skein_kernels::cuda::ops::Activation;
use skein_kernels::cuda::ops::ranks::{
    EmbedChosen, EmbedPart, JoinLogits, JoinSums, RankKernels, Vocabulary,
};
use skein_kernels::cuda::ops::reduce::{OwnSums, PeerReduce, ThenNorm};
use skein_kernels::cuda::ops::rope::RowSquares;
use skein_kernels::cuda::peer::{Peers, Protocol};
use skein_kernels::cuda::{Communicator, CudaError, DeviceSlice, Kernels, Stream};

use crate::shard::Shard;
use crate::spec::{NormKind, Spec};

/// Kernel launches and exchanges of a shared product besides the product itself.
pub(super) const LAUNCHES_OF_A_SUM: usize = 2;

/// A rank's exchanges. The argument `memory` of all methods must have [`Exchange::bytes`] bytes.
pub struct Exchange<T> {
    communicator: Arc<Communicator>,
    kernels: RankKernels<T>,
    vocabulary: Vocabulary,
    /// Consecutive ranks that have the same KV heads.
    sharers: usize,
    /// Sums through the ranks' memory, if they reach it.
    through_memory: Option<ThroughMemory<T>>,
}

/// What one launch does with sums that go through the ranks' memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// It adds the rounded sums to the residual stream and normalises that.
    Norm,
    /// It writes the rounded sums. For models that normalise outputs, that add two outputs at once, or whose
    /// norm is not by the root mean square.
    Sum,
}

impl Form {
    fn of(spec: &Spec) -> Self {
        let is_plain = !spec.norm.place.has_outputs() && !spec.is_parallel;
        if is_plain && spec.norm.kind == NormKind::Rms { Self::Norm } else { Self::Sum }
    }
}

struct ThroughMemory<T> {
    peers: Arc<Peers>,
    kernels: PeerReduce<T>,
    form: Form,
}

/// This rank's sums of a product whose inputs are split over ranks, for the next norm to exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unjoined<T> {
    own: OwnSums<T>,
    protocol: Protocol,
}

/// An embedding lookup.
#[derive(Clone, Copy)]
pub(super) struct Lookup<T> {
    pub table: DeviceSlice<T>,
    pub tokens: DeviceSlice<u32>,
    pub rows: usize,
    pub hidden: usize,
    pub scale: f32,
    pub out: DeviceSlice<f32>,
}

/// Result of a product whose inputs are split over ranks.
#[derive(Clone, Copy)]
pub(super) struct Sum<T> {
    pub bias: DeviceSlice<T>,
    pub rows: usize,
    pub n: usize,
    pub out: DeviceSlice<T>,
}

/// The largest step that is exchanged.
#[derive(Debug, Clone, Copy)]
pub struct LargestStep {
    /// Its rows.
    pub rows: usize,
    /// Those of them with logits.
    pub logit_rows: usize,
    /// Most components of an adapter.
    pub components: usize,
}

impl<T: Activation> Exchange<T> {
    /// Exchanges of the rank of `shard`, whose model is `spec`, over `communicator` and through `peers`.
    ///
    /// # Errors
    /// If a kernel is missing.
    pub fn new(
        kernels: &Kernels,
        communicator: Arc<Communicator>,
        peers: Option<Arc<Peers>>,
        spec: &Spec,
        shard: &Shard,
    ) -> Result<Self, CudaError> {
        let size = shard.vocabulary_of(shard.ranks - 1).end;
        let vocabulary = Vocabulary { size, each: shard.widest_vocabulary() };
        let sharers = shard.ranks * shard.kv_heads.len() / shard.all_kv_heads;
        let through_memory = match peers {
            Some(peers) => {
                Some(ThroughMemory { peers, kernels: PeerReduce::new(kernels)?, form: Form::of(spec) })
            }
            None => None,
        };
        Ok(Self { communicator, kernels: RankKernels::new(kernels)?, vocabulary, sharers, through_memory })
    }

    /// Bytes of memory for steps of up to `most`; 0 on a single rank.
    pub fn bytes(spec: &Spec, shard: &Shard, most: LargestStep) -> usize {
        let LargestStep { rows, logit_rows, components } = most;
        if shard.ranks == 1 {
            return 0;
        }
        let (sums, logits) = (rows * spec.hidden_size, logit_rows * shard.widest_vocabulary());
        let squares = rows * (shard.heads.len() + shard.kv_heads.len());
        let of_experts = rows * spec.experts().1 * spec.hidden_size * size_of::<T>();
        let values = sums.max(logits).max(squares).max(rows * components);
        shard.ranks * (values * size_of::<f32>()).max(of_experts)
    }

    /// Memory of this rank's `len` values, and of all ranks' values, which contains the former.
    fn places<E: Element>(&self, memory: DeviceSlice<u8>, len: usize) -> (DeviceSlice<E>, DeviceSlice<E>) {
        let all = memory.slice(0..self.communicator.ranks() * len * size_of::<E>()).cast::<E>();
        let rank = self.communicator.rank();
        (all.slice(rank * len..(rank + 1) * len), all)
    }

    /// Queues the lookup of rows, each from the rank that holds it.
    pub(super) fn embed(
        &self,
        stream: &Stream,
        memory: DeviceSlice<u8>,
        lookup: Lookup<T>,
    ) -> Result<(), CudaError> {
        let Lookup { table, tokens, rows, hidden, scale, out } = lookup;
        let (vocabulary, rank) = (self.vocabulary, self.communicator.rank());
        let (own, all) = self.places::<T>(memory, rows * hidden);
        let part = EmbedPart { out: own, table, tokens, rows, hidden, vocabulary, rank };
        self.kernels.embed_part(stream, part)?;
        self.communicator.gather(stream, own, all)?;
        let chosen = EmbedChosen { out, all, tokens, rows, hidden, vocabulary, scale };
        self.kernels.embed_chosen(stream, chosen)
    }

    /// Queues a product whose inputs are split over ranks: `compute` writes the sums over this rank's leaves.
    /// The ranks' sums are added as a tree, then the bias is added.
    pub(super) fn sum(
        &self,
        stream: &Stream,
        memory: DeviceSlice<u8>,
        sum: Sum<T>,
        compute: impl FnOnce(DeviceSlice<f32>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let Sum { bias, rows, n, out } = sum;
        let (own, sums) = self.places(memory, rows * n);
        compute(own)?;
        if let Some(ThroughMemory { peers, kernels, .. }) = &self.through_memory
            && let Some(protocol) = peers.protocol(rows, n)
        {
            return kernels.sum(stream, peers, protocol, OwnSums { sums: own, bias, rows, n }, out);
        }
        self.communicator.gather(stream, own, sums)?;
        let ranks = self.communicator.ranks();
        self.kernels.join_sums(stream, JoinSums { out, sums, bias, ranks, rows, n })
    }

    /// Queues only the computation of this rank's sums, if the norm that follows can exchange them. Nothing
    /// else may be exchanged before [`Self::join_and_normalise`].
    pub(super) fn sum_later(
        &self,
        memory: DeviceSlice<u8>,
        sum: Sum<T>,
        compute: impl FnOnce(DeviceSlice<f32>) -> Result<(), CudaError>,
    ) -> Result<Option<Unjoined<T>>, CudaError> {
        let Sum { bias, rows, n, .. } = sum;
        let through = self.through_memory.as_ref().filter(|through| through.form == Form::Norm);
        let Some(protocol) = through.and_then(|through| through.peers.protocol(rows, n)) else {
            return Ok(None);
        };
        let sums = self.places(memory, rows * n).0;
        compute(sums)?;
        Ok(Some(Unjoined { own: OwnSums { sums, bias, rows, n }, protocol }))
    }

    /// Queues the exchange of sums, their addition to the residual stream and its norm.
    pub(super) fn join_and_normalise(
        &self,
        stream: &Stream,
        unjoined: Unjoined<T>,
        then: ThenNorm<T>,
    ) -> Result<(), CudaError> {
        let Some(ThroughMemory { peers, kernels, .. }) = &self.through_memory else {
            unreachable!("only sums that go through memory wait for a norm")
        };
        kernels.sum_and_normalise(stream, peers, unjoined.protocol, unjoined.own, then)
    }

    /// Queues the exchange of sums of squares, `len` of which `compute` writes on each rank: `[rows, heads +
    /// kv_heads]`.
    pub(super) fn squares(
        &self,
        stream: &Stream,
        memory: DeviceSlice<u8>,
        len: usize,
        compute: impl FnOnce(DeviceSlice<f32>) -> Result<(), CudaError>,
    ) -> Result<RowSquares, CudaError> {
        let (own, sums) = self.places(memory, len);
        compute(own)?;
        self.communicator.gather(stream, own, sums)?;
        Ok(RowSquares { sums, ranks: self.communicator.ranks(), sharers: self.sharers })
    }

    /// Queues the exchange of an adapter's inner sums, `len` of which `compute` writes on each rank. Returns
    /// those of all ranks, in rank order, and the number of ranks.
    pub(super) fn components(
        &self,
        stream: &Stream,
        memory: DeviceSlice<u8>,
        len: usize,
        compute: impl FnOnce(DeviceSlice<f32>) -> Result<(), CudaError>,
    ) -> Result<(DeviceSlice<f32>, usize), CudaError> {
        let (own, all) = self.places(memory, len);
        compute(own)?;
        self.communicator.gather(stream, own, all)?;
        Ok((all, self.communicator.ranks()))
    }

    /// Queues the exchange of the outputs of experts, `len` values: `compute` writes those of this rank's
    /// experts. Returns the outputs of all ranks, in rank order; each is only that of its own experts.
    ///
    /// Which pairs are whose is only known on the device, so ranks send the places of all pairs.
    pub(super) fn experts(
        &self,
        stream: &Stream,
        memory: DeviceSlice<u8>,
        len: usize,
        compute: impl FnOnce(DeviceSlice<T>) -> Result<(), CudaError>,
    ) -> Result<DeviceSlice<T>, CudaError> {
        let (own, all) = self.places(memory, len);
        compute(own)?;
        self.communicator.gather(stream, own, all)?;
        Ok(all)
    }

    /// Queues logits `[rows, vocabulary]`: `compute` writes `[rows, this rank's part]`.
    pub(super) fn logits(
        &self,
        stream: &Stream,
        memory: DeviceSlice<u8>,
        out: DeviceSlice<f32>,
        rows: usize,
        compute: impl FnOnce(DeviceSlice<f32>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let (own, all) = self.places(memory, rows * self.vocabulary.each);
        compute(own)?;
        self.communicator.gather(stream, own, all)?;
        self.kernels.join_logits(stream, JoinLogits { out, all, rows, vocabulary: self.vocabulary })
    }

    /// Memory of `len` values, for products whose result is not needed.
    pub(super) fn scratch(&self, memory: DeviceSlice<u8>, len: usize) -> DeviceSlice<f32> {
        self.places(memory, len).0
    }
}
