//! The command line: its flags, and the checks that need more than one of them.

/// Parsers for the values of flags: addresses, shares and durations.
mod values;
/// Flags for a Kubernetes cluster.
mod cluster;
/// Flags of the API of metrics.
mod metrics_api;
/// Flags of replicas.
mod replicas;
/// Flags of transparent mode.
mod transparent;
/// Flags of the kubectl plugin.
mod kubectl;
/// Flags of the layer-4 agent.
mod l4_agent;
/// Flags of the xDS server.
mod xds;
/// Flags of traces.
mod traces;
/// Kubernetes objects built from `--listen` and `--to`.
mod shorthand;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gateway::objects::MaxInFlight;

use crate::explain::ServiceName;
use crate::top::SortOrder;
pub(crate) use cluster::ClusterFlags;
pub(crate) use kubectl::{
    ClusterAccessFlags, KubectlCommand, KubectlFlags, LiveSourceFlags, PluginExplainFlags,
    PluginTopFlags, TapFlags,
};
pub(crate) use l4_agent::{DeliveryChoice, L4Flags};
pub(crate) use metrics_api::MetricsApiFlags;
pub(crate) use replicas::{CutOffRule, ReplicaFlags};
pub(crate) use traces::TraceFlags;
pub(crate) use transparent::TransparentFlags;
pub(crate) use values::{
    AdminAddress, ListenUrl, LoggedShare, MemoryLimit, PortRange, ServiceTemplate, ToAddress,
};
pub(crate) use xds::{BootstrapFlags, XdsClient, XdsCommand, XdsFlags};

/// Sheave balances requests, not connections, over the endpoints of a Service.
#[derive(Debug, Parser)]
#[command(name = "sheave", version, max_term_width = 100)]
#[command(after_help = "\
Examples:
  sheave serve --listen http://:8080 --to 10.0.0.1:80,10.0.0.2:80
  sheave serve --config /etc/sheave
  sheave check /etc/sheave
  sheave explain /etc/sheave GET http://shop.example/cart
  sheave top
  sheave dashboard
  sheave kubectl status

