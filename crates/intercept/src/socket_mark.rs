//! Marks of packets (SO_MARK), by which rules know our own packets and the client that each was sent for.

use thiserror::Error;

/// The mark of a socket.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SocketMark(u32);

impl SocketMark {
    /// The mark as the kernel has it.
    pub fn value(self) -> u32 {
        self.0
    }
}

/// The marks that belong to us: a fixed part, and bits that number clients.
///
/// Others use bits of marks too. Keep off 0x4000 and 0x8000 (kube-proxy, kubelet), 0x2000 (CNI portmap), 0x0f00
/// (Cilium) and 0xffff0000 (Calico).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MarkRange {
    fixed: u32,
    index_mask: u32,
}

/// Error of a range of marks.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum MarkRangeError {
    /// The fixed part is zero, as the mark of most packets is.
    #[error("the fixed part of the marks is 0, which is the mark of most packets")]
    NoFixedPart,
    /// Fixed part and numbers share bits.
    #[error("the fixed part of the marks and the bits that number clients overlap")]
    Overlap,
    /// Fewer than two bits for numbers.
    #[error("at least two bits of the marks must number clients")]
    TooFewBits,
}

impl Default for MarkRange {
    /// 0x1000 to 0x10ff: 254 clients of each IP version.
    fn default() -> Self {
        Self { fixed: 0x1000, index_mask: 0xff }
    }
}

impl MarkRange {
    /// Returns a range with this fixed part, whose clients are numbered by the bits of the mask.
    pub fn new(fixed: u32, index_mask: u32) -> Result<Self, MarkRangeError> {
        if fixed == 0 {
            return Err(MarkRangeError::NoFixedPart);
        }
        if fixed & index_mask != 0 {
            return Err(MarkRangeError::Overlap);
        }
        if index_mask.count_ones() < 2 {
            return Err(MarkRangeError::TooFewBits);
        }
        Ok(Self { fixed, index_mask })
    }

    /// The mark of packets of ours that are sent for no client in particular.
    pub fn own(self) -> SocketMark {
        SocketMark(self.fixed)
    }

    /// Returns the mark of packets that are sent for a client, with numbers from 0; `None` if there is no such number.
    pub fn client(self, number: u32) -> Option<SocketMark> {
        (number < self.max_clients()).then(|| SocketMark(self.fixed | self.spread(number + 1)))
    }

    /// Clients of one IP version that have marks of their own.
    pub fn max_clients(self) -> u32 {
        // Without the first, our own, and the last, of datagrams that renew the lease.
        (u32::MAX >> self.index_mask.count_zeros()) - 1
    }

    /// The mark of datagrams that renew the lease.
    pub(crate) fn renewal(self) -> SocketMark {
        SocketMark(self.fixed | self.index_mask)
    }

    /// The bits that all marks of the range share.
    pub(crate) fn fixed_bits(self) -> (u32, u32) {
        (!self.index_mask, self.fixed)
    }

    /// Puts the bits of a number at the places of the mask.
    fn spread(self, number: u32) -> u32 {
        let places = (0..32).filter(|place| self.index_mask & (1 << place) != 0);
        places.enumerate().map(|(bit, place)| (number >> bit & 1) << place).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn marks_are_distinct_and_within_their_range() {
        for range in [MarkRange::default(), MarkRange::new(0x1000, 0x2031).unwrap()] {
            let clients: Vec<_> =
                (0..range.max_clients()).map(|it| range.client(it).unwrap()).collect();
            assert_eq!(range.client(range.max_clients()), None);
            let all: BTreeSet<_> =
                clients.iter().copied().chain([range.own(), range.renewal()]).collect();
            assert_eq!(all.len(), 1 << range.index_mask.count_ones());
            let (mask, fixed) = range.fixed_bits();
            assert!(all.iter().all(|it| it.value() & mask == fixed));
        }
        assert_eq!(MarkRange::default().max_clients(), 254);
        assert_eq!(MarkRange::new(1, u32::MAX - 1).unwrap().max_clients(), (1 << 31) - 2);
    }

    #[test]
    fn unusable_ranges_are_refused() {
        assert_eq!(MarkRange::new(0, 0xff), Err(MarkRangeError::NoFixedPart));
        assert_eq!(MarkRange::new(0x10, 0xff), Err(MarkRangeError::Overlap));
        assert_eq!(MarkRange::new(0x100, 1), Err(MarkRangeError::TooFewBits));
    }
}
