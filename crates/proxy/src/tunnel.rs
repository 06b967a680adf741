//! A connection that has left HTTP: bytes both ways until both sides have finished.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use balance::AttemptResult;
use tokio::io::AsyncWrite;

use crate::accept::client::Client;
use crate::body::{Pump, Source, Stop};
use crate::clock;
use crate::dial::attempt::AttemptConnection;
use crate::exchange::{After, Exchange, Terms};
use crate::failure::Failure;
use crate::head::BodyFraming;
use crate::observe::access::Record;
use crate::scratch::Scratch;
use crate::stream::{Manner, Stream};
use crate::worker::Worker;

/// Passes the 101 on, then bytes both ways. The slot is held as long as the tunnel is open.
pub(crate) async fn tunnel(
    worker: &Rc<Worker>,
    client: &mut Client,
    exchange: &mut Exchange,
    mut lease: AttemptConnection,
    terms: &Terms<'_>,
    record: &mut Record,
) -> Result<After, Failure> {
    let Exchange { request, response, upload, download, .. } = exchange;
    upload.start(BodyFraming::UntilClose, BodyFraming::UntilClose);
    download.start(BodyFraming::UntilClose, BodyFraming::UntilClose);
    let manner = Manner { upgrade: true, ..Manner::without_body(request.version) };
    client.stream.put_head(response, &manner, &mut download.out)?;
    let mut there = Direction { pump: upload, finished: false };
    let mut back = Direction { pump: download, finished: false };
    let (ours, theirs) = (client, &mut lease.connection);
    let mut seen = u64::MAX;
    let result = poll_fn(|cx| {
        let mut source = Source { stream: &mut ours.stream, buffer: &mut ours.buffer };
        let up = there.poll(cx, &mut source, &mut theirs.stream, &worker.scratch)?;
        let mut source = Source { stream: &mut theirs.stream, buffer: &mut theirs.buffer };
        let down = back.poll(cx, &mut source, &mut ours.stream, &worker.scratch)?;
        if up.is_ready() && down.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let progress = there.pump.progress.wrapping_add(back.pump.progress);
        if seen != progress {
            seen = progress;
            ours.deadline.set(clock::now() + terms.client.stream_idle_timeout);
        }
        ready!(ours.deadline.poll(cx));
        Poll::Ready(Err(Stop::SourceEnded))
    })
    .await;
    lease.slot.conclude(worker, &terms.current, AttemptResult::Success, None);
    if result.is_err() {
        record.failure = Some(Failure::ClientGone);
    }
    Ok(After::Cut)
}

/// One way through the tunnel.
struct Direction<'a> {
    pump: &'a mut Pump,
    /// The source has ended and the sink has been told.
    finished: bool,
}

impl Direction<'_> {
    /// Ready when the source has ended and the sink knows: the other way may still be in use.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Source<'_>,
        sink: &mut Stream,
        scratch: &Scratch,
    ) -> Poll<Result<(), Stop>> {
        if self.finished {
            return Poll::Ready(Ok(()));
        }
        ready!(self.pump.poll(cx, source, sink, scratch))?;
        ready!(Pin::new(sink).poll_shutdown(cx)).map_err(|_| Stop::SinkFailed)?;
        self.finished = true;
        Poll::Ready(Ok(()))
    }
}
