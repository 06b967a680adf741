//! The nftables table of this process, which takes connections to Services.
//!
//! The table belongs to the netlink socket that made it (`flags owner`): it goes when the process ends, however it
//! ends. Its rules are in force only while its lease lasts, so that a process that hangs lets connections go as well.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::InterceptError;
use crate::netlink::{NetfilterMessage, NetfilterSocket, TransactionRefusal};
use crate::nftables::{ElementBytes, TableMessages};
use crate::socket_mark::{MarkRange, SocketMark};
use crate::table_lease::TableLease;

/// Sets, chains and rules.
mod layout;

use layout::TableLayout;

pub(crate) use layout::names;
pub(crate) use layout::names::TABLE_PREFIX;

/// Services' addresses in one table.
const MAX_ADDRESSES: usize = 65_536;

/// Addresses of this node to which taken connections are translated.
///
/// They must be the node's own, neither loopback nor link-local: pods could not reach those.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProxyAddresses {
    /// Listening socket for connections to IPv4 addresses; `None`: they are not taken.
    pub ipv4: Option<SocketAddrV4>,
    /// Listening socket for connections to IPv6 addresses; `None`: they are not taken.
    pub ipv6: Option<SocketAddrV6>,
}

impl ProxyAddresses {
    /// The addresses that are there.
    pub fn iter(self) -> impl Iterator<Item = SocketAddr> {
        let ipv4 = self.ipv4.map(SocketAddr::V4);
        ipv4.into_iter().chain(self.ipv6.map(SocketAddr::V6))
    }
}

/// Configuration of a table.
#[derive(Clone, Debug)]
pub struct RuleTableConfig {
    /// Name of the table, of its own for each process: an upgrade has two for a while. See [`Self::new`].
    pub name: String,
    /// Sockets that accept what is taken.
    pub proxy: ProxyAddresses,
    /// Marks of our own packets.
    pub marks: MarkRange,
}

impl RuleTableConfig {
    /// Returns the configuration of the process that listens on these addresses, with marks by default and a name that
    /// has the port, for a port belongs to one process.
    pub fn new(proxy: ProxyAddresses) -> Self {
        let port = proxy.iter().next().map_or(0, |address| address.port());
        Self { name: format!("{}{port}", TABLE_PREFIX), proxy, marks: MarkRange::default() }
    }
}

/// The table, and what is in it. When this is dropped, the kernel removes the table.
///
/// Connections that were taken stay with the proxy. All methods return at once, or after other programs' changes of
/// rules, for which the kernel has one lock: call them on a thread that may wait, never on a worker, and renew the
/// lease on another ([`Self::open_lease`]). The table is in the network namespace of the thread that opens it.
pub struct RuleTable {
    socket: NetfilterSocket,
    messages: TableMessages,
    config: RuleTableConfig,
    addresses: BTreeSet<SocketAddr>,
    clients: BTreeMap<(SocketMark, bool), IpAddr>,
}

impl RuleTable {
    /// Makes the table. It takes nothing until there are addresses, and a lease.
    pub fn open(config: RuleTableConfig) -> Result<Self, InterceptError> {
        let messages = TableMessages { table: config.name.clone() };
        let layout = TableLayout::new(&config);
        let (parts, table): (Vec<_>, Vec<_>) = layout.messages(&messages).into_iter().unzip();
        let mut socket = NetfilterSocket::open()?;
        socket
            .commit(&table)
            .map_err(|rejection| cause_of_refusal(rejection, &config.name, &parts))?;
        let (addresses, clients) = Default::default();
        Ok(Self { socket, messages, config, addresses, clients })
    }

    /// True if connections to this address can be taken: there is a proxy address of its IP version.
    pub fn can_take(&self, address: SocketAddr) -> bool {
        match address {
            SocketAddr::V4(_) => self.config.proxy.ipv4.is_some(),
            SocketAddr::V6(_) => self.config.proxy.ipv6.is_some(),
        }
    }

    /// The addresses whose connections are taken.
    pub fn addresses(&self) -> &BTreeSet<SocketAddr> {
        &self.addresses
    }

