//! Client connections over QUIC: what the `quic` crate asks of a listener and of its worker.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quic::{
    CompletedHandshake, ConnectionOwner, DatagramCounts, QuicConnection, ReceivedDatagram,
    ServerSettings, SniSettings, SniSource, SocketGroup,
};
use tls::ClientTlsError;

use crate::accept::accepted_connection::ConnectionGuard;
use crate::accept::h3;
use crate::active_config::BoundListener;
use crate::observe::ListenerCounters;
use crate::worker::{DrainStage, Worker, WorkerCommand};

/// Datagrams in transit to a worker from the others.
const MAX_PENDING_DATAGRAMS: u32 = 1024;

/// Owner of the QUIC connections of one listener on one worker.
pub(crate) struct ListenerConnectionOwner {
    worker: Rc<Worker>,
    bound: Arc<BoundListener>,
}

impl ListenerConnectionOwner {
    pub(crate) fn new(worker: &Rc<Worker>, bound: &Arc<BoundListener>) -> Rc<Self> {
        Rc::new(Self { worker: Rc::clone(worker), bound: Arc::clone(bound) })
    }

    fn counters(&self) -> &ListenerCounters {
        &self.bound.counters[self.worker.index]
    }
}

impl ConnectionOwner for ListenerConnectionOwner {
    fn settings(&self) -> Option<ServerSettings> {
        let active_config = self.worker.config();
        let listener = active_config.listener(&self.bound)?;
        let (policy, http3) = (&listener.client, listener.http3.as_ref()?.settings);
        Some(ServerSettings {
            max_concurrent_streams: http3.max_concurrent_streams,
            idle_timeout: policy.connection_idle_timeout,
            handshake_timeout: policy.head_timeout,
            congestion_control: http3.congestion_control,
        })
    }

    fn sni_source(&self) -> SniSource {
        let (shared, bound) = (Arc::clone(&self.worker.shared), Arc::clone(&self.bound));
        Arc::new(move || {
            let active_config = shared.config.load();
            let listener = active_config.listener(&bound)?;
            Some(SniSettings {
                sni_table: Arc::clone(listener.sni_table.as_ref()?),
                early_data: listener.http3.as_ref().is_some_and(|it| it.settings.zero_rtt),
            })
        })
    }

    fn accepts_handshakes(&self) -> bool {
        self.worker.stage() < DrainStage::Draining
    }

    fn admit(&self) -> bool {
        let counters = self.counters();
        let active_config = self.worker.config();
        let most = active_config.listener(&self.bound).map_or(0, |it| it.client.max_connections);
        let has_memory = self.worker.shared.budgets.memory.accepts_connections();
        if !has_memory || !self.bound.admit_connection(most) {
            counters.refused.add(1);
            return false;
        }
        counters.accepted.add(1);
        counters.handshakes.begun.add(1);
        counters.quic.connections.add(1);
        self.worker.handle().connections.fetch_add(1, Ordering::AcqRel);
        true
    }

    fn release(&self) {
        drop(ConnectionGuard::of_quic(&self.worker, &self.bound));
    }

    fn serve(&self, connection: QuicConnection) {
        h3::begin(ConnectionGuard::of_quic(&self.worker, &self.bound), connection);
    }

    fn record_handshake(&self, result: Result<CompletedHandshake, ClientTlsError>) {
        let counters = &self.counters().handshakes;
        let counter = match result {
            Ok(CompletedHandshake::Full) => &counters.full,
            Ok(CompletedHandshake::Resumed) => &counters.resumed,
            Err(error) => &counters.failed[error as usize],
        };
        counter.add(1);
    }

    fn record_datagrams(&self, counts: &DatagramCounts) {
        self.counters().quic.add(counts);
    }

    fn hand_over(
        &self,
        worker: usize,
        group: &Arc<SocketGroup>,
        datagram: ReceivedDatagram,
    ) -> bool {
        let target = &self.worker.shared.workers[worker];
        let more = |pending: u32| (pending < MAX_PENDING_DATAGRAMS).then_some(pending + 1);
        let pending = &target.pending_datagrams;
        if pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return false;
        }
        target.send(WorkerCommand::Datagram(Arc::clone(group), datagram));
        true
    }
}
