//! Which of a connection's streams go before others.

use std::collections::BTreeMap;

use quinn_proto::{Dir, StreamId};

/// How many streams with both directions are open of each priority: the others stay open, and say little.
#[derive(Default)]
pub(super) struct Precedence(BTreeMap<i32, u32>);

impl Precedence {
    pub(super) fn enter(&mut self, id: StreamId, priority: i32) {
        if id.dir() == Dir::Bi {
            *self.0.entry(priority).or_default() += 1;
        }
    }

    pub(super) fn leave(&mut self, id: StreamId, priority: i32) {
        if id.dir() == Dir::Uni {
            return;
        }
        if let Some(open) = self.0.get_mut(&priority) {
            *open -= 1;
            if *open == 0 {
                self.0.remove(&priority);
            }
        }
    }

    /// Streams of this priority go before others that are open, and no others before them.
    pub(super) fn leads(&self, priority: i32) -> bool {
        self.0.len() > 1 && self.0.last_key_value().is_some_and(|(&most, _)| most == priority)
    }
}

#[cfg(test)]
mod tests {
    use quinn_proto::Side;

    use super::*;

    #[test]
    fn the_most_urgent_lead_while_there_are_others() {
        let [a, b, c] = [0, 1, 2].map(|index| StreamId::new(Side::Client, Dir::Bi, index));
        let mut precedence = Precedence::default();
        precedence.enter(a, 0);
        precedence.enter(b, 0);
        assert!(!precedence.leads(0));
        precedence.enter(c, 6);
        assert!(precedence.leads(6) && !precedence.leads(0));
        precedence.leave(c, 6);
        precedence.enter(c, -8);
        assert!(precedence.leads(0) && !precedence.leads(-8));
        precedence.leave(a, 0);
        assert!(precedence.leads(0));
        precedence.leave(b, 0);
        assert!(!precedence.leads(-8));
    }

    #[test]
    fn streams_of_one_direction_do_not_count() {
        let [control, request] =
            [Dir::Uni, Dir::Bi].map(|direction| StreamId::new(Side::Server, direction, 0));
        let mut precedence = Precedence::default();
        precedence.enter(control, 0);
        precedence.enter(request, 6);
        assert!(!precedence.leads(6));
        precedence.leave(control, 0);
        precedence.leave(request, 6);
        assert!(precedence.0.is_empty());
    }
}
