//! DNS server whose records a test sets: UDP, one question per datagram, A and AAAA.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

const A: u16 = 1;
const AAAA: u16 = 28;
const NO_ERROR: u8 = 0;
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;
/// TTL of each answer: short, so that a test need not wait.
const TTL_SECONDS: u32 = 1;
const HEAD_BYTES: usize = 12;

/// DNS server on a free port; it stops when dropped.
pub struct NameServer {
    pub address: SocketAddr,
    zone: Arc<Mutex<DnsZone>>,
    serving: JoinHandle<io::Result<()>>,
}

#[derive(Default)]
struct DnsZone {
    names: HashMap<String, Vec<IpAddr>>,
    is_failing: bool,
    silent: HashSet<String>,
    questions: usize,
}

impl NameServer {
    pub async fn start() -> io::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let zone = Arc::new(Mutex::new(DnsZone::default()));
        let serving = tokio::spawn(serve(socket, zone.clone()));
        Ok(Self { address, zone, serving })
    }

    /// Sets the addresses of a name.
    pub fn set_addresses(&self, name: &str, addresses: &[IpAddr]) {
        self.update_zone(|zone| zone.names.insert(name.to_owned(), addresses.to_vec()));
    }

    /// Removes a name.
    pub fn remove_name(&self, name: &str) {
        self.update_zone(|zone| zone.names.remove(name));
    }

    /// Makes the server answer SERVFAIL, or stops that.
    pub fn set_failing(&self, is_failing: bool) {
        self.update_zone(|zone| zone.is_failing = is_failing);
    }

    /// Leaves questions for a name unanswered.
    pub fn set_silent(&self, name: &str) {
        self.update_zone(|zone| zone.silent.insert(name.to_owned()));
    }

    /// Returns the number of questions so far.
    pub fn query_count(&self) -> usize {
        self.update_zone(|zone| zone.questions)
    }

    fn update_zone<T>(&self, change: impl FnOnce(&mut DnsZone) -> T) -> T {
        change(&mut self.zone.lock().expect("no holder of the lock panics"))
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(socket: UdpSocket, zone: Arc<Mutex<DnsZone>>) -> io::Result<()> {
    let mut buffer = [0; 512];
    loop {
        let (length, client) = socket.recv_from(&mut buffer).await?;
        let answer =
            answer(&buffer[..length], &mut zone.lock().expect("no holder of the lock panics"));
        if let Some(answer) = answer {
            socket.send_to(&answer, client).await?;
        }
    }
}

/// Answers a query (RFC 1035 §4.1). A datagram that is not a query gets no answer.
fn answer(query: &[u8], zone: &mut DnsZone) -> Option<Vec<u8>> {
    let (name, end) = name(query)?;
    let kind = u16::from_be_bytes(query.get(end..end + 2)?.try_into().ok()?);
    zone.questions += 1;
    if zone.silent.contains(&name) {
        return None;
    }
    let (code, addresses) = match zone.names.get(&name) {
        _ if zone.is_failing => (SERVER_FAILURE, Vec::new()),
        None => (NO_SUCH_NAME, Vec::new()),
        Some(addresses) => {
            (NO_ERROR, addresses.iter().filter(|it| has_record_type(it, kind)).collect())
        }
    };
    let mut out = query[..2].to_vec();
    // Header of a response to a recursive query, from a recursive server.
    out.extend([0x81, 0x80 | code, 0, 1]);
    out.extend(u16::try_from(addresses.len()).ok()?.to_be_bytes());
    out.extend([0; 4]);
    out.extend(&query[HEAD_BYTES..end + 4]);
    for address in addresses {
        // Pointer to the name in the question.
        out.extend([0xc0, 12]);
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        out.extend(TTL_SECONDS.to_be_bytes());
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        out.extend(u16::try_from(octets.len()).ok()?.to_be_bytes());
        out.extend(octets);
    }
    Some(out)
}

/// Returns the queried name, and the offset of its end.
fn name(query: &[u8]) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut at = HEAD_BYTES;
    loop {
        let length = usize::from(*query.get(at)?);
        if length == 0 {
            return Some((labels.join("."), at + 1));
        }
        let label = query.get(at + 1..at + 1 + length)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += 1 + length;
    }
}

fn has_record_type(address: &IpAddr, kind: u16) -> bool {
    match address {
        IpAddr::V4(_) => kind == A,
        IpAddr::V6(_) => kind == AAAA,
    }
}
