//! A tree of words: one hash lookup per word of the key, independent of the size of the tree.
//!
//! Both hosts and paths are looked up in such a tree. The module must not know what the words mean.

use rustc_hash::FxHashMap;

/// A tree with a `T` at each node; node 0 is the root.
#[derive(Clone, Debug)]
pub(super) struct WordTrie<T> {
    nodes: Vec<TrieNode<T>>,
}

#[derive(Clone, Debug)]
struct TrieNode<T> {
    children: FxHashMap<Box<[u8]>, usize>,
    /// Index of the parent; the root is its own parent.
    parent: usize,
    value: T,
}

/// A position in a tree: the node that a key leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct TriePosition {
    node: usize,
    /// True if every word of the key was found.
    pub(super) is_exact: bool,
}

impl<T: Default> Default for WordTrie<T> {
    fn default() -> Self {
        Self { nodes: vec![TrieNode::with_parent(0)] }
    }
}

impl<T: Default> TrieNode<T> {
    fn with_parent(parent: usize) -> Self {
        Self { children: FxHashMap::default(), parent, value: T::default() }
    }
}

impl<T: Default> WordTrie<T> {
    /// Returns the value at the node that `words` lead to, and creates the node if there is none.
    pub(super) fn entry<'a>(&mut self, words: impl Iterator<Item = &'a [u8]>) -> &mut T {
        let mut node = 0;
        for word in words {
            node = self.child(node, word);
        }
        &mut self.nodes[node].value
    }

    fn child(&mut self, parent: usize, word: &[u8]) -> usize {
        if let Some(&child) = self.nodes[parent].children.get(word) {
            return child;
        }
        let child = self.nodes.len();
        self.nodes.push(TrieNode::with_parent(parent));
        self.nodes[parent].children.insert(word.into(), child);
        child
    }
}

impl<T> WordTrie<T> {
    /// Follows `words` from the root as far as the tree contains them.
    pub(super) fn descend<'a>(&self, words: impl Iterator<Item = &'a [u8]>) -> TriePosition {
        let mut node = 0;
        for word in words {
            count_lookup();
            let Some(&child) = self.nodes[node].children.get(word) else {
                return TriePosition { node, is_exact: false };
            };
            node = child;
        }
        TriePosition { node, is_exact: true }
    }

    /// Returns the value at a position.
    pub(super) fn value(&self, at: TriePosition) -> &T {
        &self.nodes[at.node].value
    }

    /// Returns the values below a position, in no particular order.
    pub(super) fn descendants(&self, from: TriePosition) -> Vec<&T> {
        let mut found = Vec::new();
        let mut left = vec![from.node];
        while let Some(node) = left.pop() {
            for &child in self.nodes[node].children.values() {
                found.push(&self.nodes[child].value);
                left.push(child);
            }
        }
        found
    }

    /// Returns the position one word back, or `None` at the root.
    pub(super) fn parent(&self, from: TriePosition) -> Option<TriePosition> {
        (from.node != 0)
            .then(|| TriePosition { node: self.nodes[from.node].parent, is_exact: false })
    }

    /// Returns the values from a position back to the root.
    pub(super) fn ancestors(&self, from: TriePosition) -> impl Iterator<Item = &T> + Clone {
        std::iter::successors(Some(from), |&at| self.parent(at)).map(|at| self.value(at))
    }
}

#[cfg(not(test))]
const fn count_lookup() {}

#[cfg(test)]
fn count_lookup() {
    LOOKUPS.set(LOOKUPS.get() + 1);
}

#[cfg(test)]
thread_local! {
    /// Number of hash lookups so far, so that tests can bound work instead of time.
    pub(super) static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