Exit codes: 0 success, 1 invalid input, 2 Sheave failed.")]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Serve requests.
    ///
    /// The configuration comes from files of Kubernetes objects (--config), from --listen and --to, from a cluster
    /// (--kubernetes), or from several of them. Files are watched: an edit takes effect within milliseconds. An edit
    /// with errors is reported and changes nothing.
    Serve(Box<ServeFlags>),
    /// Check configuration files and report every error in them.
    ///
    /// Prints one line per error on standard output: file, document, object, field, message. The exit code is 1 if
    /// there is an error.
    Check(CheckFlags),
    /// Write the Gateway API objects and policies that mean the same as Ingresses.
    ///
    /// Reads Ingresses with the annotations of ingress-nginx, HAProxy Ingress and HAProxy's controller, their
    /// IngressClasses and Services from files, and changes nothing. Standard output gets the objects, standard error a
    /// report: for each Ingress whether its requests are served as before, with which differences, or why not. The exit
    /// code is 1 if an Ingress is refused.
    Migrate(MigrateFlags),
    /// Explain how a request would be routed, or how a Service will be scaled, and why.
    ///
    /// Reads files only and sends nothing. Prints the listener and the rule that would match and why no other rule
    /// does, the changes made to the request, the backends and endpoints it may go to, and every setting in effect with
    /// its source. With --scaling: reads the demand for a Service from a running Sheave, and HorizontalPodAutoscalers
    /// from the API server of KUBECONFIG or of the pod. Prints what each autoscaler that scales by a metric of the
    /// Service will do at its next sync.
    Explain(Box<ExplainFlags>),
    /// Show live statistics of a running Sheave, per backend.
    ///
    /// Refreshes a table in the terminal: requests, failures and retries per second, requests in flight and the slots
    /// available, queued requests, demand (concurrent requests, mean over 15 s), latency to the response header
    /// (learned by PeakEwma only), health. Without a terminal, prints the table once. Of a `sheave l4` it shows
    /// connections, packets and bits per second of Services and endpoints, by packets unless by name.
    Top(TopFlags),
    /// Print the address of the dashboard of a running Sheave, and open it in a browser.
    ///
    /// The dashboard is a page of the admin API: curves, the way of requests as a picture, endpoints, queues,
    /// certificates, errors of the configuration, and `explain` as a form. It shows and changes nothing. With
    /// --port-forward, runs `kubectl port-forward` to a Sheave in the cluster of the current kubeconfig until it is
    /// stopped.
    Dashboard(DashboardFlags),
    /// Look at a Sheave in a cluster, over the API server: the commands of the kubectl plugin.
    ///
    /// An executable of the name kubectl-sheave on PATH, which may be a link to this one, makes them `kubectl sheave`.
    Kubectl(Box<KubectlFlags>),
    /// Announce the addresses of a cluster's pool on this node, as long as a Sheave serves them
    /// here.
    ///
    /// For clusters without a load balancer, beside `sheave serve --kubernetes --pool`. For each address, one node
    /// holds the address and announces it on the link (ARP, Neighbor Discovery): the node with the most of the
    /// endpoints behind it. Nodes agree by leader election with one Lease per address. If that node fails, another node
    /// takes the address over within 5 s. Needs NET_ADMIN and NET_RAW in the node's network namespace, and the API
    /// server of KUBECONFIG or of its pod.
    Announce(AnnounceFlags),
    /// Deliver packets of virtual addresses on this node by eBPF, for Services of type LoadBalancer.
    ///
    /// For Services with `loadBalancerClass: sheave.dev/l4` and an address in their status: connections and datagrams
    /// reach a pod, on this node or another one, without a proxy, and the pod sees the client's address. Run it on each
    /// node, on the node's network. Services that ask for more (`sheave.dev/balance: requests`) stay with
    /// the proxy. The data path goes on when the process ends. Needs BPF, NET_ADMIN and PERFMON, Linux 6.1 or later,
    /// and a BPF file system.
    L4(Box<L4Flags>),
    /// Ask a Sheave in this container whether it is alive, or ready.
    ///
    /// For exec probes of Kubernetes where an HTTP probe has no port of its own: during an update, two pods are on the
    /// network of one node. The address of the probes is in the file of `sheave serve --ready-file`.
    Probe(ProbeFlags),
    /// Help gRPC clients and Envoys to use the xDS server of `sheave serve --xds`.
    Xds {
        #[command(subcommand)]
        command: XdsCommand,
    },
}

/// Flags of `sheave serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Two endpoints behind one port:
    sheave serve --listen http://:8080 --to 10.0.0.1:80,10.0.0.2:80
  At most 4 requests in flight per endpoint; others wait in the queue for up to 2 seconds:
    sheave serve --listen http://:8080 --to 10.0.0.1:80,10.0.0.2:80 --max-in-flight 4 --queue-timeout 2s
  HTTPS with a certificate that is reloaded on renewal (without one: self-signed):
    sheave serve --listen https://:443 --cert tls.crt --key tls.key --to 10.0.0.1:80,10.0.0.2:80
  TCP connections, each to the database with the fewest connections:
    sheave serve --listen tcp://:5432 --to 10.0.0.1:5432,10.0.0.2:5432
  The Gateways of a Kubernetes cluster, each at an address of its own:
    sheave serve --kubernetes --pool 192.0.2.0/24
  The Services of a cluster that are annotated with sheave.dev/balance=requests, on each node:
    sheave serve --kubernetes --transparent
  A directory of Kubernetes objects, watched, with 1 % of the requests logged:
    sheave serve --config /etc/sheave --access-log 0.01

Signals: SIGTERM and SIGINT start a graceful shutdown (a second signal stops at once), SIGHUP reloads the files.
SIGUSR1, SIGUSR2 and others that would end a process are ignored.
Log events go to standard error; SHEAVE_LOG sets the level (debug, info, warn, error).
Exit codes: 0 success, 1 invalid input, 2 Sheave failed or closed connections with requests in flight.")]
pub(crate) struct ServeFlags {
    /// File or directory of Kubernetes objects (YAML or JSON); repeatable.
    ///
    /// In a directory, the files *.yaml, *.yml and *.json are read; hidden files and subdirectories are not.
    #[arg(long, value_name = "PATH", help_heading = SOURCES)]
    pub(crate) config: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,

