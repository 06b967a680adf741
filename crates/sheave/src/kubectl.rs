//! `sheave kubectl`, which kubectl runs as `kubectl sheave`: a Sheave in a cluster, over the API server.
//!
//! Admin APIs are reached by the proxy of the API server (`pods/proxy`), with reads alone. What others have named is
//! escaped before a terminal gets it.

/// Text for a terminal.
mod text;
/// The replicas and their admin APIs.
mod replicas;
/// `status`.
mod status;
/// `top`.
mod live_table;
/// `why`.
mod why;
/// `tap`.
mod tap;
/// `dashboard`.
mod relay;

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;

use gateway::snapshot::escape_query;
use serde::Deserialize;

use crate::check::print;
use crate::failure::Failure;
use crate::flags::{KubectlCommand, KubectlFlags, PluginExplainFlags, PluginTopFlags};
use crate::live_cluster::LiveCluster;
use crate::migrate;
use crate::top::{self, TopQuery};
use live_table::ReplicaSums;
use replicas::ReplicaGroup;
use text::{escaped, wrapped};

/// Name of the executable by which kubectl finds the plugin.
const PLUGIN_NAME: &str = "kubectl-sheave";
/// Width of the labels of an explanation.
const LABEL_WIDTH: usize = 11;

/// Returns the arguments of the process; if it was started as the plugin, with the command `kubectl` in front.
pub(crate) fn arguments(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = words.collect();
    let name = words.first().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == PLUGIN_NAME) {
        words.insert(1, OsString::from("kubectl"));
    }
    words
}

/// Runs a command of the plugin.
pub(crate) fn run(flags: &KubectlFlags) -> Result<(), Failure> {
    let cluster = LiveCluster::connect(&flags.access)?;
    let find = |pod: Option<&str>| ReplicaGroup::find(&cluster, &flags.sheave_namespace, pod);
    match &flags.command {
        KubectlCommand::Status => status::run(&find(None)?),
        KubectlCommand::Top(top) => show_table(&find(top.pod.as_deref())?, top),
        KubectlCommand::Explain(request) => explain(&find(request.pod.as_deref())?, request),
        KubectlCommand::Why(why) => why::run(&cluster, &find(None)?, &why.pod),
        KubectlCommand::Tap(tap) => tap::run(&find(None)?, tap, cluster.namespace()),
        KubectlCommand::Dashboard(it) => relay::run(&find(it.pod.as_deref())?, it.no_open),
        KubectlCommand::Migrate(migration) => {
            migrate::print_migration(cluster.ingresses()?, &migration.target, "the cluster")
        }
    }
}

/// Answer of `/api/v1/explain`.
#[derive(Deserialize)]
struct ExplanationAnswer {
    lines: Vec<ExplanationLine>,
}

#[derive(Deserialize)]
struct ExplanationLine {
    label: String,
    text: String,
}

fn explain(group: &ReplicaGroup<'_>, request: &PluginExplainFlags) -> Result<(), Failure> {
    let PluginExplainFlags { method, url, header, .. } = request;
    let headers = header.iter().map(|field| ("header", field));
    let mut query = Vec::new();
    for (name, value) in [("method", method), ("url", url)].into_iter().chain(headers) {
        query.extend_from_slice(if query.is_empty() { b"?" } else { b"&" });
        query.extend_from_slice(name.as_bytes());
        query.push(b'=');
        escape_query(value.as_bytes(), &mut query);
    }
    let path = format!("/api/v1/explain{}", String::from_utf8_lossy(&query));
    let (_, ExplanationAnswer { lines }) = group.ask_any(&path)?;
    let lines =
        lines.iter().flat_map(|it| wrapped(&format!("{:<LABEL_WIDTH$}", it.label), &it.text));
    print(&lines.collect::<Vec<_>>())
}

fn show_table(group: &ReplicaGroup<'_>, flags: &PluginTopFlags) -> Result<(), Failure> {
    let sums = RefCell::new(ReplicaSums::default());
    let source = TopQuery {
        name: escaped(&group.namespace),
        query: Box::new(|| sums.borrow_mut().ask(group)),
        summary: Box::new(|| sums.borrow().summary()),
    };
    top::show_backends(source, &flags.tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_the_executable_makes_it_the_plugin() {
        let of = |words: &[&str]| arguments(words.iter().map(OsString::from));
        assert_eq!(of(&["/usr/bin/kubectl-sheave", "status"])[1..], ["kubectl", "status"]);
        assert_eq!(of(&["/usr/bin/sheave", "top"])[1..], ["top"]);
        assert_eq!(of(&[]), Vec::<OsString>::new());
    }
}
