//! The command line: what a person may type, and the checked request that comes of it.

/// Addresses, shares and durations as they are typed.
mod values;
/// Objects that `--listen` and `--to` stand for.
mod shorthand;

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use gateway::objects::MaxInFlight;
use ipnet::IpNet;

use crate::top::SortOrder;
pub(crate) use values::{AdminAddress, ListenUrl, LoggedShare, ServiceTemplate, ToAddress};

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

Exit codes: 0 fine, 1 the input is wrong, 2 Sheave failed.")]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Serve requests.
    ///
    /// What to serve comes from files of Kubernetes objects (--config), from --listen and --to, from a cluster
    /// (--kubernetes), or from several of them. Files are watched: an edit is in force within milliseconds, and an edit
    /// with errors is reported and changes nothing.
    Serve(Box<ServeFlags>),
    /// Check configuration files, and report every error in them.
    ///
    /// Each error is a line on standard output: file, document, object, field, message. The exit code is 1 if there is
    /// any.
    Check(CheckFlags),
    /// Explain what would become of a request, and why.
    ///
    /// From files alone: which listener and rule would take it and why no other, what is changed on the way, which
    /// backends and endpoints it may go to, and every setting that holds there, with who set it. Nothing is sent.
    Explain(ExplainFlags),
    /// Show what a running Sheave does, backend by backend.
    ///
    /// A table that is kept fresh: requests, failures and retries a second, requests in flight of the slots there are,
    /// requests that wait, demand (requests at a time, the mean over 15 s), latency to the response's head (learned by
    /// PeakEwma alone), health. Without a terminal it is printed once.
    Top(TopFlags),
    /// Carry the addresses of a cluster's pool on this node, as long as a Sheave serves them here.
    ///
    /// For clusters without a load balancer, beside `sheave serve --kubernetes --pool`. Of all nodes one carries each
    /// address and says so on the link (ARP, Neighbor Discovery): the one with most of the endpoints behind it. They agree
    /// by a Lease for each address. When that node dies, another one has the address within 5 s. Needs NET_ADMIN and
    /// NET_RAW in the node's network, and the API server of KUBECONFIG or of its pod.
    Announce(AnnounceFlags),
}

/// `sheave serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Two endpoints behind one port:
    sheave serve --listen http://:8080 --to 10.0.0.1:80,10.0.0.2:80
  At most 4 requests at once for each, the rest waits up to 2 seconds:
    sheave serve --listen http://:8080 --to 10.0.0.1:80,10.0.0.2:80 --max-in-flight 4 --queue-timeout 2s
  HTTPS with a certificate that is read again when it is renewed (without one: self-signed):
    sheave serve --listen https://:443 --cert tls.crt --key tls.key --to 10.0.0.1:80,10.0.0.2:80
  Connections, each to the database with the fewest:
    sheave serve --listen tcp://:5432 --to 10.0.0.1:5432,10.0.0.2:5432
  What a Kubernetes cluster asks for, each Gateway at an address of its own:
    sheave serve --kubernetes --pool 192.0.2.0/24
  A directory of Kubernetes objects, watched, with a hundredth of the requests logged:
    sheave serve --config /etc/sheave --access-log 0.01

Signals: SIGTERM and SIGINT let running requests end (a second one stops at once), SIGHUP reads the files again.
Events go to standard error; SHEAVE_LOG=debug shows more of them, SHEAVE_LOG=error fewer.
Exit codes: 0 fine, 1 the input is wrong, 2 Sheave failed or had to cut requests off.")]
pub(crate) struct ServeFlags {
    /// File or directory of Kubernetes objects (YAML or JSON); repeatable.
    ///
    /// Of a directory, the files *.yaml, *.yml and *.json count; hidden files and directories within do not.
    #[arg(long, value_name = "PATH", help_heading = SOURCES)]
    pub(crate) config: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,

    #[command(flatten)]
    pub(crate) shorthand: ListenFlags,

