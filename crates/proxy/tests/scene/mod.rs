//! A proxy, its configuration, and what its clients do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use gateway::Snapshot;
use gateway::matching::{Conditions, HostPattern, Match, PathPattern, RouteTable};
use gateway::snapshot::{
    Backend, BackendKey, BackendSettings, ClientSettings, EndpointSpec, Filters, Listener,
    Protocol, Rule, Source, Target, Transport, WeightedTarget,
};
use proxy::{Proxy, Settings};

/// Nothing here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Clients reach a proxy that sends requests to the first backend.
pub(crate) struct Scene {
    pub(crate) address: SocketAddr,
    #[allow(dead_code, reason = "what matters to most tests is that it runs")]
    pub(crate) proxy: Proxy,
}

impl Scene {
    pub(crate) fn with(backends: Vec<Backend>, filters: Option<Filters>) -> Self {
        let workers = NonZeroUsize::new(1).unwrap();
        let proxy = Proxy::start(Settings { workers, access_log: None, exemplars: false }).unwrap();
        proxy.apply(&snapshot(backends, filters));
        Self { address: proxy.listeners()[0].address, proxy }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// All that is answered to the request, which is the last on its connection.
    pub(crate) fn ask(&self, line: &str, fields: &str, body: &str) -> String {
        let mut socket = self.connect();
        let request = format!(
            "{line} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{fields}\r\n{body}"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer.to_lowercase()
    }
}

fn snapshot(backends: Vec<Backend>, filters: Option<Filters>) -> Snapshot {
    let target = WeightedTarget { target: Target::Backend(0), weight: 1, filters: None };
    let rule = Arc::new(Rule {
        index: 0,
        name: "rule".into(),
        targets: vec![target],
        filters: filters.map(Box::new),
        request_timeout: None,
        attempt_timeout: None,
        retry: None,
    });
    let mut routes = RouteTable::default();
    let all = Match { path: PathPattern::prefix("/").unwrap(), conditions: Conditions::default() };
    routes.add_rule(&HostPattern::Any, &HostPattern::Any, &Arc::new(all), &rule);
    let listener = Listener {
        address: ([127, 0, 0, 1], 0).into(),
        name: "listener".into(),
        client: Arc::new(ClientSettings::default()),
        protocol: Protocol::Http(routes),
        tls: None,
        http3: None,
    };
    Snapshot { listeners: vec![listener], rules: vec![rule], backends }
}

pub(crate) fn backend(name: &str, address: SocketAddr, settings: BackendSettings) -> Backend {
    let key = BackendKey {
        namespace: "default".into(),
        service: name.into(),
        port: 80,
        transport: Transport::Tcp,
    };
    let endpoints = vec![EndpointSpec { address, weight: 1, zone: None }];
    Backend { key, source: Source::Slices, endpoints, settings }
}
