//! The lease of a table and its counters: what needs neither ownership of the table nor the kernel's lock for changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::InterceptError;
use crate::netlink::NetfilterSocket;
use crate::nftables::{IpVersion, TableMessages, packets_of};
use crate::rule_table::{RuleTableConfig, names};
use crate::socket_mark::SocketMark;
use crate::socket_options::mark_socket;

/// The lease of a [`RuleTable`](crate::RuleTable), and its counters.
///
/// No method waits for other programs' changes of rules, or for those of the table: the kernel's lock for changes is
/// never needed. So the lease lasts while a change waits.
pub struct TableLease {
    socket: NetfilterSocket,
    messages: TableMessages,
    renewals: Vec<RenewalSocket>,
}

/// Sends the datagrams that renew the lease of one IP version.
struct RenewalSocket {
    socket: UdpSocket,
    target: SocketAddr,
}

impl RenewalSocket {
    fn open(proxy: SocketAddr, mark: SocketMark) -> Result<Self, InterceptError> {
        let loopback: IpAddr =
            if proxy.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        let socket = UdpSocket::bind((loopback, 0))?;
        mark_socket(&socket, mark)?;
        Ok(Self { socket, target: SocketAddr::new(loopback, proxy.port()) })
    }

    fn send(&self) -> io::Result<()> {
        match self.socket.send_to(&[], self.target) {
            // The rule drops the datagram, and the kernel says so.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// The element of the lease.
    fn key(&self) -> [u8; 1] {
        [if self.target.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }.number()]
    }
}

impl TableLease {
    /// Opens sockets of their own in the network namespace of this thread, which must be the table's.
    pub(crate) fn open(config: &RuleTableConfig) -> Result<Self, InterceptError> {
        let mark = config.marks.renewal();
        let renewals: Result<_, _> =
            config.proxy.iter().map(|proxy| RenewalSocket::open(proxy, mark)).collect();
        let messages = TableMessages { table: config.name.clone() };
        Ok(Self { socket: NetfilterSocket::open()?, messages, renewals: renewals? })
    }

    /// Puts the rules in force, for [`LEASE_TIMEOUT`](crate::LEASE_TIMEOUT) from now on.
    ///
    /// It sends a datagram that meets a rule of the table and is dropped there. A renewal by a change of the set is
    /// worse: other programs that read the rules meanwhile begin anew after each change.
    pub fn renew(&mut self) -> Result<(), InterceptError> {
        for renewal in &self.renewals {
            renewal.send()?;
        }
        if self.is_in_force()? { Ok(()) } else { Err(InterceptError::LeaseNotRenewed) }
    }

    /// True if the rules are in force, those of each IP version.
    pub fn is_in_force(&mut self) -> Result<bool, InterceptError> {
        for renewal in &self.renewals {
            match self.socket.request(&self.messages.element(names::LEASE, &renewal.key())) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Returns the SYNs that the rules have taken since the table was made, those sent again too.
    pub fn taken(&mut self) -> Result<u64, InterceptError> {
        self.count(names::TAKEN)
    }

    /// Returns the packets to the proxy's port that were refused because they were not translated.
    pub fn refused(&mut self) -> Result<u64, InterceptError> {
        self.count(names::REFUSED)
    }

    fn count(&mut self, counter: &str) -> Result<u64, InterceptError> {
        let counter = self.socket.request(&self.messages.counter_value(counter))?;
        packets_of(&counter)
            .ok_or_else(|| io::Error::other("the kernel's counter has no packets").into())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test measures time")]
mod tests {
    use std::net::SocketAddrV4;
    use std::process::Command;
    use std::time::{Duration, Instant};
    use std::{env, iter, mem, thread};

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::netlink::NetfilterMessage;
    use crate::nftables::{DataType, SetDefinition};
    use crate::{LEASE_TIMEOUT, ProxyAddresses, RENEWAL_INTERVAL, RuleTable};

    #[test]
    fn lease_is_renewed_while_a_change_waits_for_the_kernels_lock() {
        let test = || {
            if unshare(CloneFlags::CLONE_NEWNET).is_err() {
                assert!(env::var_os("CONFORMANCE_ALL").is_none(), "network namespaces need root");
                return eprintln!("skipped: needs root and network namespaces");
            }
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
            assert!(up.success());
            // One is enough, unless the machine is very fast.
            for messages in [4000, 8000, 16_000] {
                let waited = keep_lease_during_change(messages);
                eprintln!("a change waited {waited:?}");
                if waited > LEASE_TIMEOUT * 4 / 3 {
                    return;
                }
            }
            panic!("no change waited long enough");
        };
        thread::spawn(test).join().unwrap();
    }

    /// Makes changes of the rules while another program holds the lock, and renews the lease meanwhile; returns the
    /// longest time for which a change waited.
    fn keep_lease_during_change(messages: usize) -> Duration {
        let ipv4 = Some(SocketAddrV4::new([10, 0, 0, 1].into(), 15_001));
        let config = RuleTableConfig::new(ProxyAddresses { ipv4, ipv6: None });
        let mut table = RuleTable::open(config).unwrap();
        let mut lease = table.open_lease().unwrap();
        lease.renew().unwrap();
        let mut other = NetfilterSocket::open().unwrap();
        let holder = thread::spawn(move || other.commit(&long_change(messages)).unwrap());
        let changing = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            for port in 1.. {
                let begun = Instant::now();
                table.set_addresses([SocketAddr::from(([10, 96, 0, 1], port))]).unwrap();
                longest = longest.max(begun.elapsed());
                if holder.is_finished() {
                    break;
                }
                // Between changes the other program may take the lock.
                thread::sleep(Duration::from_millis(5));
            }
            (table, longest)
        });
        let mut last = Instant::now();
        while !changing.is_finished() {
            // The pass of an agent's thread.
            thread::sleep(RENEWAL_INTERVAL / 5);
            assert!(lease.is_in_force().unwrap(), "the lease has ended");
            lease.renew().unwrap();
            let elapsed = mem::replace(&mut last, Instant::now()).elapsed();
            assert!(elapsed < LEASE_TIMEOUT, "a renewal waited for {elapsed:?}");
        }
        changing.join().unwrap().1
    }

    /// Returns a change for which the kernel needs long, and holds its lock: a thousand elements that each message adds
    /// again.
    fn long_change(messages: usize) -> Vec<NetfilterMessage> {
        let table = TableMessages { table: "other".to_owned() };
        let key = DataType::IPV4;
        let set = SetDefinition { name: names::SERVICES_IPV4, key, value: None, timeout: None };
        let elements: Vec<_> =
            (0..1000_u32).map(|it| (it.to_be_bytes().to_vec(), Vec::new())).collect();
        let more = table.add_elements(set.name, &elements).next().unwrap();
        let new = [table.new_table(), table.new_set(1, &set)];
        new.into_iter().chain(iter::repeat_n(more, messages)).collect()
    }
}