    #[command(flatten)]
    pub(crate) transparent: TransparentFlags,

    #[command(flatten)]
    pub(crate) shorthand: ListenFlags,

    /// DNS server for the addresses of ExternalName Services, as ADDRESS or ADDRESS:PORT [default: the servers of
    /// /etc/resolv.conf].
    #[arg(long, value_name = "ADDR", value_parser = values::name_server, help_heading = SOURCES)]
    pub(crate) dns: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) replica: ReplicaFlags,

    #[command(flatten)]
    pub(crate) metrics_api: MetricsApiFlags,

    #[command(flatten)]
    pub(crate) xds: XdsFlags,

    /// File with the key of session affinity: 16 bytes to 4 KiB that clients do not know, the same for all replicas.
    ///
    /// Cookies name their endpoint by a hash with this key. Without the flag the key is the UID of the Service in its
    /// cluster; for Services of files, which have no UID, it is a random one, so that clients may get another endpoint
    /// when this process restarts. The file is read at the start. `head -c 32 /dev/urandom` makes a key.
    #[arg(long, value_name = "PATH", help_heading = SOURCES)]
    pub(crate) affinity_key_file: Option<PathBuf>,

    /// Address of the admin API (metrics, health, state), or `off`; port 0 takes any free port.
    ///
    /// With --transparent, an address that is taken is bound as soon as the other process has ended: during an update,
    /// two pods are on the network of one node.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", help_heading = PROCESS)]
    pub(crate) admin: AdminAddress,

    /// Host name of the admin API, besides addresses, names without a dot, this machine's name and names below .svc and
    /// .cluster.local; repeatable.
    ///
    /// A request for any other host name is rejected with 421, because a web page could make its own name resolve to
    /// this API.
    #[arg(long, value_name = "NAME", value_parser = values::host_name, help_heading = PROCESS)]
    pub(crate) admin_host: Vec<String>,

    /// Address of /healthz and /readyz alone, for the probes of Kubernetes, or `off`; port 0 takes any free port.
    ///
    /// The admin API serves the same paths. Clients that use up its connections do not affect this address.
    #[arg(long, value_name = "ADDR", default_value = "off", help_heading = PROCESS)]
    pub(crate) probes: AdminAddress,

    /// Address of KEDA's external scaler (gRPC without TLS), or `off`; port 0 takes any free port.
    ///
    /// It reports the demand of a Service (concurrent requests) to KEDA. KEDA's operator has to reach it, so it has a
    /// port apart from the admin API: in a cluster, use :9901.
    #[arg(long, value_name = "ADDR", default_value = "off", help_heading = PROCESS)]
    pub(crate) scaler: AdminAddress,

    /// Worker threads that serve requests [default: one per CPU available to this process].
    #[arg(long, value_name = "N", value_parser = values::workers, help_heading = PROCESS)]
    pub(crate) workers: Option<NonZeroUsize>,

    /// Memory that this process may have, as 512Mi or 1G, or `off`; `auto` is the limit of its control group, or the
    /// memory of the machine.
    ///
    /// As memory fills, Sheave announces smaller flow-control windows, resets stalled transfers of the connections that
    /// hold the most, and at last accepts no new connections.
    #[arg(long, value_name = "SIZE|auto|off", default_value = "auto", help_heading = PROCESS)]
    pub(crate) memory_limit: MemoryLimit,

    /// Time after SIGTERM during which new connections are still accepted, while load balancers and clients learn of
    /// the shutdown.
    ///
    /// /readyz answers 503 at once, and each response tells the client to reconnect. In a cluster, set it to the time
    /// until no more new connections are sent to this pod.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration, help_heading = PROCESS)]
    pub(crate) drain_delay: Duration,

    /// Time that requests in flight have to complete after the drain delay.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration, help_heading = PROCESS)]
    pub(crate) drain_timeout: Duration,

    /// Unix socket for upgrades in place.
    ///
    /// A process that is started with the same path takes over the listening sockets of the running one, without a
    /// lost request: when the new process serves, the running one drains and exits with code 0. If the new process
    /// fails before that, the running one stays. Only processes of the same user can take over.
    #[arg(long, value_name = "PATH", conflicts_with = "kubernetes", help_heading = PROCESS)]
    pub(crate) upgrade_socket: Option<PathBuf>,

    /// File to write when all listeners are bound: JSON with their addresses.
    #[arg(long, value_name = "PATH", help_heading = PROCESS)]
    pub(crate) ready_file: Option<PathBuf>,

    /// Access log, one line of JSON per request on standard output: `off`, `on`, or the share of
    /// requests that are logged.
    #[arg(long, value_name = "off|on|FRACTION", default_value = "off", help_heading = OBSERVE)]
    pub(crate) access_log: LoggedShare,

    /// Add OpenMetrics exemplars to /metrics: each bucket of a duration histogram carries the id of the last sampled
    /// trace that fell into it.
    #[arg(long, help_heading = OBSERVE)]
    pub(crate) exemplars: bool,

    #[command(flatten)]
    pub(crate) traces: TraceFlags,

    /// Format of log events on standard error.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text, help_heading = OBSERVE)]
    pub(crate) log_format: LogFormat,
}

