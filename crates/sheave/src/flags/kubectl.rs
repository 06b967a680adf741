//! Flags of the kubectl plugin, and of access to a cluster as an operator.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{MigrationTargetFlags, TableFlags, values};
use crate::explain::ServiceName;

const CLUSTER: &str = "Cluster";

/// Flags of access to a cluster, as kubectl has them.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterAccessFlags {
    /// File with the credentials [default: the files of KUBECONFIG, or ~/.kube/config, or the credentials of the pod].
    #[arg(long, value_name = "FILE", global = true, help_heading = CLUSTER)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context in the kubeconfig [default: the current one].
    #[arg(long, value_name = "NAME", global = true, help_heading = CLUSTER)]
    pub(crate) context: Option<String>,

    /// Namespace of the objects [default: for `check` and `migrate` all, else that of the context].
    #[arg(long, short = 'n', value_name = "NAME", global = true, help_heading = CLUSTER)]
    pub(crate) namespace: Option<String>,
}

/// Flags of `sheave check` and `sheave migrate` for a cluster instead of files.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct LiveSourceFlags {
    /// Read the objects of a cluster instead of files.
    ///
    /// Nothing is written. Values of Secrets are never shown.
    #[arg(long, conflicts_with = "paths", help_heading = CLUSTER)]
    pub(crate) cluster: bool,

    #[command(flatten)]
    pub(crate) access: ClusterAccessFlags,
}

impl LiveSourceFlags {
    /// Returns the error of a combination with paths: one sentence that names the remedy.
    pub(crate) fn conflict(&self, paths: &[PathBuf]) -> Option<&'static str> {
        let ClusterAccessFlags { kubeconfig, context, namespace } = &self.access;
        let names_cluster = kubeconfig.is_some() || context.is_some() || namespace.is_some();
        match (self.cluster, paths.is_empty()) {
            (false, true) => {
                Some("name files or directories, or read the objects of a cluster with --cluster")
            }
            (false, false) if names_cluster => {
                Some("--kubeconfig, --context and --namespace are for a cluster: add --cluster")
            }
            (true, _) | (false, false) => None,
        }
    }
}

/// Flags of `sheave kubectl`.
#[derive(Debug, Args)]
pub(crate) struct KubectlFlags {
    #[command(flatten)]
    pub(crate) access: ClusterAccessFlags,

    /// Namespace in which Sheave runs.
    #[arg(long, value_name = "NAME", default_value = "sheave-system", global = true, help_heading = CLUSTER)]
    pub(crate) sheave_namespace: String,

    #[command(subcommand)]
    pub(crate) command: KubectlCommand,
}

/// Commands of the kubectl plugin: a running Sheave in a cluster, over the API server.
#[derive(Debug, Subcommand)]
pub(crate) enum KubectlCommand {
    /// Show the replicas of Sheave in the cluster, and the objects with problems.
    ///
    /// Prints a line per replica: version, readiness, requests per second, waiting requests and endpoints in trouble.
    /// Then each problem of a Gateway, Ingress, route or policy with object and field. Needs `list` on pods and `get` on
    /// pods/proxy in the namespace of Sheave.
    #[command(after_help = STATUS_HELP)]
    Status,
    /// Show live statistics of all replicas together, per backend.
    ///
    /// The table is that of `sheave top`, with the sums of all replicas. Needs `list` on pods and `get` on pods/proxy in
    /// the namespace of Sheave.
    Top(PluginTopFlags),
    /// Explain how a request would be routed by the configuration in force, and why.
    ///
    /// Nothing is sent to an endpoint. Needs `list` on pods and `get` on pods/proxy in the namespace of Sheave. URL and
    /// header fields are part of the request to the API server, which may log them: use no real credentials.
    Explain(PluginExplainFlags),
    /// Explain why a pod gets no requests, or so many.
    ///
    /// Prints the Services that have the pod as an endpoint, and for each backend what every replica of Sheave sees:
    /// health and why, requests in flight, limit and its origin, weight, share of the last second. Needs `get` on pods and
    /// `list` on endpointslices.discovery.k8s.io in the namespace of the pod, `list` on pods and `get` on pods/proxy in
    /// that of Sheave.
    Why(WhyFlags),
    /// Show the live requests of a Service.
    ///
    /// Follows the access logs of all replicas, which have to be on (logs.accessLog of the chart). Lines per second are
    /// bounded. Queries are not shown unless asked for, header fields never. Needs `list` on pods and `get` on pods/log in
    /// the namespace of Sheave.
    Tap(TapFlags),
    /// Open the dashboard of a replica at a local address.
    ///
    /// Reads of the dashboard are relayed by the proxy of the API server until the command is stopped; no port-forward is
    /// opened. Needs `list` on pods and `get` on pods/proxy in the namespace of Sheave.
    Dashboard(PluginDashboardFlags),
    /// Write the Gateway API objects and policies that mean the same as the Ingresses of the cluster.
    ///
    /// The same as `sheave migrate --cluster`. Nothing is written to the cluster. Needs `list` on ingressclasses and
    /// ingresses of networking.k8s.io and on services.
    Migrate(PluginMigrateFlags),
}

const STATUS_HELP: &str = "\
Examples:
  kubectl sheave status
  kubectl sheave status --context production --sheave-namespace edge

Exit codes: 0 a replica answers, 1 none does, there is none, or a permission is missing.";

/// Flags of `kubectl sheave top`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl sheave top
  kubectl sheave top --pod sheave-7d9f8-x2x1l --sort failures
  kubectl sheave top --count 1

