//! One question to the name servers for both families, and what came of it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::{Resolver, TokioResolver};
use tokio::time::timeout;

/// One try at one server.
const TRY: Duration = Duration::from_secs(2);
const TRIES: usize = 2;
/// All tries at all servers.
const ALL_TRIES: Duration = Duration::from_secs(8);

/// Who is asked.
pub(super) struct Ask {
    resolver: Result<TokioResolver, NetError>,
}

/// What came of asking for a name once.
pub(super) struct Round {
    pub(super) v4: Found,
    pub(super) v6: Found,
}

/// What was found for one family.
pub(super) enum Found {
    /// With the time for which they hold.
    Addresses(Vec<IpAddr>, Duration),
    /// The name is known, and has no address of this family.
    Nothing,
    /// For this reason.
    Failed(Cow<'static, str>),
}

impl Ask {
    pub(super) fn new(server: Option<SocketAddr>) -> Self {
        Self { resolver: resolver(server) }
    }

    pub(super) async fn ask(&self, host: &str) -> Round {
        let resolver = match &self.resolver {
            Ok(resolver) => resolver,
            Err(error) => return Round::failed(&error.to_string()),
        };
        let mut name = match Name::from_ascii(host) {
            Ok(name) => name,
            Err(error) => return Round::failed(&error.to_string()),
        };
        // The name is whole (an ExternalName is canonical): no search list.
        name.set_fqdn(true);
        let both = async {
            tokio::join!(resolver.ipv4_lookup(name.clone()), resolver.ipv6_lookup(name.clone()))
        };
        match timeout(ALL_TRIES, both).await {
            Ok((v4, v6)) => Round { v4: Found::from(v4), v6: Found::from(v6) },
            Err(_elapsed) => Round::failed("no answer in time"),
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
    options.timeout = TRY;
    options.attempts = TRIES;
    // Each answer is kept here, for as long as its TTL says.
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

impl Round {
    fn failed(reason: &str) -> Self {
        let failed = || Found::Failed(reason.to_owned().into());
        Self { v4: failed(), v6: failed() }
    }

    /// Why this is no whole answer.
    pub(super) fn problem(&self) -> Option<&str> {
        match (&self.v4, &self.v6) {
            (Found::Failed(reason), _) | (_, Found::Failed(reason)) => Some(reason),
            (Found::Nothing, Found::Nothing) => Some("the name has no address"),
            (Found::Addresses(..), Found::Addresses(..) | Found::Nothing)
            | (Found::Nothing, Found::Addresses(..)) => None,
        }
    }

    /// The shorter of both families'.
    pub(super) fn ttl(&self) -> Duration {
        let of = |found: &Found| match found {
            Found::Addresses(_, ttl) => *ttl,
            Found::Nothing | Found::Failed(_) => Duration::MAX,
        };
        of(&self.v4).min(of(&self.v6))
    }
}

impl From<Result<Lookup, NetError>> for Found {
    fn from(result: Result<Lookup, NetError>) -> Self {
        match result {
            Ok(lookup) => {
                let records = lookup.answers().iter();
                let ttl = records.clone().map(|record| record.ttl).min().unwrap_or(0);
                let addresses: Vec<_> =
                    records.filter_map(|record| record.data.ip_addr()).collect();
                if addresses.is_empty() {
                    return Self::Nothing;
                }
                Self::Addresses(addresses, Duration::from_secs(u64::from(ttl)))
            }
            Err(error) if error.is_nx_domain() => Self::Failed("no such name".into()),
            Err(error) if error.is_no_records_found() => Self::Nothing,
            Err(error) => Self::Failed(error.to_string().into()),
        }
    }
}
