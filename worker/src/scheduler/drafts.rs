//! Drafts: tokens that a sequence may go on with, proposed before they are drawn. A right one saves a step, a wrong one costs
//! a row; no token depends on them. Where they come from is none of the scheduler's business.

use crate::TokenId;

/// Proposes what may follow the tokens of a sequence: at most so many tokens of the vocabulary, appended to the list.
pub type Propose = Box<dyn FnMut(&[TokenId], usize, &mut Vec<TokenId>) + Send>;

/// Where drafts come from, and how long they are.
pub struct Drafts {
    propose: Propose,
    most: u32,
    /// The latest draft; kept for its memory.
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

    /// Makes the draft after `tokens`, of at most `most` tokens; how many they are.
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