    /// Name server to ask for the addresses of ExternalName Services, as ADDRESS or ADDRESS:PORT [default: those of
    /// /etc/resolv.conf].
    #[arg(long, value_name = "ADDR", value_parser = values::name_server, help_heading = SOURCES)]
    pub(crate) dns: Option<SocketAddr>,

    /// Sheaves that serve the same endpoints, this one included, as ADDRESS:PORT: fixed limits are dealt over them, so
    /// that all of them together keep to each.
    ///
    /// The addresses are names, and nobody is asked there: give each Sheave the same list. One that starts uses its part
    /// after 2 s.
    #[arg(long, value_name = "ADDR,ADDR...", value_delimiter = ',', value_parser = values::replica, help_heading = SOURCES)]
    pub(crate) replicas: Vec<SocketAddr>,

    /// Which of --replicas this one is; of --peers, the pod's address.
    #[arg(long, value_name = "ADDR", value_parser = values::own_replica, help_heading = SOURCES)]
    pub(crate) replica: Option<SocketAddr>,

    /// Address of the admin API (metrics, health, state), or `off`; port 0 takes any free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", help_heading = PROCESS)]
    pub(crate) admin: AdminAddress,

    /// Address of KEDA's external scaler (gRPC without TLS), or `off`; port 0 takes any free port.
    ///
    /// It tells whoever asks how many requests a Service is asked for. KEDA's operator has to reach it, so it is apart
    /// from the admin API: in a cluster, :9901.
    #[arg(long, value_name = "ADDR", default_value = "off", help_heading = PROCESS)]
    pub(crate) scaler: AdminAddress,

    /// Threads that serve requests [default: one per CPU that this process may use].
    #[arg(long, value_name = "N", value_parser = values::workers, help_heading = PROCESS)]
    pub(crate) workers: Option<NonZeroUsize>,

    /// How long new connections are still taken in after SIGTERM, while others learn that this process ends.
    ///
    /// /readyz says so at once, and clients are told with each answer to connect anew. In a cluster: as long as it takes
    /// until nobody sends clients here any more.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration, help_heading = PROCESS)]
    pub(crate) drain_delay: Duration,

    /// How long running requests may take to end after that.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration, help_heading = PROCESS)]
    pub(crate) drain_timeout: Duration,

    /// File to write once every address is listened on: JSON with the addresses.
    #[arg(long, value_name = "PATH", help_heading = PROCESS)]
    pub(crate) ready_file: Option<PathBuf>,

    /// One line of JSON per request on standard output: `off`, `on`, or the share of requests that are logged.
    #[arg(long, value_name = "off|on|FRACTION", default_value = "off", help_heading = OBSERVE)]
    pub(crate) access_log: LoggedShare,

    /// Let /metrics name traces: each bucket of a histogram of durations carries the id of the last sampled trace that
    /// fell into it (OpenMetrics exemplars).
    #[arg(long, help_heading = OBSERVE)]
    pub(crate) exemplars: bool,

    /// How events are written to standard error.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text, help_heading = OBSERVE)]
    pub(crate) log_format: LogFormat,
}

/// What to do with a cluster.
#[derive(Debug, Default, Args)]
pub(crate) struct ClusterFlags {
    /// Serve what a Kubernetes cluster asks for: its Gateways, routes, Services and policies, watched.
    ///
    /// The API server and the credentials are those of the pod, or of the kubeconfig (KUBECONFIG, ~/.kube/config). An
    /// object with errors gets its conditions and takes nothing else down. The API server may be away for as long as it
    /// likes: what it said last is served.
    #[arg(long, help_heading = CLUSTER)]
    pub(crate) kubernetes: bool,

    /// Addresses to give to Gateways, one each, as CIDR blocks; `sheave announce` brings them to a node [default: every
    /// Gateway is served on the addresses that it asks for, else on all of the machine].
    #[arg(long, value_name = "CIDR,CIDR...", value_delimiter = ',', requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) pool: Vec<IpNet>,

