//! Receipt of messages: each is checked as a whole before any of it takes effect.

use super::LeaseTable;
use super::link::PeerLink;
use super::message::{LEASE_VERSION, LeaseMessage, LeaseRefusal};
use crate::time::Time;

impl LeaseTable {
    /// Takes a message of a peer.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused. Then it has no effect.
    pub fn receive(&mut self, message: &LeaseMessage, now: Time) -> Result<(), LeaseRefusal> {
        let result = self.admit(message, now);
        match result {
            Ok(()) => self.take(message, now),
            Err(refusal) => self.counts.refused[refusal as usize] += 1,
        }
        result
    }

    /// Checks a message. Forgets the previous incarnation of the sender if that has ended.
    fn admit(&mut self, message: &LeaseMessage, now: Time) -> Result<(), LeaseRefusal> {
        let LeaseMessage { from, to, .. } = *message;
        if message.version != LEASE_VERSION {
            return Err(LeaseRefusal::Version);
        }
        if to.member != self.me.member || ![0, self.me.incarnation].contains(&to.incarnation) {
            return Err(LeaseRefusal::Misaddressed);
        }
        let link = self.links.get(&from.member).ok_or(LeaseRefusal::UnknownMember)?;
        if from.incarnation == 0 {
            return Err(LeaseRefusal::Absurd);
        }
        if from.incarnation < link.peer.incarnation {
            return Err(LeaseRefusal::StaleIncarnation);
        }
        if from.incarnation == link.peer.incarnation {
            return link.check(message, now);
        }
        if link.lending.total() > 0 && now < link.takes_back_at {
            return Err(LeaseRefusal::PredecessorLease);
        }
        let is_member = link.is_member;
        let mut successor = PeerLink::new(from, self.last_epoch + 1, self.last_sent);
        successor.is_member = is_member;
        successor.check(message, now)?;
        self.last_epoch += 1;
        let predecessor = self.links.insert(from.member, successor).expect("it was found");
        for endpoint in predecessor.lending.lent_endpoints() {
            self.refresh(endpoint);
        }
        for endpoint in predecessor.borrowing.held_endpoints() {
            self.refresh(endpoint);
        }
        Ok(())
    }

    /// Takes a message that was checked.
    fn take(&mut self, message: &LeaseMessage, now: Time) {
        self.counts.received += 1;
        self.budget.record_received();
        let link = self.links.get_mut(&message.from.member).expect("it was checked");
        let heard = link.take_header(message, now);
        self.changed_pools.extend(heard.into_iter().filter(|pool| self.pools.contains_key(pool)));
        let mut changed = Vec::new();
        if message.borrowing_epoch == link.lending.epoch() {
            for entry in &message.returned {
                let slots = link.lending.take_returned(entry);
                changed.push(entry.endpoint);
                if let Some(endpoint) = self.endpoints.get(&entry.endpoint) {
                    link.note_received(endpoint.pool, slots);
                }
            }
        }
        if message.to.incarnation > 0 {
            if message.lending_epoch > link.borrowing.epoch() {
                changed.extend(link.borrowing.held_endpoints());
                link.reset_borrowing(message.lending_epoch);
            }
            link.renew(message.echo);
            for entry in &message.lent {
                let slots = link.borrowing.take_lent(entry);
                changed.push(entry.endpoint);
                match self.endpoints.get(&entry.endpoint) {
                    Some(endpoint) => link.note_received(endpoint.pool, slots),
                    // No request of ours is at an endpoint that we do not know.
                    None => link.borrowing.return_all(entry.endpoint),
                }
            }
            if link.update_suspension(now) {
                changed.extend(link.borrowing.held_endpoints());
            }
        }
        for endpoint in changed {
            self.refresh(endpoint);
        }
    }
}
