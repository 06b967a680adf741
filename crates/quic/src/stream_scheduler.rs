//! Order in which the streams of a connection send.

use std::collections::BTreeMap;

use quinn_proto::{Dir, StreamId};

/// Order in which the streams of a connection send.
///
/// Streams of one priority take turns: each sends a portion of what was written, then the next one does. Turns of
/// single datagrams would be fairer, but a client with fifty streams would have fifty tasks to wake for as many
/// datagrams. A new stream goes before those that continue, so that short responses do not wait for long ones.
#[derive(Default)]
pub(super) struct StreamScheduler {
    /// The number of open bidirectional streams of each priority: the unidirectional ones stay open, and send little.
    open: BTreeMap<i32, u32>,
    /// A counter of portions, of all priorities.
    portions: u32,
}

/// Bits of a rank that hold the portion counter.
const PORTION_BITS: u32 = 26;
/// Distance between two priorities: room for the portions of new streams, and of those that continue.
const PRIORITY_STEP: i32 = 2 << PORTION_BITS;
/// The largest priority that is told apart; beyond it streams are equal.
const MAX_PRIORITY: i32 = 15;

impl StreamScheduler {
    pub(super) fn add_stream(&mut self, id: StreamId, priority: i32) {
        if id.dir() == Dir::Bi {
            *self.open.entry(priority).or_default() += 1;
        }
    }

    pub(super) fn remove_stream(&mut self, id: StreamId, priority: i32) {
        if id.dir() == Dir::Uni {
            return;
        }
        if let Some(open) = self.open.get_mut(&priority) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&priority);
            }
        }
    }

    /// Returns the rank of a stream with this priority for its first portion; the library sends higher ranks first.
    pub(super) fn first_rank(&mut self, priority: i32) -> i32 {
        self.next_rank(priority) + PRIORITY_STEP / 2
    }

    /// Returns its rank for any other portion.
    pub(super) fn next_rank(&mut self, priority: i32) -> i32 {
        // When the counter wraps, one stream goes before those that began earlier; after its next portion the order is
        // right again.
        self.portions = (self.portions + 1) % (1 << PORTION_BITS);
        let portions = i32::try_from(self.portions).unwrap_or_default();
        priority.clamp(-MAX_PRIORITY, MAX_PRIORITY) * PRIORITY_STEP - portions
    }

    /// True if streams of this priority go before all other open streams, and there are others.
    pub(super) fn is_most_urgent(&self, priority: i32) -> bool {
        self.open.len() > 1 && self.open.last_key_value().is_some_and(|(&most, _)| most == priority)
    }
}

#[cfg(test)]
mod tests {
    use quinn_proto::Side;

    use super::*;

    #[test]
    fn only_the_most_urgent_stream_leads_while_others_are_open() {
        let [a, b, c] = [0, 1, 2].map(|index| StreamId::new(Side::Client, Dir::Bi, index));
        let mut precedence = StreamScheduler::default();
        precedence.add_stream(a, 0);
        precedence.add_stream(b, 0);
        assert!(!precedence.is_most_urgent(0));
        precedence.add_stream(c, 6);
        assert!(precedence.is_most_urgent(6) && !precedence.is_most_urgent(0));
        precedence.remove_stream(c, 6);
        precedence.add_stream(c, -8);
        assert!(precedence.is_most_urgent(0) && !precedence.is_most_urgent(-8));
        precedence.remove_stream(a, 0);
        assert!(precedence.is_most_urgent(0));
        precedence.remove_stream(b, 0);
        assert!(!precedence.is_most_urgent(-8));
    }

    #[test]
    fn earlier_portion_precedes_only_equal_priorities() {
        let mut precedence = StreamScheduler::default();
        let places = [0, 0, -9, 6, 0, -9, 6].map(|priority| precedence.next_rank(priority));
        let [first, second, late, urgent, third, later, urgent_too] = places;
        let in_order = [urgent, urgent_too, first, second, third, late, later];
        assert!(in_order.is_sorted_by(|before, after| before > after), "{places:?}");
    }

    #[test]
    fn new_stream_precedes_continuing_streams_of_equal_priority() {
        let mut precedence = StreamScheduler::default();
        let [long, urgent] = [0, 1].map(|priority| precedence.next_rank(priority));
        let [short, shorter] = [0, 0].map(|priority| precedence.first_rank(priority));
        let in_order = [urgent, short, shorter, long];
        assert!(in_order.is_sorted_by(|before, after| before > after), "{in_order:?}");
    }

    #[test]
    fn exhausted_portion_counter_wraps_within_its_priority() {
        let last = (1 << PORTION_BITS) - 1;
        let full = |portions| StreamScheduler { portions, ..StreamScheduler::default() };
        let most = |priority| full(last).first_rank(priority);
        let least = |priority| full(last - 1).next_rank(priority);
        for priority in -MAX_PRIORITY..MAX_PRIORITY {
            assert!(full(last).next_rank(priority) < full(last - 1).first_rank(priority));
            assert!(most(priority) < least(priority + 1), "{priority}");
        }
        assert_eq!(least(i32::MIN), least(-MAX_PRIORITY));
    }

    #[test]
    fn unidirectional_streams_do_not_count() {
        let [control, request] =
            [Dir::Uni, Dir::Bi].map(|direction| StreamId::new(Side::Server, direction, 0));
        let mut precedence = StreamScheduler::default();
        precedence.add_stream(control, 0);
        precedence.add_stream(request, 6);
        assert!(!precedence.is_most_urgent(6));
        precedence.remove_stream(control, 0);
        precedence.remove_stream(request, 6);
        assert!(precedence.open.is_empty());
    }
}
