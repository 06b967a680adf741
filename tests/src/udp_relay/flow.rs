//! The datagrams of one client address, in both directions.

use std::collections::VecDeque;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use quinn::udp::EcnCodepoint;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep_until};

use super::packets::connection_ids;
use super::record::{DirectionRecord, LineRecord};
use super::socket::{self, RelaySocket, RelayedDatagram};
use super::{RelayLine, lock, loopback_of};
use crate::random::SeededRandom;

/// Longest series of datagrams of one direction that are dropped, or corrupted: otherwise some handshake would fail by
/// mere chance.
const LONGEST_SERIES: u64 = 3;

/// Direction of a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineDirection {
    ToServer,
    ToClient,
}

/// The datagrams of one client address.
pub(super) struct RelayFlow {
    line: RelayLine,
    client: SocketAddr,
    server_socket: RelaySocket,
    /// Sockets of earlier addresses. They are not read, so that datagrams to them vanish.
    retired: Vec<RelaySocket>,
    random: SeededRandom,
    /// Datagrams that are due one after another.
    in_transit: VecDeque<(Instant, LineDirection, RelayedDatagram)>,
    to_server: DirectionState,
    to_client: DirectionState,
    /// End of the outage, once that has begun.
    outage_end: Option<Instant>,
    /// Connection ID that the server has chosen, once it is known.
    server_id: Vec<u8>,
    /// True if the client has proved its address: by the use of that ID, which only its address got.
    is_validated: bool,
}

/// State of one direction.
#[derive(Default)]
struct DirectionState {
    /// Number of datagrams so far.
    datagrams: u64,
    /// Bytes that have passed.
    bytes: u64,
    dropped_in_series: u64,
    corrupted_in_series: u64,
}

impl RelayFlow {
    /// Relays until the client's datagrams end or a socket fails.
    pub(super) async fn run(
        line: RelayLine,
        client: SocketAddr,
        number: u64,
        mut from_client: UnboundedReceiver<RelayedDatagram>,
    ) -> Result<()> {
        let server_socket = RelaySocket::bind(loopback_of(line.server))?;
        let seed = line.conditions.seed.wrapping_mul(0x1_0000).wrapping_add(number);
        let mut flow = Self {
            line,
            client,
            server_socket,
            retired: Vec::new(),
            random: SeededRandom::new(seed),
            in_transit: VecDeque::new(),
            to_server: DirectionState::default(),
            to_client: DirectionState::default(),
            outage_end: None,
            server_id: Vec::new(),
            is_validated: false,
        };
        let mut buffer = socket::buffer();
        loop {
            let due = flow.in_transit.front().map(|(due, ..)| *due);
            tokio::select! {
                datagram = from_client.recv() => match datagram {
                    Some(datagram) => flow.accept(LineDirection::ToServer, datagram),
                    None => return Ok(()),
                },
                datagrams = flow.server_socket.receive(&mut buffer) => for datagram in datagrams? {
                    flow.accept(LineDirection::ToClient, datagram);
                    flow.rebind_if_due()?;
                },
                () = wait_until(due) => {}
            }
            flow.deliver().await?;
        }
    }

    /// Decides the fate of a datagram that has come.
    fn accept(&mut self, direction: LineDirection, mut datagram: RelayedDatagram) {
        self.direction(direction).datagrams += 1;
        if direction == LineDirection::ToClient && !self.is_validated {
            self.measure_amplification(&datagram.bytes);
        }
        let is_dropped = self.is_dropped(direction);
        let is_corrupted = !is_dropped && self.corrupt(direction, &mut datagram);
        self.update_record(direction, |record| {
            record.count(&datagram);
            record.dropped += u64::from(is_dropped);
            record.corrupted += u64::from(is_corrupted);
        });
        if is_dropped {
            return;
        }
        if datagram.ecn.is_some() && self.random.chance(self.line.conditions.mark_percent) {
            datagram.ecn = Some(EcnCodepoint::Ce);
        }
        let due = Instant::now() + self.line.conditions.delay;
        self.in_transit.push_back((due, direction, datagram));
    }