    /// Give each Gateway a Service of its own in front of the Sheaves, made of this template, in --namespace: JSON of a Service
    /// with `spec.selector`, for example '{"spec":{"type":"LoadBalancer","selector":{"app":"sheave"}}}'.
    ///
    /// Its ports are those of the Gateway's listeners and lead to ports of Sheave's from 20000 on; the Gateway's status has
    /// the address that its load balancer gives. Where --peers names a Service, all of them go when that goes.
    #[arg(long, value_name = "JSON", requires = "kubernetes", conflicts_with = "pool", value_parser = values::service_template, help_heading = CLUSTER)]
    pub(crate) service_template: Option<ServiceTemplate>,

    /// The Service in front of the Sheaves, in --namespace: its addresses, which its load balancer gives, are said in the
    /// statuses of Gateways and Ingresses.
    #[arg(long, value_name = "NAME", requires = "kubernetes", conflicts_with_all = ["pool", "service_template"], help_heading = CLUSTER)]
    pub(crate) published_service: Option<String>,

    /// Headless Service of the Sheaves that serve the same endpoints, in --namespace: fixed limits are dealt over those
    /// that are ready.
    #[arg(long, value_name = "NAME", requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) peers: Option<String>,

    /// Name of this replica, unlike that of any other [default: the host's].
    #[arg(long, value_name = "NAME", requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) identity: Option<String>,

    /// Namespace of the Lease by which replicas agree on who writes statuses [default: that of the credentials].
    #[arg(long, value_name = "NAME", requires = "kubernetes", help_heading = CLUSTER)]
    pub(crate) namespace: Option<String>,
}

/// Flags that stand for objects.
#[derive(Debug, Default, Args)]
pub(crate) struct ListenFlags {
    /// Where to accept: requests at http://ADDRESS:PORT, with TLS (and HTTP/3) at https://, connections at tcp://, flows
    /// of datagrams at udp://. Without ADDRESS: on all, with port 0: on any free port; repeatable.
    #[arg(long, value_name = "URL", help_heading = SOURCES)]
    pub(crate) listen: Vec<ListenUrl>,

    /// Certificate of https, PEM with its chain; repeatable, each with its --key. Clients get the first that suits the
    /// name they ask for, else the first. The files are watched [default: one that is self-signed].
    #[arg(long, value_name = "FILE", help_heading = SOURCES)]
    pub(crate) cert: Vec<PathBuf>,

    /// Key of a certificate, PEM; repeatable, in the order of --cert.
    #[arg(long, value_name = "FILE", help_heading = SOURCES)]
    pub(crate) key: Vec<PathBuf>,

    /// Serve https without HTTP/3, which takes the UDP port of the same number.
    #[arg(long, help_heading = SOURCES)]
    pub(crate) no_http3: bool,

    /// Endpoints to balance over, as ADDRESS:PORT or NAME:PORT. A name is resolved once, at the start, and all its
    /// addresses are endpoints.
    #[arg(long, value_name = "ADDR,ADDR...", value_delimiter = ',', help_heading = SOURCES)]
    pub(crate) to: Vec<ToAddress>,

    /// Requests in flight at one endpoint of --to, at most: a number, or `auto` for as many as each endpoint is found to
    /// bear [default: no limit].
    #[arg(long, value_name = "N", value_parser = values::max_in_flight, help_heading = SOURCES)]
    pub(crate) max_in_flight: Option<MaxInFlight>,

    /// Requests that may wait for an endpoint of --to; beyond it they are answered 429 [default: 1024 with
    /// --max-in-flight, else 0].
    #[arg(long, value_name = "N", help_heading = SOURCES)]
    pub(crate) queue: Option<u32>,

    /// How long a request may wait for an endpoint of --to [default: 5s].
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration, help_heading = SOURCES)]
    pub(crate) queue_timeout: Option<Duration>,
}

/// `sheave check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave check /etc/sheave
  sheave check gateway.yaml routes.yaml

Files are checked together: a route in one may name a Gateway in another.
Exit codes: 0 no error, 1 errors.")]
pub(crate) struct CheckFlags {
    /// Files and directories, as for `sheave serve --config`.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
}

/// `sheave explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave explain /etc/sheave GET http://shop.example/cart
  sheave explain gateway.yaml POST 'http://127.0.0.1:8080/search?q=a' -H 'Host: shop.example' -H 'X-Canary: yes'

