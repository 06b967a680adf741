//! Backends of Ingresses: ports of Services.

use super::super::index::ObjectIndex;
use crate::objects::{BackendRef, IngressBackend, IngressSpec, TypedObject};

/// Returns a reference to a Service port, or the field in error and why. A Service that is named with a port number
/// need not exist: the reference is then in error.
pub(super) fn backend_ref(
    index: &ObjectIndex<'_>,
    ingress: &TypedObject<IngressSpec>,
    backend: &IngressBackend,
    field: &str,
) -> Result<BackendRef, (String, String)> {
    if backend.resource.is_some() {
        let message = "is not supported, only a Service".to_owned();
        return Err((format!("{field}.resource"), message));
    }
    let Some(service) = &backend.service else {
        return Err((format!("{field}.service"), "is missing".to_owned()));
    };
    let port = match (&service.port.name, service.port.number) {
        (None, Some(number)) => Ok(number),
        (Some(name), None) => named_port(index, &ingress.metadata.namespace, &service.name, name),
        (None, None) | (Some(_), Some(_)) => {
            Err(("port", "must have either a name or a number".to_owned()))
        }
    };
    port.map(|port| reference(&service.name, port))
        .map_err(|(part, message)| (format!("{field}.service.{part}"), message))
}

fn named_port(
    index: &ObjectIndex<'_>,
    namespace: &str,
    service: &str,
    name: &str,
) -> Result<u16, (&'static str, String)> {
    let Some(object) = index.services.get(&(namespace, service)) else {
        return Err(("name", format!("there is no Service {namespace}/{service}")));
    };
    let port = object.spec.ports.iter().find(|port| port.name == name).map(|port| port.port);
    port.ok_or_else(|| ("port.name", format!("Service {namespace}/{service} has no port {name}")))
}

fn reference(service: &str, port: u16) -> BackendRef {
    BackendRef {
        group: None,
        kind: None,
        namespace: None,
        name: service.to_owned(),
        port: Some(port),
        weight: 1,
        filters: Vec::new(),
    }
}
