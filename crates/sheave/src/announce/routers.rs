//! The routers of this node: those whose BgpPeer selects it, with their passwords.
//!
//! The API server may be slow or away, so this has a task of its own: a withdrawal never waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use bgp::{PeerSettings, SessionPassword};
use gateway::load_balancer::BgpRouter;
use gateway::objects::BgpPeerSpec;
use kube::ClusterClient;
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::sleep;

/// Interval at which labels of the node and passwords are read again.
const READ_INTERVAL: Duration = Duration::from_secs(30);

/// Reader of the objects of a cluster that sessions need.
pub(super) struct RouterResolver {
    pub(super) cluster: ClusterClient,
    /// Namespace of the Secrets.
    pub(super) namespace: String,
    pub(super) node: String,
    /// Labels of the node, once the API server has told them.
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Passwords by the names of their Secrets, as last read.
    pub(super) passwords: BTreeMap<String, SessionPassword>,
    /// Errors that were logged last.
    pub(super) logged: Vec<String>,
}

impl RouterResolver {
    /// Keeps the settings of the routers current, until one of the channels closes.
    pub(super) async fn run(
        mut self,
        mut routers: Receiver<Vec<BgpRouter>>,
        settings: Sender<Vec<PeerSettings>>,
    ) {
        loop {
            let wanted = routers.borrow_and_update().clone();
            let found = self.resolve(&wanted).await;
            settings.send_if_modified(|before| std::mem::replace(before, found) != *before);
            let again = async {
                if wanted.iter().any(needs_cluster) {
                    sleep(READ_INTERVAL).await;
                } else {
                    std::future::pending().await
                }
            };
            tokio::select! {
                () = again => {}
                changed = routers.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = settings.closed() => return,
            }
        }
    }

    async fn resolve(&mut self, routers: &[BgpRouter]) -> Vec<PeerSettings> {
        let mut errors = Vec::new();
        if routers.iter().any(|it| it.spec.node_selector.is_some()) {
            match self.cluster.node_labels(&self.node).await {
                Ok(labels) => self.labels = Some(labels),
                Err(error) => errors.push(format!("the labels of this node: {error}")),
            }
        }
        let mut found = Vec::new();
        let selected: Vec<_> = routers.iter().filter(|it| self.selects(&it.spec)).collect();
        for BgpRouter { name, spec } in selected {
            match self.password(spec).await {
                Ok(password) => found.extend(settings(name, spec, password)),
                Err(error) => errors.push(format!("BgpPeer {name}: {error}")),
            }
        }
        for error in errors.iter().filter(|it| !self.logged.contains(it)) {
            tracing::error!(error, "cannot read what a BGP session needs");
        }
        self.logged = errors;
        found
    }

    /// True if the node is selected. While its labels are not known, a selector selects none.
    fn selects(&self, spec: &BgpPeerSpec) -> bool {
        let Some(selector) = &spec.node_selector else { return true };
        self.labels.as_ref().is_some_and(|labels| selector.matches(labels))
    }

    /// Returns the password of a router. If it cannot be read now, the one that was read before is used.
    async fn password(&mut self, spec: &BgpPeerSpec) -> Result<Option<SessionPassword>, String> {
        let Some(secret) = &spec.password_secret else { return Ok(None) };
        let read = self.cluster.password(&self.namespace, secret).await.and_then(|bytes| {
            SessionPassword::new(bytes).map_err(|_invalid| {
                format!("the password in Secret {secret} has not 1 to 80 bytes")
            })
        });
        match read {
            Ok(password) => {
                self.passwords.insert(secret.clone(), password.clone());
                Ok(Some(password))
            }
            Err(error) => self.passwords.get(secret).cloned().map(Some).ok_or(error),
        }
    }
}

fn needs_cluster(router: &BgpRouter) -> bool {
    router.spec.node_selector.is_some() || router.spec.password_secret.is_some()
}

/// Returns the settings of a session; `None` for a spec that is not valid.
fn settings(
    name: &str,
    spec: &BgpPeerSpec,
    password: Option<SessionPassword>,
) -> Option<PeerSettings> {
    let source = match &spec.source_address {
        Some(source) => Some(source.parse().ok()?),
        None => None,
    };
    Some(PeerSettings {
        name: name.to_owned(),
        address: spec.router()?,
        port: spec.port(),
        peer_asn: spec.peer_asn,
        local_asn: spec.local_asn,
        hold_time: spec.hold_time(),
        source,
        password,
        is_multihop: spec.is_multihop(),
        is_ttl_checked: spec.is_ttl_checked(),
    })
}