The URL's port chooses the listener.
Exit codes: 0 explained, 1 the request or the files are wrong, or nobody listens there.")]
pub(crate) struct ExplainFlags {
    /// File or directory, as for `sheave serve --config`.
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// The request's method, as GET.
    #[arg(value_name = "METHOD")]
    pub(crate) method: String,

    /// What is asked for, as http://HOST:PORT/PATH?QUERY.
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// Header field of the request, as 'name: value'; repeatable. Host goes before the URL's host.
    #[arg(short = 'H', long, value_name = "FIELD")]
    pub(crate) header: Vec<String>,
}

/// `sheave top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sheave top
  sheave top --admin 10.0.0.7:9900 --sort failures
  Ten tables, one every five seconds, for a file:
    sheave top --interval 5s --count 10 > top.txt

Keys: q quits; r, i, w, f, t, l and n sort by requests, in flight, waiting, failures, retries, latency and name.
Exit codes: 0 fine, 1 nothing answers there.")]
pub(crate) struct TopFlags {
    /// Address of the admin API.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", value_parser = values::admin_api)]
    pub(crate) admin: SocketAddr,

    /// Between two looks [default: 1s].
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration)]
    pub(crate) interval: Option<Duration>,

    /// Plain tables to print before it ends [default: in a terminal none, one table is kept fresh; else 1, or with
    /// --interval no end].
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<NonZeroU32>,

    /// What comes first.
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = SortOrder::Requests)]
    pub(crate) sort: SortOrder,
}

/// `sheave announce`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  In a pod with the node's network, the node's name by the downward API:
    sheave announce --node $(NODE_NAME)
  For addresses of a network that the node has no address of:
    sheave announce --interface eth1

It asks the Sheave at --admin what to carry: none of that is served while it is not ready, and nothing is carried then.
Signals: SIGTERM and SIGINT give all addresses up, so that another node takes them.
Exit codes: 0 fine, 1 the input is wrong, 2 Sheave failed.")]
pub(crate) struct AnnounceFlags {
    /// Address of the admin API of the Sheave that serves here.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9900", value_parser = values::admin_api)]
    pub(crate) admin: SocketAddr,

    /// Name of this node, as Kubernetes has it [default: the host's].
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,

    /// Namespace of the Leases, one for each address [default: that of the credentials].
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Interface that carries addresses, of Ethernet [default: for each address, the one on whose network it is].
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,

    /// How long after SIGTERM addresses are still carried, while the Sheave here tells its clients to connect anew: less than
    /// its own --drain-delay.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = values::duration)]
    pub(crate) drain_delay: Duration,

    /// How events are written to standard error.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One readable line an event.
    Text,
    /// One JSON object an event.
    Json,
}

const SOURCES: &str = "What to serve";
const CLUSTER: &str = "Kubernetes";
const PROCESS: &str = "Process";
const OBSERVE: &str = "Logs and metrics";

impl ServeFlags {
    /// What is wrong with the flags taken together: one sentence, which says what to do.
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
        let has_peers = self.cluster.peers.is_some();
        match self.replica {
            None if has_peers => {
                return Some(
                    "say which of --peers this Sheave is: add --replica with the pod's address",
                );
            }
            Some(_) if has_peers && !self.replicas.is_empty() => {
                return Some("give --peers in a cluster, or --replicas elsewhere, not both");
            }
            Some(_) if has_peers => {}
            Some(me) if !self.replicas.contains(&me) => {
                return Some("--replica is to be one of --replicas, which all Sheaves have alike");
            }
            None if !self.replicas.is_empty() => {
                return Some("say which of --replicas this Sheave is: add --replica ADDR");
            }
            Some(_) | None => {}
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
                "--listen needs endpoints to send requests to: add --to ADDR,ADDR; to serve an \
                 address as files say, write it into a Gateway of --config instead",
            ),
            (true, true) | (false, false) => None,
        }
    }
}

/// `docs/reference/cli.md`.
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
