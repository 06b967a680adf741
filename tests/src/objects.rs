//! Gateway API objects as JSON, which is also YAML: the configuration under test.

use std::net::SocketAddr;

use serde_json::{Value, json};

/// Returns the base of a configuration with one listener on a free port: the class `sheave` and the
/// Gateway `edge`.
pub fn gateway() -> Vec<Value> {
    gateway_at("127.0.0.1", "HTTP")
}

/// Like [`gateway`], for another protocol and address.
pub fn gateway_at(address: &str, protocol: &str) -> Vec<Value> {
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": { "name": "sheave" },
        "spec": { "controllerName": "sheave.dev/gateway" },
    });
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": "edge" },
        "spec": {
            "gatewayClassName": "sheave",
            "addresses": [{ "type": "IPAddress", "value": address }],
            "listeners": [{ "name": protocol.to_lowercase(), "protocol": protocol, "port": 0 }],
        },
    });
    vec![class, gateway]
}

/// Returns a Gateway that terminates TLS, with the certificates in these Secrets.
pub fn https_gateway(secrets: &[&str]) -> Vec<Value> {
    let references: Vec<Value> = secrets.iter().map(|name| json!({ "name": name })).collect();
    gateway_with(json!([{
        "name": "https",
        "protocol": "HTTPS",
        "port": 0,
        "tls": { "mode": "Terminate", "certificateRefs": references },
    }]))
}

/// Returns a Gateway with these listeners.
pub fn gateway_with(listeners: Value) -> Vec<Value> {
    let mut objects = gateway();
    objects[1]["spec"]["listeners"] = listeners;
    objects
}

/// Returns a route of every request to this Service.
pub fn route(service: &str) -> Value {
    route_with(service, json!({ "rules": [{ "backendRefs": [{ "name": service, "port": 80 }] }] }))
}

/// Returns a route of every request for this host to this Service.
pub fn host_route(host: &str, service: &str) -> Value {
    let rules = json!([{ "backendRefs": [{ "name": service, "port": 80 }] }]);
    route_with(service, json!({ "hostnames": [host], "rules": rules }))
}

/// Returns a route of the Gateway `edge` with this `spec`.
pub fn route_with(name: &str, mut spec: Value) -> Value {
    spec["parentRefs"] = json!([{ "name": "edge" }]);
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// Returns a `TCPRoute` or a `UDPRoute` of every connection or flow to this Service.
pub fn stream_route(kind: &str, service: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": service },
        "spec": {
            "parentRefs": [{ "name": "edge" }],
            "rules": [{ "backendRefs": [{ "name": service, "port": 80 }] }],
        },
    })
}

/// Returns a `TLSRoute` of every connection for this host to this Service.
pub fn tls_route(host: &str, service: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "TLSRoute",
        "metadata": { "name": service },
        "spec": {
            "parentRefs": [{ "name": "edge" }],
            "hostnames": [host],
            "rules": [{ "backendRefs": [{ "name": service, "port": 80 }] }],
        },
    })
}

/// Returns a `GRPCRoute` of every call to this Service, whose endpoints use HTTP/2 without TLS.
pub fn grpc_route(service: &str) -> Value {
    grpc_route_with(service, json!([{ "backendRefs": [{ "name": service, "port": 80 }] }]))
}

/// Returns a `GRPCRoute` of the Gateway `edge` with these rules.
pub fn grpc_route_with(name: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GRPCRoute",
        "metadata": { "name": name },
        "spec": { "parentRefs": [{ "name": "edge" }], "rules": rules },
    })
}

/// Returns the Service with this protocol in its port.
pub fn with_app_protocol(protocol: &str, mut service: Value) -> Value {
    service["spec"]["ports"][0]["appProtocol"] = protocol.into();
    service
}

/// Returns a policy for TLS to the endpoints of this Service, whose certificates are validated by
/// the authority in the ConfigMap `ca`.
pub fn backend_tls_policy(service: &str, mut validation: Value) -> Value {
    validation["caCertificateRefs"] = json!([{ "group": "", "kind": "ConfigMap", "name": "ca" }]);
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "BackendTLSPolicy",
        "metadata": { "name": service },
        "spec": {
            "targetRefs": [{ "group": "", "kind": "Service", "name": service }],
            "validation": validation,
        },
    })
}

/// Returns the object with this transport in all its ports: a Service or an EndpointSlice for UDP.
pub fn with_transport(transport: &str, mut object: Value) -> Value {
    let ports = if object["kind"] == "Service" { "/spec/ports" } else { "/ports" };
    let ports = object.pointer_mut(ports).and_then(Value::as_array_mut).into_iter().flatten();
    ports.for_each(|port| port["protocol"] = transport.into());
    object
}

/// Returns the object in this namespace. A route keeps its Gateway of the namespace `default`.
pub fn in_namespace(namespace: &str, mut object: Value) -> Value {
    object["metadata"]["namespace"] = namespace.into();
    let parents = object.pointer_mut("/spec/parentRefs").and_then(Value::as_array_mut);
    parents.into_iter().flatten().for_each(|parent| parent["namespace"] = "default".into());
    object
}

/// Returns a Service with the port 80.
pub fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name },
        "spec": { "ports": [{ "name": "http", "port": 80 }] },
    })
}

/// Returns the EndpointSlices of these ready endpoints: one for each, since each has a port of its
/// own.
pub fn slices(service: &str, endpoints: &[SocketAddr]) -> Vec<Value> {
    let ready = json!({ "ready": true });
    endpoints.iter().map(|address| slice(service, *address, &ready)).collect()
}

/// Returns the EndpointSlice of one endpoint with these conditions.
pub fn slice(service: &str, endpoint: SocketAddr, conditions: &Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{}", endpoint.port()),
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": endpoint.port() }],
        "endpoints": [{ "addresses": [endpoint.ip().to_string()], "conditions": conditions }],
    })
}

/// Returns a BackendPolicy of this Service; `spec` has no target.
pub fn backend_policy(service: &str, mut spec: Value) -> Value {
    spec["targetRefs"] = json!([{ "group": "", "kind": "Service", "name": service }]);
    policy("BackendPolicy", service, &spec)
}

/// Returns a ClientPolicy of the Gateway `edge`; `spec` has no target.
pub fn client_policy(mut spec: Value) -> Value {
    let group = "gateway.networking.k8s.io";
    spec["targetRefs"] = json!([{ "group": group, "kind": "Gateway", "name": "edge" }]);
    policy("ClientPolicy", "edge", &spec)
}

fn policy(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": spec,
    })
}