    /// Replaces the addresses, ClusterIP and TCP port each, whose connections are taken, in one transaction.
    ///
    /// Addresses that cannot be taken ([`Self::can_take`]) are left out. After an error the old ones are in force.
    pub fn set_addresses(
        &mut self,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<(), InterceptError> {
        let wanted: BTreeSet<_> = addresses.into_iter().filter(|it| self.can_take(*it)).collect();
        check_limit("addresses of Services", wanted.len(), MAX_ADDRESSES)?;
        let mut changes = Vec::new();
        for (set, is_ipv4) in [(names::SERVICES_IPV4, true), (names::SERVICES_IPV6, false)] {
            let elements = |these: &BTreeSet<SocketAddr>, others: &BTreeSet<SocketAddr>| {
                let ours = these.difference(others).filter(|it| it.is_ipv4() == is_ipv4);
                ours.map(|it| (service_key(*it), Vec::new())).collect::<Vec<ElementBytes>>()
            };
            let (gone, new) =
                (elements(&self.addresses, &wanted), elements(&wanted, &self.addresses));
            changes.extend(self.messages.delete_elements(set, &gone));
            changes.extend(self.messages.add_elements(set, &new));
        }
        self.commit(&changes, "the addresses")?;
        self.addresses = wanted;
        Ok(())
    }

    /// Returns the lease of this table, and its counters, for another thread: it has sockets of its own, opened in the
    /// network namespace of this thread.
    pub fn open_lease(&self) -> Result<TableLease, InterceptError> {
        TableLease::open(&self.config)
    }

    /// Ends the lease at once: from now on new connections take the way of kube-proxy's rules.
    ///
    /// Connections that were taken stay, and keep their clients' addresses towards endpoints.
    pub fn withdraw(&mut self) -> Result<(), InterceptError> {
        let flush = self.messages.flush_set(names::LEASE);
        self.commit(&[flush], "the end of the lease")
    }

    /// Makes connections with this mark come from the client's address. A client's mark can stand for an IPv4 address
    /// and for an IPv6 address.
    pub fn add_client(&mut self, mark: SocketMark, address: IpAddr) -> Result<(), InterceptError> {
        let key = (mark, address.is_ipv4());
        if self.clients.get(&key) == Some(&address) {
            return Ok(());
        }
        let mut changes = self.client_removal(key);
        let element = [(mark.value().to_ne_bytes().to_vec(), address_bytes(address))];
        changes.extend(self.messages.add_elements(client_map(address.is_ipv4()), &element));
        self.commit(&changes, "the client's address")?;
        self.clients.insert(key, address);
        Ok(())
    }

    /// Removes a client; its mark can then stand for another. Connections that exist are not changed.
    pub fn remove_client(
        &mut self,
        mark: SocketMark,
        address: IpAddr,
    ) -> Result<(), InterceptError> {
        let key = (mark, address.is_ipv4());
        let changes = self.client_removal(key);
        self.commit(&changes, "the client's address")?;
        self.clients.remove(&key);
        Ok(())
    }

    fn client_removal(&self, key: (SocketMark, bool)) -> Vec<NetfilterMessage> {
        let Some(address) = self.clients.get(&key) else { return Vec::new() };
        let element = [(key.0.value().to_ne_bytes().to_vec(), address_bytes(*address))];
        self.messages.delete_elements(client_map(key.1), &element).collect()
    }

    fn commit(
        &mut self,
        changes: &[NetfilterMessage],
        part: &'static str,
    ) -> Result<(), InterceptError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.socket.commit(changes).map_err(|TransactionRefusal { error: source, .. }| {
            InterceptError::RefusedPart { part: part.to_owned(), source }
        })
    }
}

/// Says what the kernel means by refusing a new table.
fn cause_of_refusal(rejection: TransactionRefusal, name: &str, parts: &[String]) -> InterceptError {
    let TransactionRefusal { position, error: source } = rejection;
    let code = source.raw_os_error().unwrap_or_default();
    match position {
        None if code == libc::EOPNOTSUPP || code == libc::EINVAL => InterceptError::NoNftables,
        // EPERM: it has another owner.
        Some(0) if code == libc::EEXIST || code == libc::EPERM => {
            InterceptError::ForeignTable { name: name.to_owned() }
        }
        // Kernels refuse flags of tables that they do not know.
        Some(0) if code == libc::EINVAL || code == libc::EOPNOTSUPP => {
            InterceptError::NoOwnedTables
        }
        Some(0) if code == libc::EAFNOSUPPORT => InterceptError::NoNftables,
        Some(position) => {
            let part = parts.get(position).map_or("a part", String::as_str).to_owned();
            InterceptError::RefusedPart { part, source }
        }
        None => source.into(),
    }
}

fn check_limit(what: &'static str, count: usize, limit: usize) -> Result<(), InterceptError> {
    if count > limit { Err(InterceptError::TooMany { what, count, limit }) } else { Ok(()) }
}

fn client_map(is_ipv4: bool) -> &'static str {
    if is_ipv4 { names::CLIENTS_IPV4 } else { names::CLIENTS_IPV6 }
}

fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Returns address and port as a set has them: each begins at a multiple of four bytes.
fn service_key(address: SocketAddr) -> Vec<u8> {
    let mut key = address_bytes(address.ip());
    key.extend(address.port().to_be_bytes());
    key.extend([0; 2]);
    key
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refusal(position: Option<usize>, code: i32) -> InterceptError {
        let error = io::Error::from_raw_os_error(code);
        cause_of_refusal(
            TransactionRefusal { position, error },
            "sheave_1",
            &["the table".to_owned()],
        )
    }

    #[test]
    fn refusal_of_the_kernel_has_a_cause() {
        use InterceptError::{ForeignTable, MissingCapability, NoNftables, NoOwnedTables};
        assert!(matches!(refusal(None, libc::EPERM), MissingCapability));
        assert!(matches!(refusal(None, libc::EOPNOTSUPP), NoNftables));
        assert!(matches!(refusal(Some(0), libc::EEXIST), ForeignTable { .. }));
        assert!(matches!(refusal(Some(0), libc::EPERM), ForeignTable { .. }));
        assert!(matches!(refusal(Some(0), libc::EINVAL), NoOwnedTables));
        let other = refusal(Some(0), libc::ENOMEM).to_string();
        assert_eq!(other, "the kernel refuses the table of the nftables table");
    }

    #[test]
    fn keys_of_services_are_padded() {
        let key = service_key("10.0.0.1:80".parse().unwrap());
        assert_eq!(key, [10, 0, 0, 1, 0, 80, 0, 0]);
        assert_eq!(service_key("[fd00::1]:443".parse().unwrap()).len(), 20);
    }
}
