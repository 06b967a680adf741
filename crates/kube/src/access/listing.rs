//! Objects of a cluster, listed once: for a check or a migration without a running Sheave.

use std::collections::BTreeMap;

use gateway::{
    ApiObject, CertificateObject, CertificateObjectKind, ControllerNames, ObjectProblem,
    certificate_objects,
};
use kube_core::DynamicObject;
use serde_json::Value;

use super::{AccessError, RequiredPermission, object_name};
use crate::ClusterClient;
use crate::kind::{CONFIG_MAP, KINDS, NODE, SECRET, WatchedKind};
use crate::store::{WatchScope, read_object};

/// Objects in one answer.
const PAGE_SIZE: usize = 500;
/// Most objects of a kind.
const MAX_OBJECTS: usize = 100_000;
/// Most Secrets and ConfigMaps that are read, each by a request.
const MAX_CERTIFICATES: usize = 2_000;

/// Objects of a cluster.
#[derive(Debug, Default)]
pub struct ClusterListing {
    /// Every object without an error.
    pub objects: Vec<ApiObject>,
    /// The errors of all others.
    pub problems: Vec<ObjectProblem>,
    /// Secrets and ConfigMaps that objects refer to and that cannot be read, each with the reason.
    pub unreadable: BTreeMap<CertificateObject, String>,
    /// Kinds that the user may not list, by name, with the permission that is missing.
    pub refused: Vec<(&'static str, RequiredPermission)>,
}

impl ClusterClient {
    /// Lists every kind that a configuration is made of, and reads the Secrets and ConfigMaps that the objects refer to.
    ///
    /// # Errors
    /// If the API server does not answer. A missing permission is part of the listing.
    pub async fn list_configuration(
        &self,
        namespace: Option<&str>,
        controllers: &ControllerNames,
    ) -> Result<ClusterListing, AccessError> {
        let kinds: Vec<&str> = KINDS
            .iter()
            .filter(|kind| !kind.holds_certificates && kind.name != NODE)
            .map(|kind| kind.name)
            .collect();
        let mut listing = self.list_kinds(&kinds, namespace).await?;
        let wanted = certificate_objects(&listing.objects, controllers);
        for (index, object) in wanted.into_iter().enumerate() {
            if index >= MAX_CERTIFICATES {
                let reason = format!("there are references to more than {MAX_CERTIFICATES} others");
                listing.unreadable.insert(object, reason);
                continue;
            }
            match self.certificate_object(&object).await {
                Ok(value) => {
                    let kind = WatchedKind::by_name(kind_name(&object)).expect("it is watched");
                    let scope = WatchScope::Object((object.namespace.clone(), object.name.clone()));
                    listing.add(kind, &scope, value)?;
                }
                // The translation says that it does not exist.
                Err(AccessError::NotFound(_) | AccessError::InvalidName(_)) => {}
                Err(error @ AccessError::Forbidden(_)) => {
                    listing.unreadable.insert(object, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    /// Lists the objects of these kinds, in a namespace or in all.
    ///
    /// # Errors
    /// If the API server does not answer. A missing permission is part of the listing.
    pub async fn list_kinds(
        &self,
        kinds: &[&str],
        namespace: Option<&str>,
    ) -> Result<ClusterListing, AccessError> {
        let mut listing = ClusterListing::default();
        for name in kinds {
            let kind = WatchedKind::by_name(name).expect("the kind is watched");
            match self.list_kind(kind, namespace, &mut listing).await {
                // The cluster does not have this kind.
                Ok(()) | Err(AccessError::NotFound(_)) => {}
                Err(AccessError::Forbidden(permission)) => {
                    listing.refused.push((kind.name, permission));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    async fn list_kind(
        &self,
        kind: &WatchedKind,
        namespace: Option<&str>,
        listing: &mut ClusterListing,
    ) -> Result<(), AccessError> {
        let namespace = namespace.filter(|_| kind.is_namespaced);
        let collection = collection(kind, namespace)?;
        let permission = RequiredPermission {
            verb: "list",
            resource: resource(kind),
            namespace: namespace.map(str::to_owned),
        };
        let mut next = Some(String::new());
        let mut count = 0;
        while let Some(token) = next {
            let mut path = format!("{collection}?limit={PAGE_SIZE}");
            if let Some(selector) = kind.field_selector {
                add_parameter(&mut path, "fieldSelector", selector);
            }
            if !token.is_empty() {
                add_parameter(&mut path, "continue", &token);
            }
            let mut page = self.get_json(&path, &permission, kind.name).await?;
            let Value::Array(items) = page["items"].take() else {
                return Err(AccessError::Malformed("a list has no items".to_owned()));
            };
            count += items.len();
            if count > MAX_OBJECTS {
                let message = format!("there are more than {MAX_OBJECTS} objects of one kind");
                return Err(AccessError::Malformed(message));
            }
            for item in items {
                listing.add(kind, &WatchScope::Cluster, item)?;
            }
            let token = page.pointer("/metadata/continue").and_then(Value::as_str);
            next = token.filter(|token| !token.is_empty()).map(str::to_owned);
        }
        Ok(())
    }

    async fn certificate_object(&self, object: &CertificateObject) -> Result<Value, AccessError> {
        let CertificateObject { namespace, name, .. } = object;
        let kind = WatchedKind::by_name(kind_name(object)).expect("it is watched");
        let path = format!("{}/{}", collection(kind, Some(namespace))?, object_name(name)?);
        let permission = RequiredPermission::in_namespace("get", kind.plural, namespace);
        self.get_json(&path, &permission, &format!("{} {namespace}/{name}", kind.name)).await
    }
}

impl ClusterListing {
    fn add(
        &mut self,
        kind: &WatchedKind,
        scope: &WatchScope,
        value: Value,
    ) -> Result<(), AccessError> {
        let object: DynamicObject = serde_json::from_value(value)
            .map_err(|error| AccessError::Malformed(format!("{} in a list: {error}", kind.name)))?;
        let (object, problems) = read_object(kind, scope, object);
        self.objects.extend(object);
        self.problems.extend(problems);
        Ok(())
    }
}

const fn kind_name(object: &CertificateObject) -> &'static str {
    match object.kind {
        CertificateObjectKind::ConfigMap => CONFIG_MAP,
        CertificateObjectKind::Secret => SECRET,
    }
}

/// Returns the path of a kind's objects, in a namespace or in the whole cluster.
fn collection(kind: &WatchedKind, namespace: Option<&str>) -> Result<String, AccessError> {
    let (version, plural) = (kind.api_version(), kind.plural);
    let root = if kind.group.is_empty() { "api" } else { "apis" };
    Ok(match namespace {
        Some(namespace) => {
            format!("/{root}/{version}/namespaces/{}/{plural}", object_name(namespace)?)
        }
        None => format!("/{root}/{version}/{plural}"),
    })
}

/// Returns the resource with its group, as `kubectl auth can-i` takes it.
fn resource(kind: &WatchedKind) -> String {
    match kind.group {
        "" => kind.plural.to_owned(),
        group => format!("{}.{group}", kind.plural),
    }
}

fn add_parameter(path: &mut String, name: &str, value: &str) {
    let mut escaped = Vec::new();
    gateway::snapshot::escape_query(value.as_bytes(), &mut escaped);
    path.push('&');
    path.push_str(name);
    path.push('=');
    path.push_str(&String::from_utf8_lossy(&escaped));
}
