//! Limit on the copies in flight.

use std::rc::Rc;

/// Number of copies that a worker may have in flight.
const MAX_CONCURRENT: usize = 256;

/// Limit on a worker's copies in flight: each holds a permit.
#[derive(Default)]
pub(crate) struct MirrorLimiter(Rc<()>);

impl MirrorLimiter {
    pub(super) fn permit(&self) -> Option<Rc<()>> {
        (Rc::strong_count(&self.0) <= MAX_CONCURRENT).then(|| Rc::clone(&self.0))
    }
}