/// Flags that stand for Kubernetes objects.
#[derive(Debug, Default, Args)]
pub(crate) struct ListenFlags {
    /// Address to listen on: http://ADDRESS:PORT for requests, https:// with TLS (and HTTP/3), tcp:// for connections,
    /// udp:// for flows of datagrams. Without ADDRESS: all addresses; with port 0: any free port; repeatable.
    #[arg(long, value_name = "URL", help_heading = SOURCES)]
    pub(crate) listen: Vec<ListenUrl>,

    /// Certificate for https, PEM with its chain; repeatable, each with its --key. A client gets the first certificate
    /// that matches its SNI host name, else the first of all. The files are watched [default: a self-signed
    /// certificate].
    #[arg(long, value_name = "FILE", help_heading = SOURCES)]
    pub(crate) cert: Vec<PathBuf>,

    /// Private key of a certificate, PEM; repeatable, in the order of --cert.
    #[arg(long, value_name = "FILE", help_heading = SOURCES)]
    pub(crate) key: Vec<PathBuf>,

    /// Serve https without HTTP/3. HTTP/3 uses the UDP port of the same number.
    #[arg(long, help_heading = SOURCES)]
    pub(crate) no_http3: bool,

    /// Endpoints to balance over, as ADDRESS:PORT or NAME:PORT. A name is resolved once at the start, and each of its
    /// addresses becomes an endpoint.
    #[arg(long, value_name = "ADDR,ADDR...", value_delimiter = ',', help_heading = SOURCES)]
    pub(crate) to: Vec<ToAddress>,

    /// Maximum number of requests in flight per endpoint of --to: a number, or `auto` for an adaptive concurrency limit
    /// per endpoint [default: no limit].
    #[arg(long, value_name = "N", value_parser = values::max_in_flight, help_heading = SOURCES)]
    pub(crate) max_in_flight: Option<MaxInFlight>,

    /// Maximum number of requests queued for the endpoints of --to; if the queue is full, requests are rejected with
    /// 429 [default: 1024 with --max-in-flight, else 0].
    #[arg(long, value_name = "N", help_heading = SOURCES)]
    pub(crate) queue: Option<u32>,

    /// Maximum time that a request waits in the queue for an endpoint of --to [default: 5s].
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration, help_heading = SOURCES)]
    pub(crate) queue_timeout: Option<Duration>,
}

/// Flags of `sheave check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave check /etc/sheave
  sheave check gateway.yaml routes.yaml
  sheave check --cluster --context production

