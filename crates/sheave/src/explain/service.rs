//! Addresses of Services in transparent mode: which one a URL names, and what is done with connections to it.

use gateway::snapshot::Listener;

/// True if a host is the address of an intercepted listener, or a name of its Service in DNS: `service`,
/// `service.namespace` or `service.namespace.svc`, with or without the domain of the cluster.
pub(super) fn is_named(listener: &Listener, host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    if host.parse() == Ok(listener.address.ip()) {
        return true;
    }
    let mut label = listener.name.split('/');
    let (Some(namespace), Some(service)) = (label.next(), label.next()) else { return false };
    let mut parts = host.split('.');
    parts.next() == Some(service)
        && parts.next().is_none_or(|part| part == namespace)
        && parts.next().is_none_or(|part| part == "svc")
}

/// Describes what happens to connections to the address of a Service.
pub(super) fn interception(listener: &Listener) -> Vec<String> {
    let Some(settings) = listener.interception else { return Vec::new() };
    let source = if settings.keep_client_address { "client" } else { "node" };
    vec![
        "connections are taken on nodes in transparent mode, else by kube-proxy".to_owned(),
        format!("endpoints see the address of the {source}"),
    ]
}
