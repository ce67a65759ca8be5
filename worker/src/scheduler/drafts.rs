//! Speculative drafts: tokens proposed before they are drawn. A right one saves a step and a wrong one costs
//! a row; no output token depends on them. The scheduler does not know how they are made.

use crate::TokenId;

/// Appends to the list at most that many vocabulary tokens that may follow the given ones.
pub type Propose = Box<dyn FnMut(&[TokenId], usize, &mut Vec<TokenId>) + Send>;

/// The proposer and the maximum length of a draft.
pub struct Drafts {
    propose: Propose,
    most: u32,
    /// The latest draft; its allocation is reused.
    draft: Vec<TokenId>,
}

impl std::fmt::Debug for Drafts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drafts").field("most", &self.most).finish_non_exhaustive()
    }
}

impl Drafts {
    /// Drafts of at most `most` tokens each.
    pub fn new(most: u32, propose: Propose) -> Self {
        Self { propose, most, draft: Vec::with_capacity(most as usize) }
    }

    /// Makes a draft after `tokens`, of at most `most` tokens, and returns its length.
    pub(super) fn make(&mut self, tokens: &[TokenId], most: u32) -> u32 {
        let most = self.most.min(most) as usize;
        self.draft.clear();
        if most > 0 {
            (self.propose)(tokens, most, &mut self.draft);
            self.draft.truncate(most);
        }
        self.draft.len() as u32
    }

    /// The first `len` tokens of the latest draft.
    pub(super) fn latest(&self, len: u32) -> &[TokenId] {
        &self.draft[..len as usize]
    }
}
