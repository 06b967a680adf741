//! Changes that a peer has not acknowledged yet, oldest first.
//!
//! Each message repeats the oldest changes. A change stays among them from the first message that
//! has it until it is acknowledged, so the acknowledgement of any later message covers it too.

use std::collections::BTreeMap;

use crate::time::Time;

/// Keys whose values have to be sent.
#[derive(Clone, Debug)]
pub(crate) struct ChangeQueue<K> {
    last_number: u64,
    /// Change number of each key.
    numbers: BTreeMap<K, u64>,
    /// Key of each change, and the time of the first message that has it.
    changes: BTreeMap<u64, (K, Option<Time>)>,
    /// Changes that no message has yet.
    unsent: usize,
}

impl<K: Copy + Ord> ChangeQueue<K> {
    pub(crate) fn new() -> Self {
        Self { last_number: 0, numbers: BTreeMap::new(), changes: BTreeMap::new(), unsent: 0 }
    }

    /// Records that the value of a key has changed.
    pub(crate) fn mark(&mut self, key: K) {
        self.last_number += 1;
        if let Some(number) = self.numbers.insert(key, self.last_number) {
            let (_, first_sent) = self.changes.remove(&number).expect("a number has its change");
            self.unsent -= usize::from(first_sent.is_none());
        }
        self.changes.insert(self.last_number, (key, None));
        self.unsent += 1;
    }

    /// Records that the value of a key has changed, unless no message has its last change yet.
    pub(crate) fn mark_once(&mut self, key: K) {
        let is_unsent = self.numbers.get(&key).is_some_and(|number| {
            self.changes.get(number).is_some_and(|(_, first_sent)| first_sent.is_none())
        });
        if !is_unsent {
            self.mark(key);
        }
    }

    /// Returns the keys for a message that is sent now: the oldest changes.
    pub(crate) fn collect(&mut self, max: usize, sent: Time) -> Vec<K> {
        let mut keys = Vec::with_capacity(self.changes.len().min(max));
        for (key, first_sent) in self.changes.values_mut().take(max) {
            self.unsent -= usize::from(first_sent.is_none());
            first_sent.get_or_insert(sent);
            keys.push(*key);
        }
        keys
    }

    /// Removes the changes that a message sent at this time, or before, has.
    pub(crate) fn acknowledge(&mut self, echo: Time) {
        while let Some(change) = self.changes.first_entry() {
            let (key, first_sent) = *change.get();
            if first_sent.is_none_or(|sent| sent > echo) {
                return;
            }
            change.remove();
            self.numbers.remove(&key);
        }
    }

    /// True if the last value of the key is not acknowledged.
    pub(crate) fn contains(&self, key: K) -> bool {
        self.numbers.contains_key(&key)
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn change_is_repeated_until_acknowledged() {
        let mut queue = ChangeQueue::new();
        queue.mark('a');
        assert_eq!(queue.collect(9, at(1)), ['a']);
        queue.mark('b');
        assert!(queue.has_unsent());
        assert_eq!(queue.collect(9, at(2)), ['a', 'b']);
        queue.acknowledge(at(1));
        assert_eq!(queue.collect(9, at(3)), ['b']);
        queue.acknowledge(at(3));
        assert!(queue.is_empty() && !queue.has_unsent());
    }

    #[test]
    fn newer_change_of_a_key_is_not_covered_by_an_older_acknowledgement() {
        let mut queue = ChangeQueue::new();
        queue.mark('a');
        queue.collect(9, at(1));
        queue.mark('a');
        queue.acknowledge(at(1));
        assert!(queue.contains('a'));
        assert_eq!(queue.collect(9, at(2)), ['a']);
    }

    #[test]
    fn full_message_sends_the_oldest_changes_first() {
        let mut queue = ChangeQueue::new();
        for key in ['a', 'b', 'c'] {
            queue.mark(key);
        }
        assert_eq!(queue.collect(2, at(1)), ['a', 'b']);
        assert!(queue.has_unsent());
        // The third was in no message up to this one.
        queue.acknowledge(at(1));
        assert_eq!(queue.collect(2, at(2)), ['c']);
    }
}
