//! Writes the managed Services in front of Gateways if they differ from those in the cluster; only the leader writes.
//!
//! `gateway::managed_services` knows their content. A Service of another owner is never changed.

use std::collections::BTreeSet;

use gateway::managed_services::{
    CONTROLLER_ANNOTATION, GATEWAY_ANNOTATION, SERVICE_LABEL, has_desired_fields,
};
use gateway::objects::GATEWAY_CONTROLLER;
use kube_client::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube_client::{Api, Client, Error};
use kube_core::{DynamicObject, ObjectMeta};
use serde_json::{Value, json};

use crate::kind::WatchedKind;
use crate::store::Store;

/// The managed Services that should exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredServices {
    /// Namespace of all of them.
    pub namespace: String,
    /// Name of our controller: Services with another one belong to another installation.
    pub controller: String,
    /// The manifests.
    pub desired: Vec<Value>,
    /// Gateways, as named by the annotation, whose Services are left unchanged.
    pub retained: BTreeSet<String>,
    /// The Service that owns all of them: deleting it deletes them.
    pub owner: Option<String>,
}

/// Difference between the existing and the desired Services.
#[derive(Debug)]
pub(crate) enum ServiceChange {
    Apply(Value),
    Delete { namespace: String, name: String, uid: String },
}

const KIND: &str = "Service";

/// Returns the changes to write.
pub(crate) fn pending_changes(known: &Store, services: &DesiredServices) -> Vec<ServiceChange> {
    let namespace = &services.namespace;
    let owner = services.owner.as_ref().and_then(|owner| {
        let held = known.find(KIND, namespace, owner)?;
        Some(json!([{ "apiVersion": "v1", "kind": KIND, "name": owner, "uid": held.uid }]))
    });
    let mut due = Vec::new();
    let mut names = BTreeSet::new();
    for wanted in &services.desired {
        let mut wanted = wanted.clone();
        if let Some(owner) = &owner {
            wanted["metadata"]["ownerReferences"] = owner.clone();
        }
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let is_due = match known.find(KIND, namespace, &name) {
            None => true,
            Some(held) => held.managed_service().is_some_and(|is| {
                services.owns(is).unwrap_or(true) && !has_desired_fields(is, &wanted)
            }),
        };
        if is_due {
            due.push(ServiceChange::Apply(wanted));
        }
        names.insert(name);
    }
    for ((of, name), held) in known.all(KIND).filter(|((of, _), _)| of == namespace) {
        let Some(front) = held.managed_service() else { continue };
        // Another installation may have made it, in a version without the annotation.
        if !services.owns(front).unwrap_or(services.controller == GATEWAY_CONTROLLER) {
            continue;
        }
        let gateway =
            front["metadata"]["annotations"][GATEWAY_ANNOTATION].as_str().unwrap_or_default();
        if !names.contains(name) && !services.retained.contains(gateway) {
            let (namespace, name, uid) = (of.clone(), name.clone(), held.uid.clone());
            due.push(ServiceChange::Delete { namespace, name, uid });
        }
    }
    due
}

impl DesiredServices {
    /// True if we have made a managed Service; `None` if it does not tell.
    fn owns(&self, service: &Value) -> Option<bool> {
        let of = &service["metadata"]["annotations"][CONTROLLER_ANNOTATION];
        of.as_str().map(|of| of == self.controller)
    }
}

/// Returns the whole of a managed Service, including its status.
pub(crate) fn managed_service(kind: &WatchedKind, object: &DynamicObject) -> Option<Value> {
    let labels = object.metadata.labels.as_ref()?;
    if kind.name != KIND || !labels.contains_key(SERVICE_LABEL) {
        return None;
    }
    let mut all = object.data.clone();
    // Items of a list do not carry their apiVersion and kind.
    all["apiVersion"] = json!(kind.api_version());
    all["kind"] = json!(kind.name);
    all["metadata"] = json!(ObjectMeta { managed_fields: None, ..object.metadata.clone() });
    Some(all)
}

impl ServiceChange {
    /// Returns the namespace and name of the Service.
    pub(crate) fn name(&self) -> (&str, &str) {
        match self {
            Self::Apply(service) => {
                let text = |field: &str| service["metadata"][field].as_str().unwrap_or_default();
                (text("namespace"), text("name"))
            }
            Self::Delete { namespace, name, .. } => (namespace, name),
        }
    }
}

