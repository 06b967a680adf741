//! A tree of words: one hash lookup per word of the key, whatever else the tree holds.
//!
//! Hosts and paths are both found in one. It must not know what the words mean.

use rustc_hash::FxHashMap;

/// A tree of `T`s, one at each node; node 0 is the root.
#[derive(Clone, Debug)]
pub(super) struct Tree<T> {
    nodes: Vec<Node<T>>,
}

#[derive(Clone, Debug)]
struct Node<T> {
    children: FxHashMap<Box<[u8]>, usize>,
    /// The root is its own parent.
    parent: usize,
    value: T,
}

/// How far a key leads into a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    node: usize,
    /// Every word of the key was found.
    pub(super) whole: bool,
}

impl<T: Default> Default for Tree<T> {
    fn default() -> Self {
        Self { nodes: vec![Node::below(0)] }
    }
}

impl<T: Default> Node<T> {
    fn below(parent: usize) -> Self {
        Self { children: FxHashMap::default(), parent, value: T::default() }
    }
}

impl<T: Default> Tree<T> {
    /// The value at the node that `words` lead to; the node is made if there is none.
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
        self.nodes.push(Node::below(parent));
        self.nodes[parent].children.insert(word.into(), child);
        child
    }
}

impl<T> Tree<T> {
    /// Follows `words` from the root as far as the tree goes.
    pub(super) fn reach<'a>(&self, words: impl Iterator<Item = &'a [u8]>) -> Reached {
        let mut node = 0;
        for word in words {
            count_lookup();
            let Some(&child) = self.nodes[node].children.get(word) else {
                return Reached { node, whole: false };
            };
            node = child;
        }
        Reached { node, whole: true }
    }

    /// The value at the node reached.
    pub(super) fn value(&self, at: Reached) -> &T {
        &self.nodes[at.node].value
    }

    /// The values below the node reached, in no order that means anything.
    pub(super) fn beneath(&self, from: Reached) -> Vec<&T> {
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

    /// One word back; nothing before the root.
    pub(super) fn back(&self, from: Reached) -> Option<Reached> {
        (from.node != 0).then(|| Reached { node: self.nodes[from.node].parent, whole: false })
    }

    /// The values from the node reached back to the root.
    pub(super) fn way_back(&self, from: Reached) -> impl Iterator<Item = &T> + Clone {
        std::iter::successors(Some(from), |&at| self.back(at)).map(|at| self.value(at))
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
    /// Hash lookups so far, so that tests can bound work instead of time.
    pub(super) static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