    fn is_dropped(&mut self, direction: LineDirection) -> bool {
        let (loss, by_number) = {
            let conditions = &self.line.conditions;
            (conditions.loss_percent, conditions.dropped_from_client.clone())
        };
        let is_lost = self.random.chance(loss);
        let is_out = self.is_out();
        let state = self.direction(direction);
        let is_lost = is_lost && state.dropped_in_series < LONGEST_SERIES;
        state.dropped_in_series = if is_lost { state.dropped_in_series + 1 } else { 0 };
        let is_listed =
            direction == LineDirection::ToServer && by_number.contains(&state.datagrams);
        is_lost || is_out || is_listed
    }

    /// True during the outage, which begins with this datagram if it is due.
    fn is_out(&mut self) -> bool {
        let Some(outage) = self.line.conditions.outage else { return false };
        if self.to_client.datagrams < outage.after {
            return false;
        }
        let now = Instant::now();
        now < *self.outage_end.get_or_insert(now + outage.duration)
    }

    /// Changes one byte, or none. Returns true if it has.
    fn corrupt(&mut self, direction: LineDirection, datagram: &mut RelayedDatagram) -> bool {
        let is_chosen = self.random.chance(self.line.conditions.corruption_percent);
        let state = self.direction(direction);
        let is_chosen = is_chosen && state.corrupted_in_series < LONGEST_SERIES;
        state.corrupted_in_series = if is_chosen { state.corrupted_in_series + 1 } else { 0 };
        if is_chosen {
            let place = self.random.below(datagram.bytes.len().max(1) as u64) as usize;
            let change = 1 + self.random.below(255) as u8;
            datagram.bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= change);
        }
        is_chosen
    }

    fn measure_amplification(&mut self, datagram: &[u8]) {
        if let Some([_, source]) = connection_ids(datagram) {
            self.server_id = source.to_vec();
        }
        self.to_client.bytes += datagram.len() as u64;
        let ratio = self.to_client.bytes as f64 / self.to_server.bytes.max(1) as f64;
        let mut record = lock(&self.line.record);
        record.amplification = record.amplification.max(ratio);
    }

    /// Changes the address that the server sees, if it is time.
    fn rebind_if_due(&mut self) -> Result<()> {
        let Some(rebinding) = self.line.conditions.rebinding else { return Ok(()) };
        let datagrams = self.to_client.datagrams;
        let done = self.retired.len() as u64;
        if done >= rebinding.most || datagrams < (done + 1) * rebinding.every {
            return Ok(());
        }
        let address = if rebinding.changes_ip {
            // All of 127.0.0.0/8 is the loopback's.
            Ipv4Addr::new(127, 0, 0, 2 + done as u8).into()
        } else {
            loopback_of(self.line.server)
        };
        let earlier = std::mem::replace(&mut self.server_socket, RelaySocket::bind(address)?);
        self.retired.push(earlier);
        lock(&self.line.record).rebindings += 1;
        Ok(())
    }

    /// Sends what is due.
    async fn deliver(&mut self) -> Result<()> {
        while let Some((due, direction, datagram)) = self.in_transit.pop_front() {
            if due > Instant::now() {
                self.in_transit.push_front((due, direction, datagram));
                break;
            }
            match direction {
                LineDirection::ToServer => {
                    self.to_server.bytes += datagram.bytes.len() as u64;
                    self.is_validated |= connection_ids(&datagram.bytes)
                        .is_none_or(|[destination, _]| destination == self.server_id);
                    self.server_socket.send(&datagram, self.line.server).await?;
                }
                LineDirection::ToClient => {
                    self.line.client_socket.send(&datagram, self.client).await?;
                }
            }
        }
        Ok(())
    }

    fn direction(&mut self, direction: LineDirection) -> &mut DirectionState {
        match direction {
            LineDirection::ToServer => &mut self.to_server,
            LineDirection::ToClient => &mut self.to_client,
        }
    }

    fn update_record(&self, direction: LineDirection, update: impl FnOnce(&mut DirectionRecord)) {
        let LineRecord { from_client, from_server, .. } = &mut *lock(&self.line.record);
        match direction {
            LineDirection::ToServer => update(from_client),
            LineDirection::ToClient => update(from_server),
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        // The delay of the line.
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