Files are checked together: a route in one may refer to a Gateway in another.
Of a cluster, every object that Sheave reads is checked; kinds that you may not list are named.
Exit codes: 0 no errors, 1 errors, or a kind was not checked.")]
pub(crate) struct CheckFlags {
    /// Files and directories, as for `sheave serve --config`.
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) live: LiveSourceFlags,
}

/// Flags of `sheave migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  All Ingresses of a cluster:
    sheave migrate --cluster > gateway-api.yaml
  The same from a file:
    kubectl get ingressclasses,ingresses,services -A -o yaml > all.yaml
    sheave migrate all.yaml > gateway-api.yaml
  Only those of one class:
    sheave migrate --ingress-class nginx all.yaml > gateway-api.yaml
  Whether requests of a log are answered the same:
    sheave migrate --compare http://10.0.0.7 http://10.0.0.8 --access-log access.log --host shop.example

Exit codes: 0 success, 1 invalid input, a refused Ingress or answers that differ, 2 Sheave failed.")]
pub(crate) struct MigrateFlags {
    /// Files and directories of Ingresses, IngressClasses and Services; objects of other kinds are ignored.
    #[arg(conflicts_with = "compare", value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) live: LiveSourceFlags,
    #[command(flatten)]
    pub(crate) target: MigrationTargetFlags,
    #[command(flatten)]
    pub(crate) comparison: CompareFlags,
}

/// Flags of what a migration writes.
#[derive(Debug, Args)]
pub(crate) struct MigrationTargetFlags {
    /// Migrate only the Ingresses of this IngressClass [default: all].
    #[arg(long, value_name = "NAME")]
    pub(crate) ingress_class: Option<String>,
    /// The GatewayClass of the Gateways.
    #[arg(long, value_name = "NAME", default_value = "sheave")]
    pub(crate) gateway_class: String,
    /// The namespace of the Gateways.
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    pub(crate) gateway_namespace: String,
}

/// Flags of `sheave migrate --compare`.
#[derive(Debug, Args)]
pub(crate) struct CompareFlags {
    /// Send the requests of access logs to two servers, the former and the new one, and say where the answers differ.
    ///
    /// Each request with GET, HEAD or OPTIONS is sent once to each, with the host of the log: status, Location, types,
    /// names of header fields and cookies, and bodies are compared. What varies at one server by itself is no
    /// difference. Others are not sent again: they may change something.
    #[arg(long, num_args = 2, value_names = ["URL1", "URL2"], requires = "access_log",
        conflicts_with_all = ["cluster", "ingress_class", "gateway_class", "gateway_namespace"])]
    pub(crate) compare: Vec<String>,
    /// Access log: lines of JSON (of Sheave, or with `request` or `request_uri`, and `host`), or with a quoted request
    /// line, as nginx has by default.
    #[arg(long, value_name = "FILE", requires = "compare")]
    pub(crate) access_log: Vec<PathBuf>,
    /// The host of requests whose lines have none.
    #[arg(long, value_name = "HOST", requires = "compare")]
    pub(crate) host: Option<String>,
    /// Number of different requests that are sent, in the order of the log.
    #[arg(long, value_name = "COUNT", requires = "compare", default_value = "1000")]
    pub(crate) limit: NonZeroUsize,
}

/// Flags of `sheave explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave explain /etc/sheave GET http://shop.example/cart
  sheave explain gateway.yaml POST 'http://127.0.0.1:8080/search?q=a' -H 'Host: shop.example' -H 'X-Canary: yes'
  sheave explain --scaling shop/web

The port of the URL selects the listener.
Exit codes: 0 success, 1 the request or the files are invalid, or no listener has that port; no route refers to the
Service, or the admin API does not answer.")]
pub(crate) struct ExplainFlags {
    /// File or directory, as for `sheave serve --config`.
    #[arg(value_name = "PATH", required_unless_present = "scaling")]
    pub(crate) path: Option<PathBuf>,

    /// Method of the request, for example GET.
    #[arg(value_name = "METHOD", required_unless_present = "scaling")]
    pub(crate) method: Option<String>,

