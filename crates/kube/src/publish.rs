//! Statuses, written where the cluster does not say the same already, by the replica that leads.
//!
//! What a status says and what of it is ours is for `gateway::status` to know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use gateway::fronts::Place;
use gateway::ingress;
use gateway::status::{self, Status, Written};
use k8s_openapi::jiff::Timestamp;
use kube_client::api::{Patch, PatchParams};
use kube_client::{Api, Client, Error};
use kube_core::DynamicObject;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::sync::watch::error::RecvError;
use tokio::time::{Instant, sleep};

use crate::front::{self, Services};
use crate::WRITER;
use crate::kind::{KINDS, Kind};
use crate::known::{Held, Known};
use crate::watch::{Shared, lock};

/// Writes that are under way at once: many routes change together, and each write takes the API server milliseconds.
const AT_ONCE: usize = 16;
/// Before a write that failed is tried again; by then a watch has told what was written in between.
const PAUSE: Duration = Duration::from_millis(200);
/// While the API server cannot be reached or refuses.
const LONG_PAUSE: Duration = Duration::from_secs(2);

/// Addresses of Gateways, or of Ingresses, by namespace and name.
pub type Addresses = BTreeMap<(String, String), Vec<IpAddr>>;

/// Where clients find Gateways, or Ingresses, by namespace and name.
pub type Places = BTreeMap<(String, String), Vec<Place>>;

/// What is to be said in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Statuses {
    /// Of objects of Gateway API and of our own.
    pub statuses: Arc<[Status]>,
    /// Where Ingresses are served; of one that is served nowhere, none.
    pub ingresses: Places,
    /// The Services in front of Gateways; `None`: those are nobody's business.
    pub services: Option<Services>,
}

/// Writes statuses.
pub(crate) struct Publisher {
    pub(crate) client: Client,
    pub(crate) known: Shared,
    /// What is to be said.
    pub(crate) statuses: Receiver<Option<Statuses>>,
    /// Something that is known has changed.
    pub(crate) told: Receiver<()>,
    /// Until when it is for us to write.
    pub(crate) leads: Receiver<Option<Instant>>,
}

/// Something to be written.
struct Write {
    kind: &'static Kind,
    namespace: String,
    name: String,
    resource_version: String,
    written: Written,
}

/// How a write went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Done,
    /// Somebody else wrote in between: to be looked at again.
    Overtaken,
    Failed,
}

