//! The node's rules, as the data plane asks for them.

use std::future::ready;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use intercept::MarkRange;
use proxy::{ClientMarkFuture, ConnectionInterceptor};
use tokio::sync::oneshot;

use super::client_marks::ClientMarks;
use super::command_queue::{ClientRequest, CommandQueue};

/// The rules of the node, as the data plane knows them.
pub(super) struct NodeInterceptor {
    pub(super) marks: MarkRange,
    pub(super) clients: Arc<Mutex<ClientMarks>>,
    pub(super) queue: Arc<CommandQueue>,
}

impl ConnectionInterceptor for NodeInterceptor {
    fn original_destination(&self, socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
        intercept::original_destination(&socket)
    }

    fn own_mark(&self) -> u32 {
        self.marks.own().value()
    }

    fn client_mark(&self, client: IpAddr) -> ClientMarkFuture {
        let client = client.to_canonical();
        // With kube-proxy in IPVS mode, a process of the node calls a ClusterIP from this ClusterIP, to which endpoints
        // on other nodes cannot reply.
        if client.is_loopback() || self.queue.has_service_at(client) {
            return Box::pin(ready(None));
        }
        if let Some(mark) = lock(&self.clients).find(client) {
            return Box::pin(ready(Some(mark)));
        }
        let (reply, answer) = oneshot::channel();
        // If too many wait, the request is dropped, and with it the sender.
        self.queue.ask(ClientRequest { client, reply });
        Box::pin(async move { answer.await.ok().flatten() })
    }
}

pub(super) fn lock(clients: &Mutex<ClientMarks>) -> MutexGuard<'_, ClientMarks> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}
