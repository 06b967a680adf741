//! Arrival of a body before there is a sink for it: what has arrived is kept as far as a retry may need it.

use std::task::{Context, Poll, ready};

use super::{BodyError, BodyPump, BodySide, BodySource, REPLAY_BYTES};
use crate::scratch::{ArrivalReservation, ScratchMemory};

impl BodyPump {
    /// Reads without a sink and keeps what it reads, within `room`. Ready when the body is complete, or when as much
    /// is kept as may be kept for a retry.
    pub(crate) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource<'_>,
        scratch: &ScratchMemory,
        room: Option<&ArrivalReservation>,
    ) -> Poll<Result<(), BodyError>> {
        self.waiting_for = BodySide::Source;
        loop {
            self.decode_buffered(source.buffer)?;
            if self.body_bytes > 0 && room.is_some_and(|room| !room.grow(self.out.len())) {
                return Poll::Ready(Err(BodyError::Evicted));
            }
            if self.is_read() || self.out.len() >= REPLAY_BYTES {
                return Poll::Ready(Ok(()));
            }
            let filled = self.poll_fill(cx, source, scratch);
            scratch.buffer_pool.reclaim(source.buffer);
            ready!(filled)?;
        }
    }

    /// Keeps counting the bytes that have arrived, now that the body is no longer arriving.
    pub(crate) fn adopt_arrived(&mut self, arrived: &ArrivalReservation) {
        if let Some(replay) = &mut self.replay {
            replay.adopt(arrived);
        }
    }
}
