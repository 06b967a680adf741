//! One lookup of a name for both address families, and its result.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::{Resolver, TokioResolver};
use tokio::time::timeout;

/// Time limit for one query to one server.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
const TRIES: usize = 2;
/// Time limit for all queries to all servers.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(8);

/// Looks up a name.
pub(super) type LookupFunction = Arc<dyn Fn(Arc<str>) -> PendingLookup + Send + Sync>;

/// A lookup that has begun.
pub(super) type PendingLookup = Pin<Box<dyn Future<Output = DualStackLookup> + Send>>;

/// The DNS resolver.
struct HostResolver {
    resolver: Result<TokioResolver, NetError>,
}

/// Result of one lookup of a name.
pub(super) struct DualStackLookup {
    pub(super) v4: FamilyLookup,
    pub(super) v6: FamilyLookup,
}

/// Result for one address family.
pub(super) enum FamilyLookup {
    /// The addresses, with their TTL.
    Addresses(Vec<IpAddr>, Duration),
    /// The name exists and has no address of this family.
    NoAddress,
    /// The lookup failed, for this reason.
    Failed(Cow<'static, str>),
}

/// Returns lookups by this server, or by the servers of `/etc/resolv.conf`.
pub(super) fn lookup_by(server: Option<SocketAddr>) -> LookupFunction {
    let resolver = Arc::new(HostResolver { resolver: resolver(server) });
    Arc::new(move |host| {
        let resolver = Arc::clone(&resolver);
        Box::pin(async move { resolver.lookup(&host).await })
    })
}

impl HostResolver {
    async fn lookup(&self, host: &str) -> DualStackLookup {
        let resolver = match &self.resolver {
            Ok(resolver) => resolver,
            Err(error) => return DualStackLookup::failed(&error.to_string()),
        };
        let mut name = match Name::from_ascii(host) {
            Ok(name) => name,
            Err(error) => return DualStackLookup::failed(&error.to_string()),
        };
        // The name is fully qualified (an ExternalName is canonical): the search list does not
        // apply.
        name.set_fqdn(true);
        let both = async {
            tokio::join!(resolver.ipv4_lookup(name.clone()), resolver.ipv6_lookup(name.clone()))
        };
        match timeout(LOOKUP_TIMEOUT, both).await {
            Ok((v4, v6)) => {
                DualStackLookup { v4: FamilyLookup::from(v4), v6: FamilyLookup::from(v6) }
            }
            Err(_elapsed) => DualStackLookup::failed("no answer in time"),
        }
    }
}

fn resolver(server: Option<SocketAddr>) -> Result<TokioResolver, NetError> {
    let mut builder = match server {
        Some(server) => {
            let config = ResolverConfig::from_name_servers(vec![name_server(server)]);
            Resolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
        None => Resolver::builder_tokio()?,
    };
    let options = builder.options_mut();
    options.timeout = TRY_TIMEOUT;
    options.attempts = TRIES;
    // The caller keeps each answer for its TTL, so the resolver's own cache is off.
    options.cache_size = 0;
    if server.is_some() {
        options.use_hosts_file = ResolveHosts::Never;
    }
    builder.build()
}

fn name_server(server: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(server.ip());
    for connection in &mut config.connections {
        connection.port = server.port();
    }
    config
}

impl DualStackLookup {
    pub(super) fn failed(reason: &str) -> Self {
        let failed = || FamilyLookup::Failed(reason.to_owned().into());
        Self { v4: failed(), v6: failed() }
    }

    /// Returns the error if the answer is incomplete.
    pub(super) fn problem(&self) -> Option<&str> {
        match (&self.v4, &self.v6) {
            (FamilyLookup::Failed(reason), _) | (_, FamilyLookup::Failed(reason)) => Some(reason),
            (FamilyLookup::NoAddress, FamilyLookup::NoAddress) => Some("the name has no address"),
            (
                FamilyLookup::Addresses(..),
                FamilyLookup::Addresses(..) | FamilyLookup::NoAddress,
            )
            | (FamilyLookup::NoAddress, FamilyLookup::Addresses(..)) => None,
        }
    }

    /// Returns the addresses of both families.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let of = |found: &FamilyLookup| match found {
            FamilyLookup::Addresses(addresses, _) => addresses.clone(),
            FamilyLookup::NoAddress | FamilyLookup::Failed(_) => Vec::new(),
        };
        [of(&self.v4), of(&self.v6)].concat()
    }

    /// Returns the shorter TTL of the two families.
    pub(super) fn ttl(&self) -> Duration {
        let of = |found: &FamilyLookup| match found {
            FamilyLookup::Addresses(_, ttl) => *ttl,
            FamilyLookup::NoAddress | FamilyLookup::Failed(_) => Duration::MAX,
        };
        of(&self.v4).min(of(&self.v6))
    }
}

impl From<Result<Lookup, NetError>> for FamilyLookup {
    fn from(result: Result<Lookup, NetError>) -> Self {
        match result {
            Ok(lookup) => {
                let records = lookup.answers().iter();
                let ttl = records.clone().map(|record| record.ttl).min().unwrap_or(0);
                let addresses: Vec<_> =
                    records.filter_map(|record| record.data.ip_addr()).collect();
                if addresses.is_empty() {
                    return Self::NoAddress;
                }
                Self::Addresses(addresses, Duration::from_secs(u64::from(ttl)))
            }
            Err(error) if error.is_nx_domain() => Self::Failed("no such name".into()),
            Err(error) if error.is_no_records_found() => Self::NoAddress,
            Err(error) => Self::Failed(error.to_string().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lookup_without_an_answer_fails_after_a_limited_time() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let lookup = lookup_by(Some(silent.local_addr().unwrap()));
        let begun = Instant::now();
        let result = lookup("app.test".into()).await;
        assert!(result.problem().is_some());
        let took = begun.elapsed();
        assert!((TRY_TIMEOUT..=LOOKUP_TIMEOUT).contains(&took), "{took:?}");
        let mut question = [0; 512];
        silent.recv(&mut question).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn lookup_without_a_server_fails_after_a_limited_time() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let begun = Instant::now();
        assert!(lookup_by(Some(closed))("app.test".into()).await.problem().is_some());
        assert!(begun.elapsed() <= LOOKUP_TIMEOUT, "{:?}", begun.elapsed());
    }
}