    /// URL of the request, as http://HOST:PORT/PATH?QUERY.
    #[arg(value_name = "URL", required_unless_present = "scaling")]
    pub(crate) url: Option<String>,

    /// Header field of the request, as 'name: value'; repeatable. A Host field overrides the host
    /// of the URL.
    #[arg(short = 'H', long, value_name = "FIELD")]
    pub(crate) header: Vec<String>,

    /// Service whose scaling is explained, as NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT.
    #[arg(long, value_name = "SERVICE", value_parser = ServiceName::parse, conflicts_with_all = ["path", "method", "url", "header"])]
    pub(crate) scaling: Option<ServiceName>,

    /// Address of the admin API that tells the demand for --scaling; with --lease-slots, any replica's.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", value_parser = values::admin_api)]
    pub(crate) admin: SocketAddr,
}

/// Flags of `sheave top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave top
  sheave top --admin 10.0.0.7:9900 --sort failures
  Traffic of the eBPF data path of this node:
    sheave top --admin 127.0.0.1:9911
  Ten tables, one every five seconds, for a file:
    sheave top --interval 5s --count 10 > top.txt

Keys: q quits; r, i, w, f, t, l and n sort by requests, in flight, waiting, failures, retries, latency and name.
Exit codes: 0 success, 1 the admin API does not answer.")]
pub(crate) struct TopFlags {
    /// Address of the admin API.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", value_parser = values::admin_api)]
    pub(crate) admin: SocketAddr,

    #[command(flatten)]
    pub(crate) tables: TableFlags,
}

/// Number and order of tables of statistics.
#[derive(Debug, Args)]
pub(crate) struct TableFlags {
    /// Refresh interval [default: 1s].
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration)]
    pub(crate) interval: Option<Duration>,

    /// Number of tables to print as plain text before exiting [default: in a terminal, one table that is refreshed
    /// until `q`; else 1, or unlimited with --interval].
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<NonZeroU32>,

    /// Column to sort by.
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = SortOrder::Requests)]
    pub(crate) sort: SortOrder,
}

/// Flags of `sheave dashboard`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave dashboard
  sheave dashboard --admin 10.0.0.7:9900 --no-open
  A Sheave in a cluster:
    sheave dashboard --port-forward deployment/sheave

The browser is opened if standard output is a terminal and there is a display.
Exit codes: 0 success, 1 the admin API does not answer, or kubectl fails.")]
pub(crate) struct DashboardFlags {
    /// Address of the admin API.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", value_parser = values::admin_api)]
    pub(crate) admin: SocketAddr,

    /// Print the URL only.
    #[arg(long)]
    pub(crate) no_open: bool,

    /// Pod or workload of Sheave in the cluster, as `kubectl port-forward` takes it; kubectl must be installed.
    #[arg(long, value_name = "TARGET", conflicts_with = "admin")]
    pub(crate) port_forward: Option<String>,

    /// Namespace of the target of --port-forward.
    #[arg(long, short = 'n', value_name = "NAME", default_value = "sheave-system")]
    pub(crate) namespace: String,
}

/// Flags of `sheave announce`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  In a pod with hostNetwork, with the node name from the downward API:
    sheave announce --node $(NODE_NAME)
  For addresses of a network in which the node has no address:
    sheave announce --interface eth1

The Sheave at --admin tells which addresses to announce. While it is not ready, no address is announced.
Signals: SIGTERM and SIGINT release all addresses, so that another node takes them over.
Exit codes: 0 success, 1 invalid input, 2 Sheave failed.")]
pub(crate) struct AnnounceFlags {
    /// Address of the admin API of the Sheave on this node.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", value_parser = values::admin_api)]
    pub(crate) admin: SocketAddr,

    /// Name of this node in Kubernetes [default: the host name].
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// Namespace of the Leases, one per address [default: that of the credentials].
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Ethernet interface for the addresses [default: for each address, the interface on the network of that address].
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,

    /// BGP Identifier of this node, unique in its AS, for the routers of BgpPeers [default: the lowest IPv4 address of
    /// its interfaces].
    #[arg(long, value_name = "IPV4")]
    pub(crate) router_id: Option<Ipv4Addr>,

