//! An upgraded connection, which no longer carries HTTP: forwards bytes in both directions until both sides have
//! finished.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use balance::AttemptResult;
use codec::head::{BodyFraming, ResponseFraming};
use tokio::io::AsyncWrite;

use crate::body::{BodyError, BodyPump, BodySide, BodySource};
use crate::clock;
use crate::context::AttemptContext;
use crate::dial::attempt::AttemptConnection;
use crate::exchange::{ConnectionOutcome, Exchange};
use crate::failure::Failure;
use crate::outcome::AttemptConclusion;
use crate::scratch::ScratchMemory;
use crate::stream::PeerStream;

/// Forwards the 101, then bytes in both directions. The slot is held as long as the tunnel is open.
pub(crate) async fn tunnel(
    context: &mut AttemptContext<'_>,
    mut attempt: AttemptConnection,
) -> Result<ConnectionOutcome, Failure> {
    let AttemptContext { worker, client, exchange, record, policy } = context;
    let Exchange { request, response, upload, download, .. } = exchange;
    // Held to the end of the tunnel, and not only of the client's half.
    let _share_place = upload.share_place.take();
    upload.start(BodyFraming::UntilClose, BodyFraming::UntilClose);
    download.start(BodyFraming::UntilClose, BodyFraming::UntilClose);
    let response_framing =
        ResponseFraming { upgrade: true, ..ResponseFraming::without_body(request.version) };
    client.stream.put_head(response, &response_framing, &mut download.out)?;
    let mut to_endpoint = TunnelDirection { pump: upload, finished: false };
    let mut to_client = TunnelDirection { pump: download, finished: false };
    let endpoint = &mut attempt.connection;
    let mut seen = u64::MAX;
    let mut held = client.held_memory(worker);
    let result = poll_fn(|cx| {
        let mut source = BodySource { stream: &mut client.stream, buffer: &mut client.buffer };
        let up = to_endpoint
            .poll(cx, &mut source, &mut endpoint.stream, &worker.scratch)
            .map_err(|_ended| Failure::ClientGone)?;
        let mut source = BodySource { stream: &mut endpoint.stream, buffer: &mut endpoint.buffer };
        let down = to_client
            .poll(cx, &mut source, &mut client.stream, &worker.scratch)
            .map_err(|_ended| Failure::ClientGone)?;
        if up.is_ready() && down.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let progress = to_endpoint.pump.progress.wrapping_add(to_client.pump.progress);
        if seen != progress {
            seen = progress;
            client.deadline.set(clock::now() + policy.client.stream_idle_timeout);
        }
        let is_stalled = to_endpoint.is_stalled() || to_client.is_stalled();
        let bytes = to_endpoint.pump.held_bytes() + to_client.pump.held_bytes();
        let unread = endpoint.unread_bytes() + client.stream.unread_bytes().unwrap_or(0);
        if held.stall_if(is_stalled, bytes + unread, cx.waker()) {
            return Poll::Ready(Err(Failure::OutOfMemory));
        }
        ready!(client.deadline.poll(cx));
        Poll::Ready(Err(Failure::ClientGone))
    })
    .await;
    let conclusion = AttemptConclusion::now(AttemptResult::Success);
    attempt.slot.conclude(worker, &policy.backend_config, conclusion);
    record.failure = result.err();
    Ok(ConnectionOutcome::Abort)
}

/// One direction of the tunnel.
struct TunnelDirection<'a> {
    pump: &'a mut BodyPump,
    /// True if the source has ended and the sink has been shut down for writing.
    finished: bool,
}

impl TunnelDirection<'_> {
    /// True if the sink accepts no more bytes.
    fn is_stalled(&self) -> bool {
        !self.finished && self.pump.waiting_for == BodySide::Sink
    }

    /// Ready when the source has ended and the sink has been shut down. The other direction may still be in use.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource<'_>,
        sink: &mut PeerStream,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), BodyError>> {
        if self.finished {
            return Poll::Ready(Ok(()));
        }
        ready!(self.pump.poll(cx, source, sink, scratch))?;
        ready!(Pin::new(sink).poll_shutdown(cx)).map_err(|_| BodyError::SinkFailed)?;
        self.finished = true;
        Poll::Ready(Ok(()))
    }
}