Keys: q quits; r, i, w, f, t, l and n sort by requests, in flight, waiting, failures, retries, latency and name.
Exit codes: 0 success, 1 no replica answers.")]
pub(crate) struct PluginTopFlags {
    /// Replica to ask alone [default: all].
    #[arg(long, value_name = "NAME")]
    pub(crate) pod: Option<String>,

    #[command(flatten)]
    pub(crate) tables: TableFlags,
}

/// Flags of `kubectl sheave explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl sheave explain GET http://shop.example/cart
  kubectl sheave explain POST https://shop.example/search -H 'X-Canary: yes'

The port of the URL selects the listener.
Exit codes: 0 success, 1 the request is invalid, no listener has that port, or no replica answers.")]
pub(crate) struct PluginExplainFlags {
    /// Method of the request, for example GET.
    #[arg(value_name = "METHOD")]
    pub(crate) method: String,

    /// URL of the request, as http://HOST:PORT/PATH?QUERY.
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// Header field of the request, as 'name: value'; repeatable.
    #[arg(short = 'H', long, value_name = "FIELD")]
    pub(crate) header: Vec<String>,

    /// Replica to ask [default: the first that answers].
    #[arg(long, value_name = "NAME")]
    pub(crate) pod: Option<String>,
}

/// Flags of `kubectl sheave why`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl sheave why web-6d5f9-abcde -n shop
  kubectl sheave why shop/web-6d5f9-abcde

Exit codes: 0 success, 1 there is no such pod, or no replica answers.")]
pub(crate) struct WhyFlags {
    /// Pod, as NAME or NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pub(crate) pod: String,
}

/// Flags of `kubectl sheave tap`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl sheave tap web -n shop
  kubectl sheave tap shop/web --status 5xx --count 20
  kubectl sheave tap shop/web:80 --method POST --path /cart --duration 30s

Each line has the time (UTC), status, duration, endpoint, method, host and path, and what was unusual: attempts, time in
the queue, the reason of a failure.
Exit codes: 0 success, 1 the access log is off, or cannot be read.")]
pub(crate) struct TapFlags {
    /// Service, as NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT.
    #[arg(value_name = "SERVICE", value_parser = ServiceName::parse)]
    pub(crate) service: ServiceName,

    /// Status of the response: a number, or a class such as 5xx.
    #[arg(long, value_name = "STATUS")]
    pub(crate) status: Option<StatusRange>,

    /// Method of the request.
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Option<String>,

    /// Host of the request.
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Option<String>,

    /// Beginning of the path.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) path: Option<String>,

    /// Show queries, which often hold credentials.
    #[arg(long)]
    pub(crate) show_query: bool,

    /// Most lines per second; further ones are counted.
    #[arg(long, value_name = "N", default_value = "50", value_parser = values::line_rate)]
    pub(crate) rate: NonZeroU32,

    /// Number of lines after which the command ends [default: no limit].
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<NonZeroU32>,

    /// Time after which the command ends [default: no limit].
    #[arg(long, value_name = "DURATION", value_parser = values::positive_duration)]
    pub(crate) duration: Option<Duration>,
}

/// Flags of `kubectl sheave dashboard`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl sheave dashboard
  kubectl sheave dashboard --pod sheave-7d9f8-x2x1l --no-open

The browser is opened if standard output is a terminal and there is a display.
Exit codes: 0 success, 1 no replica answers.")]
pub(crate) struct PluginDashboardFlags {
    /// Replica to show [default: the first that answers].
    #[arg(long, value_name = "NAME")]
    pub(crate) pod: Option<String>,

    /// Print the URL only.
    #[arg(long)]
    pub(crate) no_open: bool,
}

/// Flags of `kubectl sheave migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl sheave migrate > gateway-api.yaml
  kubectl sheave migrate --namespace shop --ingress-class nginx > gateway-api.yaml

Exit codes: 0 success, 1 an Ingress is refused, there is none, or a permission is missing.")]
pub(crate) struct PluginMigrateFlags {
    #[command(flatten)]
    pub(crate) target: MigrationTargetFlags,
}

/// Statuses of responses: one, or a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusRange {
    One(u16),
    /// First digit.
    Class(u16),
}

impl StatusRange {
    /// True if the status is one of these.
    pub(crate) const fn contains(self, status: u16) -> bool {
        match self {
            Self::One(one) => status == one,
            Self::Class(class) => status / 100 == class,
        }
    }
}

impl FromStr for StatusRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("{text:?} is not a status such as 503, or a class such as 5xx");
        let class = text.strip_suffix("xx").and_then(|digit| digit.parse().ok());
        match (class, text.parse()) {
            (Some(class @ 1..=5), _) => Ok(Self::Class(class)),
            // 0: the client had disconnected.
            (None, Ok(one)) if one == 0 || (100..600).contains(&one) => Ok(Self::One(one)),
            _ => Err(malformed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_a_number_or_a_class() {
        let range = |text: &str| text.parse::<StatusRange>();
        assert!(range("5xx").unwrap().contains(503) && !range("5xx").unwrap().contains(404));
        assert!(range("404").unwrap().contains(404) && range("0").unwrap().contains(0));
        for text in ["", "6xx", "xx", "9", "abc", "-1", "5xxx"] {
            assert!(range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn files_or_a_cluster_are_needed_and_flags_of_one_alone() {
        let files = [PathBuf::from("a.yaml")];
        let mut flags = LiveSourceFlags::default();
        assert!(flags.conflict(&[]).is_some_and(|it| it.contains("--cluster")));
        assert_eq!(flags.conflict(&files), None);
        flags.access.context = Some("c".to_owned());
        assert!(flags.conflict(&files).is_some_and(|it| it.contains("add --cluster")));
        flags.cluster = true;
        assert_eq!(flags.conflict(&[]), None);
    }
}