    /// Time between the withdrawal of routes and the end of the BGP sessions, at the end: until then packets that are on
    /// their way are still accepted.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = values::duration)]
    pub(crate) withdraw_delay: Duration,

    /// Address of /metrics, which has the state of the BGP sessions [default: none].
    #[arg(long, value_name = "ADDR", value_parser = values::admin_api)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Time after SIGTERM during which the addresses are still announced, while the Sheave on this node tells its
    /// clients to reconnect. Set it lower than the --drain-delay of that Sheave.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    pub(crate) drain_delay: Duration,

    /// Format of log events on standard error.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// Flags of `sheave probe`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave serve --kubernetes --transparent --probes 127.0.0.1:0 --ready-file /run/sheave/ready.json
  sheave probe ready --ready-file /run/sheave/ready.json

Exit codes: 0 yes, 1 no, or there is no answer within 2 s.")]
pub(crate) struct ProbeFlags {
    /// Question: `live` asks /healthz, `ready` asks /readyz.
    #[arg(value_name = "QUESTION", value_enum)]
    pub(crate) question: ProbeQuestion,

    /// File that `sheave serve --ready-file` has written.
    #[arg(long, value_name = "PATH")]
    pub(crate) ready_file: PathBuf,
}

/// Question of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProbeQuestion {
    /// The process is to stay.
    Live,
    /// The process serves.
    Ready,
}

/// Format of log events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// Variable with the name of the node, as the downward API sets it.
const NODE_NAME: &str = "NODE_NAME";

const SOURCES: &str = "What to serve";
const PROCESS: &str = "Process";
const OBSERVE: &str = "Logs and metrics";

impl ServeFlags {
    /// Returns the error of a combination of flags that is invalid: one sentence that names the
    /// remedy.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        let ListenFlags { listen, cert, key, no_http3, to, max_in_flight, queue, queue_timeout } =
            &self.shorthand;
        if cert.len() != key.len() {
            return Some("give a --key for each --cert, in the same order");
        }
        if !cert.is_empty() && !self.shorthand.listens_to_https() {
            return Some(
                "--cert and --key are for https: add --listen https://:443, or write a Secret into \
                 a file of --config",
            );
        }
        if *no_http3 && !self.shorthand.listens_to_https() {
            return Some(
                "--no-http3 is for https: add --listen https://:443, or write `http3` into a \
                 ClientPolicy of --config",
            );
        }
        let uses_node = self.transparent.transparent || self.cluster.load_balancer;
        if self.transparent.node_name.is_some() && !uses_node {
            return Some("--node-name is for --transparent and --load-balancer: add one of them");
        }
        if self.metrics_api.metrics_api != AdminAddress::Off && !self.cluster.kubernetes {
            return Some("--metrics-api is an API of a cluster: add --kubernetes");
        }
        if let Some(conflict) = self.xds.conflict() {
            return Some(conflict);
        }
        let has_peers = self.cluster.peers.is_some();
        if let Some(conflict) = self.replica.conflict(has_peers) {
            return Some(conflict);
        }
        let limited = max_in_flight.is_some() || queue.is_some() || queue_timeout.is_some();
        match (listen.is_empty(), to.is_empty()) {
            (true, true) if limited => Some(
                "--max-in-flight, --queue and --queue-timeout are for the endpoints of --to: \
                 add --listen and --to, or write a BackendPolicy into a file of --config",
            ),
            (true, true) if self.config.is_empty() && !self.cluster.kubernetes => Some(
                "nothing to serve: name files with --config, an address with --listen and \
                 endpoints with --to, or a cluster with --kubernetes",
            ),
            (true, false) => Some(
                "--to needs an address to accept requests on: add --listen http://127.0.0.1:8080",
            ),
            (false, true) => Some(
                "--listen needs endpoints to send requests to: add --to ADDR,ADDR; to \
                 configure the listener by files, add it to a Gateway of --config instead",
            ),
            (true, true) | (false, false) => None,
        }
    }
}

/// Generator of `docs/reference/cli.md`.
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