impl Publisher {
    pub(crate) async fn run(mut self) {
        let mut is_failing = false;
        loop {
            let outcome =
                if self.leads() { self.write_all(&mut is_failing).await } else { Outcome::Done };
            let pause = async {
                match outcome {
                    Outcome::Done => std::future::pending().await,
                    Outcome::Overtaken => sleep(PAUSE).await,
                    Outcome::Failed => sleep(LONG_PAUSE).await,
                }
            };
            let changed = tokio::select! {
                changed = self.statuses.changed() => changed,
                changed = self.leads.changed() => changed,
                changed = restated(&self.known, &mut self.told) => changed,
                () = pause => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn leads(&mut self) -> bool {
        self.leads.borrow_and_update().is_some_and(|until| until > Instant::now())
    }

    /// Writes what differs; tells how the worst of it went.
    async fn write_all(&mut self, is_failing: &mut bool) -> Outcome {
        let Some(statuses) = self.statuses.borrow_and_update().clone() else {
            return Outcome::Done;
        };
        let mut worst = self.write_services(&statuses, is_failing).await;
        let writes = self.due(&statuses);
        let client = &self.client;
        let mut results = stream::iter(writes)
            .map(|it| async move { (write(client, &it).await, it) })
            .buffer_unordered(AT_ONCE);
        while let Some((result, it)) = results.next().await {
            let Err(error) = result else { continue };
            let outcome = judge(&error);
            if outcome == Outcome::Failed && !std::mem::replace(is_failing, true) {
                let Write { kind, namespace, name, .. } = it;
                tracing::warn!(kind = kind.name, %namespace, %name, %error, "cannot write a status; it is tried again");
            }
            worst = worst.max(outcome);
        }
        if worst == Outcome::Done {
            *is_failing = false;
        }
        worst
    }

    /// Writes the Services that differ; tells how the worst of it went.
    async fn write_services(&self, statuses: &Statuses, is_failing: &mut bool) -> Outcome {
        let Some(services) = &statuses.services else { return Outcome::Done };
        let differences = front::due(&lock(&self.known), services);
        let mut worst = Outcome::Done;
        for difference in differences {
            let Err(error) = front::write(&self.client, &difference).await else { continue };
            let outcome = judge(&error);
            if outcome == Outcome::Failed && !std::mem::replace(is_failing, true) {
                tracing::warn!(%error, "cannot write the Service of a Gateway; it is tried again");
            }
            worst = worst.max(outcome);
        }
        worst
    }

    /// What the cluster does not say yet, or still says.
    fn due(&self, Statuses { statuses, ingresses, .. }: &Statuses) -> Vec<Write> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let known = lock(&self.known);
        let mut due = Vec::new();
        let mut spoken_of = BTreeSet::new();
        let mut statuses = statuses.to_vec();
        status::tell_version(&mut statuses, known.bundle_version());
        for status in &statuses {
            let object = &status.object;
            let Some(kind) = Kind::named(object.kind) else { continue };
            let namespace = kind.namespace_of(&object.namespace);
            spoken_of.insert((kind.name, namespace.to_owned(), object.name.to_string()));
            let Some(held) = known.find(kind.name, namespace, &object.name) else { continue };
            let written = status::written(status, held.status.as_ref(), &now);
            due.extend(
                written.map(|written| Write::new(kind, namespace, &object.name, held, written)),
            );
        }
        for ((namespace, name), places) in ingresses {
            let Some(kind) = Kind::named("Ingress") else { continue };
            let Some(held) = known.find(kind.name, namespace, name) else { continue };
            let status = ingress::status(places);
            if held.status.as_ref() != Some(&status) {
                due.push(Write::new(kind, namespace, name, held, Written::Apply(status)));
            }
        }
        for kind in KINDS.iter().filter(|kind| kind.has_entries) {
            for ((namespace, name), held) in known.all(kind.name) {
                if spoken_of.contains(&(kind.name, namespace.clone(), name.clone())) {
                    continue;
                }
                let written = held.status.as_ref().and_then(status::withdrawn);
                due.extend(written.map(|written| Write::new(kind, namespace, name, held, written)));
            }
        }
        due
    }
}

/// Waits until a status in the cluster has changed: it may be another's doing, and ours to mend.
async fn restated(known: &Shared, told: &mut Receiver<()>) -> Result<(), RecvError> {
    while !std::mem::take(&mut lock(known).changes.statuses) {
        told.changed().await?;
    }
    Ok(())
}

impl Write {
    fn new(
        kind: &'static Kind,
        namespace: &str,
        name: &str,
        held: &Held,
        written: Written,
    ) -> Self {
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            resource_version: held.resource_version.clone(),
            written,
        }
    }
}

/// Lists that are maps are applied, so that what others say in them stays by itself; the others are replaced as they were
/// read, or not at all.
async fn write(client: &Client, it: &Write) -> Result<(), Error> {
    let resource = it.kind.resource();
    let api: Api<DynamicObject> = match it.namespace.as_str() {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    match &it.written {
        Written::Apply(status) => {
            let patch = json!({
                "apiVersion": it.kind.api_version(),
                "kind": it.kind.name,
                "metadata": { "name": it.name },
                "status": status,
            });
            api.patch_status(&it.name, &PatchParams::apply(WRITER).force(), &Patch::Apply(patch))
                .await?;
        }
        Written::Replace(status) => {
            let patch = json!({
                "metadata": { "resourceVersion": it.resource_version },
                "status": status,
            });
            api.patch_status(&it.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    Ok(())
}

fn judge(error: &Error) -> Outcome {
    match error {
        // It has gone, and nobody has to be told.
        Error::Api(status) if status.code == 404 => Outcome::Done,
        Error::Api(status) if status.code == 409 => Outcome::Overtaken,
        _ => Outcome::Failed,
    }
}

/// The addresses that Gateways have by their statuses.
pub(crate) fn addresses(known: &Known) -> Addresses {
    let given = |held: &Held| said(held, "/addresses", "value");
    known.all("Gateway").map(|(name, held)| (name.clone(), given(held))).collect()
}

/// The addresses that Ingresses have by their statuses.
pub(crate) fn ingress_addresses(known: &Known) -> Addresses {
    let given = |held: &Held| said(held, "/loadBalancer/ingress", "ip");
    known.all("Ingress").map(|(name, held)| (name.clone(), given(held))).collect()
}

/// Where clients find the Services of a namespace, by what load balancers say in their statuses.
pub(crate) fn service_places(known: &Known, namespace: &str) -> Places {
    let place = |entry: &Value| {
        let text = |field: &str| entry.get(field)?.as_str().filter(|text| !text.is_empty());
        let ip = text("ip").and_then(|text| text.parse().ok()).map(Place::Ip);
        ip.or_else(|| text("hostname").map(|name| Place::Name(name.to_owned())))
    };
    let given = |held: &Held| {
        let list = held.status.as_ref().and_then(|it| it.pointer("/loadBalancer/ingress")?.as_array());
        list.into_iter().flatten().filter_map(place).collect()
    };
    let ours = known.all("Service").filter(|((of, _), held)| of == namespace && held.front().is_some());
    ours.map(|(name, held)| (name.clone(), given(held))).collect()
}

/// The addresses in a list of a status.
fn said(held: &Held, list: &str, field: &str) -> Vec<IpAddr> {
    let list = held.status.as_ref().and_then(|status| status.pointer(list)?.as_array());
    let texts = list.into_iter().flatten().filter_map(|it| it.get(field)?.as_str());
    texts.filter_map(|text| text.parse().ok()).collect()
}
