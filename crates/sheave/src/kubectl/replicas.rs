//! The replicas of Sheave in the cluster, and their admin APIs by the proxy of the API server.

use kube::{AccessError, PodSummary};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::text::escaped;
use crate::failure::Failure;
use crate::live_cluster::{LiveCluster, access_failure};

/// Labels of pods with an admin API: of the chart's workload, and of transparent mode.
const SELECTOR: &str = "app.kubernetes.io/name in (sheave, sheave-transparent)";
/// Port of the admin API in the chart, for pods that do not name theirs.
const ADMIN_PORT: u16 = 9900;
/// Most replicas that are asked.
const MAX_REPLICAS: usize = 100;

/// Replicas of Sheave, at least one.
pub(crate) struct ReplicaGroup<'c> {
    pub(super) cluster: &'c LiveCluster,
    pub(super) namespace: String,
    pub(super) pods: Vec<PodSummary>,
}

/// Answer of one replica, or the reason why there is none.
pub(super) type ReplicaAnswer<T> = (String, Result<T, String>);

impl<'c> ReplicaGroup<'c> {
    /// Finds the replicas, or the one of this name.
    pub(super) fn find(
        cluster: &'c LiveCluster,
        namespace: &str,
        pod: Option<&str>,
    ) -> Result<Self, Failure> {
        let found = cluster.wait(cluster.client.labelled_pods(namespace, SELECTOR));
        let mut pods = found.map_err(|error| access_failure(&error))?;
        if pods.is_empty() {
            return Err(Failure::input(format_args!(
                "there is no Sheave in namespace {}: no pod there has the labels of the chart \
                 (app.kubernetes.io/name: sheave); --sheave-namespace names another",
                escaped(namespace)
            )));
        }
        if let Some(name) = pod {
            pods.retain(|it| it.name == name);
            if pods.is_empty() {
                return Err(Failure::input(format_args!(
                    "pod {}/{} is no Sheave",
                    escaped(namespace),
                    escaped(name)
                )));
            }
        }
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        pods.truncate(MAX_REPLICAS);
        Ok(Self { cluster, namespace: namespace.to_owned(), pods })
    }

    /// Asks every replica the same.
    pub(super) fn ask<T: DeserializeOwned>(&self, path: &str) -> Vec<ReplicaAnswer<T>> {
        let ask = |pod: &PodSummary| (pod.name.clone(), self.query(pod, path));
        self.pods.iter().map(ask).collect()
    }

    /// Returns the answer of the first replica that has one, or the reasons why none has.
    pub(super) fn ask_any<T: DeserializeOwned>(&self, path: &str) -> Result<(String, T), Failure> {
        // A pod that is not ready may still tell.
        let (ready, others): (Vec<_>, Vec<_>) = self.pods.iter().partition(|pod| pod.is_ready);
        let mut reasons = Vec::new();
        for pod in ready.into_iter().chain(others) {
            match self.query(pod, path) {
                Ok(answer) => return Ok((pod.name.clone(), answer)),
                Err(reason) => reasons.push(format!("sheave: {}: {reason}", escaped(&pod.name))),
            }
        }
        reasons.dedup();
        Err(Failure::Input(reasons))
    }

    /// Asks one replica; the reason of a failure is escaped.
    pub(super) fn query<T: DeserializeOwned>(
        &self,
        pod: &PodSummary,
        path: &str,
    ) -> Result<T, String> {
        if pod.phase != "Running" {
            return Err(format!("the pod is {}", escaped(&pod.phase)));
        }
        let name = (self.namespace.as_str(), pod.name.as_str());
        let answer = self.cluster.client.pod_get(name, admin_port(pod), path);
        let answer = self.cluster.wait(answer).map_err(|error| reason(&error))?;
        if !answer.status.is_success() {
            let error: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let message = error["error"].as_str().unwrap_or("it is no admin API of Sheave");
            return Err(escaped(message));
        }
        serde_json::from_slice(&answer.body).map_err(|_error| {
            "the response has an unknown format: it may be another version of Sheave".to_owned()
        })
    }
}

/// Returns the port of the admin API of a pod.
pub(super) fn admin_port(pod: &PodSummary) -> u16 {
    let port =
        |argument: &String| argument.strip_prefix("--admin=")?.rsplit(':').next()?.parse().ok();
    pod.admin_port.or_else(|| pod.arguments.iter().find_map(port)).unwrap_or(ADMIN_PORT)
}

/// Returns the reason of a failure, with the remedy of those that a cluster causes.
pub(super) fn reason(error: &AccessError) -> String {
    let text = escaped(&error.to_string());
    match error {
        AccessError::PodUnreachable { .. } => format!(
            "{text}: a NetworkPolicy (networkPolicy.adminFrom of the chart) or a firewall between the API server and \
             its nodes is the usual reason; `sheave top` and `sheave dashboard` work by kubectl port-forward"
        ),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_the_admin_api_is_the_pods_own() {
        let arguments = |text: &str| PodSummary {
            arguments: vec!["serve".to_owned(), text.to_owned()],
            ..PodSummary::default()
        };
        assert_eq!(admin_port(&arguments("--admin=:9987")), 9987);
        assert_eq!(admin_port(&arguments("--admin=[::1]:9988")), 9988);
        assert_eq!(admin_port(&arguments("--admin=off")), 9900);
        let named = PodSummary { admin_port: Some(1234), ..arguments("--admin=:9987") };
        assert_eq!(admin_port(&named), 1234);
    }
}
