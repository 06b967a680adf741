//! Bytes of one session, from and to its connection.

use std::time::Duration;

use bytes::BytesMut;
use rustbgpd_fsm::SessionState;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::report::{PeerCounts, SharedReport};
use crate::session::PeerSession;
use crate::settings::RouteTable;

/// Bytes that are read at once: the longest message.
const READ_BYTES: usize = 4096;
/// Time for the last message, after which the connection is closed.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a router that takes no bytes is considered dead (RFC 9687), in hold times.
const STALLED_HOLD_TIMES: u32 = 2;

/// Reason with which all sessions or one are to end; `None`: they go on.
pub(crate) type StopReason = Option<String>;

/// Inputs of a session.
pub(crate) struct SessionInputs<'a> {
    pub(crate) routes: &'a mut Receiver<RouteTable>,
    pub(crate) stop: &'a mut Receiver<StopReason>,
    pub(crate) hold_time: Duration,
}

/// Runs a session until it ends; returns the reason.
pub(crate) async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    mut session: PeerSession,
    inputs: SessionInputs<'_>,
    report: &SharedReport,
) -> String {
    let SessionInputs { routes, stop, hold_time } = inputs;
    let (mut reader, mut writer) = split(stream);
    let mut inbound = BytesMut::new();
    let before = report.lock().counts;
    // Time of the last progress while there is something to send.
    let mut progress = Instant::now();
    let mut deadline = None;
    session.start(progress);
    loop {
        let now = Instant::now();
        if session.outbound.is_empty() {
            session.announce(&routes.borrow_and_update());
            progress = now;
        }
        update_report(&session, &before, report);
        if let Some(reason) = &session.end {
            let deadline = *deadline.get_or_insert(now + LAST_WRITE_TIMEOUT);
            if session.outbound.is_empty() || deadline <= now {
                let reason = reason.clone();
                // The router may have gone already.
                drop(writer.shutdown().await);
                return reason;
            }
        }
        let stalls = progress + hold_time * STALLED_HOLD_TIMES;
        if stalls <= now && session.end.is_none() {
            session.disconnect("the router takes no data".to_owned(), now);
            continue;
        }
        let is_up = session.end.is_none();
        let wakes = [deadline, session.next_timer(), Some(stalls)].into_iter().flatten().min();
        let wakes = wakes.unwrap_or(stalls);
        inbound.reserve(READ_BYTES);
        // If its sender is gone, the session ends as well.
        let stopped = async { stop.wait_for(Option::is_some).await.ok()?.clone() };
        let stopped = async { stopped.await.unwrap_or_default() };
        tokio::select! {
            read = reader.read_buf(&mut inbound), if is_up => match read {
                Ok(0) => session.disconnect("the router closed the connection".to_owned(), Instant::now()),
                Ok(_) => session.receive(&mut inbound, Instant::now()),
                Err(error) => session.disconnect(error.to_string(), Instant::now()),
            },
            written = writer.write(&session.outbound), if !session.outbound.is_empty() => match written {
                Ok(count) => {
                    drop(session.outbound.split_to(count));
                    progress = Instant::now();
                }
                Err(error) => session.disconnect(error.to_string(), Instant::now()),
            },
            changed = routes.changed(), if is_up => {
                if changed.is_err() {
                    session.stop("", Instant::now());
                }
            }
            reason = stopped, if is_up => session.stop(&reason, Instant::now()),
            () = sleep_until(wakes) => session.expire(Instant::now()),
        }
    }
}

fn update_report(session: &PeerSession, before: &PeerCounts, report: &SharedReport) {
    let mut report = report.lock();
    if report.state != SessionState::Established && session.is_established() {
        tracing::info!(peer = report.name, "the BGP session is up");
    }
    report.state = session.state();
    let is_established = session.is_established();
    report.routes = if is_established { session.announced.len() } else { 0 };
    if is_established {
        report.error.clear();
    }
    report.counts.established = before.established + session.counts.established;
    report.counts.updates_sent = before.updates_sent + session.counts.updates_sent;
    report.counts.updates_discarded = before.updates_discarded + session.counts.updates_discarded;
}

#[cfg(test)]
mod tests;
