//! Members that are preferred while they have capacity, if each member has its learned limit.

use std::iter;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of preferred members at a time.
const MOST: usize = 8;

/// Positions in a set; the first unused one and all after it are `u32::MAX`. Each is an atomic of
/// its own: for a moment some may be old and some new.
pub(crate) struct PreferredMembers([AtomicU32; MOST]);

impl PreferredMembers {
    pub(crate) fn set(&self, members: impl Iterator<Item = usize>) {
        let members = members.map(|member| member as u32).chain(iter::repeat(u32::MAX));
        for (preferred, member) in self.0.iter().zip(members) {
            preferred.store(member, Ordering::Relaxed);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = usize> {
        let members = self.0.iter().map(|preferred| preferred.load(Ordering::Relaxed));
        members.take_while(|&member| member < u32::MAX).map(|member| member as usize)
    }
}

impl Default for PreferredMembers {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(u32::MAX)))
    }
}