pub(crate) async fn write_service(
    client: &Client,
    difference: &ServiceChange,
    manager: &str,
) -> Result<(), Error> {
    let Some(kind) = WatchedKind::by_name(KIND) else { return Ok(()) };
    let (namespace, name) = difference.name();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind.resource());
    match difference {
        ServiceChange::Apply(service) => {
            let patch = Patch::Apply(service);
            api.patch(name, &PatchParams::apply(manager).force(), &patch).await?;
            tracing::info!(%namespace, %name, "wrote the Service of a Gateway");
        }
        ServiceChange::Delete { uid, .. } => {
            // Deletes this object only, not a later one of the same name.
            let uid = Some(uid.clone());
            let preconditions = Some(Preconditions { uid, resource_version: None });
            let params = DeleteParams { preconditions, ..DeleteParams::default() };
            api.delete(name, &params).await?;
            tracing::info!(%namespace, %name, "deleted the Service of a deleted Gateway");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gateway::managed_services::{DesiredService, ManagedServices, service_manifest};
    use gateway::objects::GatewayInfrastructure;
    use gateway::snapshot::TransportProtocol;
    use kube_runtime::watcher::Event;

    use super::*;
    use crate::store::WatchKey;

    fn wanted(name: &str) -> Value {
        wanted_by(GATEWAY_CONTROLLER, name)
    }

    fn wanted_by(controller: &str, name: &str) -> Value {
        let gateway = ("shop".to_owned(), name.to_owned());
        let ports = [((80, TransportProtocol::Tcp), 20_000)].into();
        let infrastructure = GatewayInfrastructure::default();
        let front = DesiredService { gateway, ports, infrastructure, requested_address: None };
        let template = json!({ "spec": { "selector": { "app": "sheave" } } });
        service_manifest(&front, &template, "system", controller)
    }

    fn services(wanted: Vec<Value>) -> DesiredServices {
        DesiredServices {
            namespace: "system".to_owned(),
            controller: GATEWAY_CONTROLLER.to_owned(),
            desired: wanted,
            ..DesiredServices::default()
        }
    }

    fn known(objects: &[Value]) -> Store {
        let mut known = Store::for_tests();
        let index = WatchKey::of_kind(WatchedKind::index_of(KIND).unwrap());
        for object in objects {
            let mut object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            object.metadata.uid = Some("u1".to_owned());
            known.apply_event(&index, Event::Apply(object));
        }
        known
    }

    fn labels(differences: &[ServiceChange]) -> Vec<&str> {
        let label = |difference: &ServiceChange| match difference {
            ServiceChange::Apply(_) => "apply",
            ServiceChange::Delete { .. } => "delete",
        };
        differences.iter().map(label).collect()
    }

    #[test]
    fn only_changed_services_are_applied() {
        let mut is = wanted("web");
        is["spec"]["clusterIP"] = json!("10.96.0.7");
        is["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } });
        assert_eq!(
            labels(&pending_changes(&known(&[]), &services(vec![wanted("web")]))),
            ["apply"]
        );
        assert!(pending_changes(&known(&[is.clone()]), &services(vec![wanted("web")])).is_empty());
        is["spec"]["ports"][0]["targetPort"] = json!(9900);
        assert_eq!(
            labels(&pending_changes(&known(&[is]), &services(vec![wanted("web")]))),
            ["apply"]
        );
    }

    #[test]
    fn managed_service_is_recognized() {
        let (objects, problems) = known(&[wanted("web")]).contents();
        assert_eq!(problems, []);
        let fronts = ManagedServices::read(&objects, "system", GATEWAY_CONTROLLER);
        let of: Vec<_> = fronts.services.keys().cloned().collect();
        assert_eq!(of, [("shop".to_owned(), "web".to_owned())]);
        assert!(fronts.foreign.is_empty());
    }

    #[test]
    fn foreign_service_is_left_alone() {
        let mut foreign = wanted("web");
        foreign["metadata"]["labels"] = json!({});
        let elsewhere = {
            let mut service = wanted("old");
            service["metadata"]["namespace"] = json!("shop");
            service
        };
        let known = known(&[foreign, elsewhere]);
        assert!(pending_changes(&known, &services(vec![wanted("web")])).is_empty());
        assert!(pending_changes(&known, &services(Vec::new())).is_empty());
    }

    #[test]
    fn service_of_a_deleted_gateway_is_deleted_unless_kept() {
        let known = known(&[wanted("web")]);
        assert_eq!(labels(&pending_changes(&known, &services(Vec::new()))), ["delete"]);
        let kept =
            DesiredServices { retained: ["shop/web".to_owned()].into(), ..services(Vec::new()) };
        assert!(pending_changes(&known, &kept).is_empty());
    }

    #[test]
    fn services_of_another_installation_are_left_alone() {
        let other = "other.test/sheave";
        let known = known(&[wanted("web"), wanted_by(other, "theirs")]);
        let of_other =
            |wanted| DesiredServices { controller: other.to_owned(), ..services(wanted) };
        let deleted = |services: &DesiredServices| -> Vec<String> {
            let changes = pending_changes(&known, services);
            changes.iter().map(|it| it.name().1.to_owned()).collect()
        };
        assert_eq!(deleted(&services(Vec::new())), [service_name("web")]);
        assert_eq!(deleted(&of_other(Vec::new())), [service_name("theirs")]);
        // Nor is one with the same name overwritten.
        assert_eq!(deleted(&of_other(vec![wanted_by(other, "web")])), [service_name("theirs")]);
        let (objects, _) = known.contents();
        let read = ManagedServices::read(&objects, "system", other);
        assert_eq!(read.foreign, [service_name("web")].into());
    }

    #[test]
    fn service_without_a_controller_is_adopted_and_deleted_by_the_default_one_alone() {
        let mut of_old_version = wanted("web");
        of_old_version["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove(CONTROLLER_ANNOTATION);
        let known = known(&[of_old_version]);
        let other = "other.test/sheave";
        let of_other =
            |wanted| DesiredServices { controller: other.to_owned(), ..services(wanted) };
        assert_eq!(labels(&pending_changes(&known, &services(Vec::new()))), ["delete"]);
        assert!(pending_changes(&known, &of_other(Vec::new())).is_empty());
        let adopted = of_other(vec![wanted_by(other, "web")]);
        assert_eq!(labels(&pending_changes(&known, &adopted)), ["apply"]);
    }

    fn service_name(gateway: &str) -> String {
        gateway::managed_services::service_name(&("shop".to_owned(), gateway.to_owned()))
    }

    #[test]
    fn managed_services_have_an_owner_reference() {
        let owner = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "sheave-peers", "namespace": "system" },
        });
        let owned = DesiredServices {
            owner: Some("sheave-peers".to_owned()),
            ..services(vec![wanted("web")])
        };
        let differences = pending_changes(&known(&[owner, wanted("web")]), &owned);
        let [ServiceChange::Apply(service)] = &differences[..] else { panic!("{differences:?}") };
        assert_eq!(service["metadata"]["ownerReferences"][0]["uid"], "u1");
    }
}
