//! Listeners of gRPC servers (gRFC A36): TLS by the certificates of their bootstrap files (A29), and the clients that
//! they accept (A41).
//!
//! A server asks for `grpc/server/NAMESPACE/SERVICE:PORT?xds.resource.listening_address=ADDRESS`, and the answer has its
//! own address. All else depends on the port of the Service alone, so that is what is translated.

use std::collections::HashMap;
use std::net::SocketAddr;

use gateway::snapshot::{
    ClientAddressRules, XdsServerAccess, XdsServerClients, XdsServerSettings, XdsServerTls,
};
use ipnet::IpNet;

use super::tls::{certificate_provider, tls_context};
use crate::message::{
    AnyMessage, AuthenticatedPrincipal, BoolValue, CertificateValidation, CidrRange, EmptyMessage,
    FilterChain, HostAddress, HttpConnectionManager, HttpFilter, ListenerResource, NetworkFilter,
    PrincipalSet, RbacFilter, RbacPermission, RbacPolicy, RbacPrincipal, RbacRules,
    RouteConfiguration, RouteEntry, RouteMatcher, ServerTlsContext, StringMatcher, TransportSocket,
    VirtualHost,
};

/// Returns the listener of the servers at a port, without its name and address.
pub(super) fn listener(settings: &XdsServerSettings) -> ListenerResource {
    let rbac = access_filter(&settings.access).map(|filter| HttpFilter {
        name: "rbac".to_owned(),
        typed_config: Some(AnyMessage::of(RbacFilter::NAME, &filter)),
    });
    let manager = HttpConnectionManager {
        stat_prefix: "server".to_owned(),
        route_config: Some(every_call()),
        http_filters: rbac.into_iter().chain([HttpFilter::router()]).collect(),
        ..HttpConnectionManager::default()
    };
    let chain = FilterChain {
        filters: vec![NetworkFilter {
            name: "http".to_owned(),
            typed_config: Some(AnyMessage::of(HttpConnectionManager::NAME, &manager)),
        }],
        transport_socket: transport_socket(settings.tls),
        name: "every-connection".to_owned(),
    };
    ListenerResource {
        default_filter_chain: Some(chain),
        traffic_direction: ListenerResource::INBOUND,
        ..ListenerResource::default()
    }
}

/// Returns the name and address of a listener, to which its other fields are added.
pub(crate) fn listener_start(name: &str, address: SocketAddr) -> ListenerResource {
    ListenerResource {
        name: name.to_owned(),
        address: Some(HostAddress::of(address)),
        ..ListenerResource::default()
    }
}

/// Returns the routes of a server: it answers each call itself.
fn every_call() -> RouteConfiguration {
    let every_path = RouteMatcher { prefix: Some(String::new()), ..RouteMatcher::default() };
    let route = RouteEntry {
        r#match: Some(every_path),
        non_forwarding_action: Some(EmptyMessage {}),
        ..RouteEntry::default()
    };
    let host = VirtualHost {
        name: "every-host".to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![route],
    };
    RouteConfiguration {
        name: "server".to_owned(),
        virtual_hosts: vec![host],
        ..RouteConfiguration::default()
    }
}

fn transport_socket(tls: XdsServerTls) -> Option<TransportSocket> {
    let is_mutual = match tls {
        XdsServerTls::Off => return None,
        XdsServerTls::Simple => false,
        XdsServerTls::Mutual => true,
    };
    let validation = CertificateValidation {
        ca_certificate_provider_instance: Some(certificate_provider()),
        ..CertificateValidation::default()
    };
    let context = ServerTlsContext {
        common_tls_context: Some(tls_context(is_mutual.then_some(validation))),
        require_client_certificate: Some(BoolValue { value: is_mutual }),
    };
    Some(context.into())
}

/// Returns the filter of calls; `None`: all are accepted.
fn access_filter(access: &XdsServerAccess) -> Option<RbacFilter> {
    let policies = match access {
        XdsServerAccess::All => return None,
        XdsServerAccess::None => HashMap::new(),
        XdsServerAccess::Some(clients) => {
            let policy = RbacPolicy {
                permissions: vec![RbacPermission { any: Some(true) }],
                principals: vec![principal(clients)],
            };
            HashMap::from([("clients".to_owned(), policy)])
        }
    };
    Some(RbacFilter { rules: Some(RbacRules::allow(policies)) })
}

/// Returns the clients: those with one of the names, in one of the networks that are allowed, in none that is denied.
fn principal(clients: &XdsServerClients) -> RbacPrincipal {
    let XdsServerClients { names, addresses: ClientAddressRules { allowed, denied } } = clients;
    let conditions = [
        one_of(names.iter().map(|it| named(it))),
        one_of(allowed.iter().map(in_network)),
        one_of(denied.iter().map(in_network))
            .map(|it| RbacPrincipal { not_id: Some(Box::new(it)), ..RbacPrincipal::default() }),
    ];
    let ids = conditions.into_iter().flatten().collect();
    RbacPrincipal { and_ids: Some(PrincipalSet { ids }), ..RbacPrincipal::default() }
}

fn one_of(principals: impl Iterator<Item = RbacPrincipal>) -> Option<RbacPrincipal> {
    let ids: Vec<_> = principals.collect();
    let is_empty = ids.is_empty();
    let either = RbacPrincipal { or_ids: Some(PrincipalSet { ids }), ..RbacPrincipal::default() };
    (!is_empty).then_some(either)
}

fn named(name: &str) -> RbacPrincipal {
    let principal_name = Some(StringMatcher::equal_to(name));
    RbacPrincipal {
        authenticated: Some(AuthenticatedPrincipal { principal_name }),
        ..RbacPrincipal::default()
    }
}

fn in_network(network: &IpNet) -> RbacPrincipal {
    let range = CidrRange {
        address_prefix: network.network().to_string(),
        prefix_len: Some(u32::from(network.prefix_len()).into()),
    };
    RbacPrincipal { direct_remote_ip: Some(range), ..RbacPrincipal::default() }
}
