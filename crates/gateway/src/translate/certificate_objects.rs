//! The Secrets and ConfigMaps that objects refer to, so that no other needs to be read from a cluster.
//!
//! These are all that a translation looks up: references of objects of this installation, and to other namespaces only
//! those that a ReferenceGrant permits.

use std::collections::BTreeSet;

use super::client_options::ClientOptions;
use super::index::{BACKEND_TLS_POLICY, ObjectIndex};
use super::ingress;
use super::jwt;
use super::listener::{allowed_listeners, is_ours};
use super::listener_set::ListenerSets;
use super::namespace_scope::NamespaceScope;
use super::owner::OwnerObject;
use super::reference::{CertificateRef, CertificateRefResolver};
use super::report::TranslationReport;
use crate::certificate_object::CertificateObject;
use crate::objects::{
    ApiObject, ClientPolicySpec, GatewaySpec, GatewayTls, ListenerSpec, PartialPolicy,
    SECURITY_POLICY, TlsModeType, TrafficPolicySpec, TypedObject,
};
use crate::translation_settings::{ControllerNames, TranslationSettings};

/// Returns the Secrets and ConfigMaps that a translation of these objects looks up.
pub fn certificate_objects(
    objects: &[ApiObject],
    controllers: &ControllerNames,
) -> BTreeSet<CertificateObject> {
    let settings =
        TranslationSettings { controllers: controllers.clone(), ..TranslationSettings::default() };
    let mut report = TranslationReport::default();
    let index = ObjectIndex::new(objects, &settings, &mut report);
    let mut references = CertificateObjects { index: &index, found: BTreeSet::new() };
    references.add_gateways();
    references.add_policies();
    for (namespace, name) in ingress::secrets(&index) {
        references.found.insert(CertificateObject::new("Secret", namespace, name));
    }
    for (namespace, name) in ingress::config_maps(&index) {
        references.found.insert(CertificateObject::new("ConfigMap", namespace, name));
    }
    references.found
}

/// Collects references.
struct CertificateObjects<'a> {
    index: &'a ObjectIndex<'a>,
    found: BTreeSet<CertificateObject>,
}

impl<'a> CertificateObjects<'a> {
    fn add_gateways(&mut self) {
        let index = self.index;
        let mut unused_report = TranslationReport::default();
        let sets = ListenerSets::new(index, &mut unused_report);
        let is_own = |gateway: &&TypedObject<GatewaySpec>| {
            let class = index.classes.get(&("", &*gateway.spec.gateway_class_name));
            class.is_some_and(|class| is_ours(index, class))
        };
        for gateway in index.gateways.values().copied().filter(is_own) {
            let owner = OwnerObject::of("Gateway", gateway);
            self.add_listeners(owner, &gateway.spec.listeners);
            gateway.spec.tls.iter().for_each(|tls| self.add_gateway_tls(owner, tls));
            let allowed = allowed_listeners(gateway).unwrap_or(NamespaceScope::None);
            let sets = sets.of(index, gateway, &allowed, &mut unused_report);
            for set in sets.iter().filter(|set| set.fault.is_none()) {
                self.add_listeners(set.owner(), &set.object.spec.listeners);
            }
        }
    }

    fn add_listeners(&mut self, owner: OwnerObject<'a>, listeners: &'a [ListenerSpec]) {
        let tls = listeners.iter().filter_map(|listener| listener.tls.as_ref());
        for tls in tls.filter(|tls| tls.mode == TlsModeType::Terminate) {
            self.add(owner, &tls.certificate_refs);
            let resolver = CertificateRefResolver { index: self.index, owner };
            let authority = ClientOptions::authority(&tls.options);
            self.found.extend(authority.and_then(|authority| resolver.permitted_object(authority)));
        }
    }

    fn add_gateway_tls(&mut self, owner: OwnerObject<'a>, tls: &'a GatewayTls) {
        self.add(owner, tls.backend.iter().flat_map(|backend| &backend.client_certificate_ref));
        let Some(frontend) = &tls.frontend else { return };
        let configs = frontend.per_port.iter().map(|port| &port.tls).chain([&frontend.default]);
        for validation in configs.filter_map(|config| config.validation.as_ref()) {
            self.add(owner, &validation.ca_certificate_refs);
        }
    }

    fn add_policies(&mut self) {
        for policy in self.index.backend_tls_policies.values() {
            let owner = OwnerObject::of(BACKEND_TLS_POLICY, policy);
            self.add(owner, &policy.spec.validation.ca_certificate_refs);
        }
        for policy in self.index.client_policies.values() {
            self.add_revocation_lists(&policy.metadata.namespace, &policy.spec);
        }
        for policy in self.index.security_policies.values() {
            let users = policy.spec.basic_auth.iter().map(|it| &it.users.name);
            let keys = policy.spec.api_keys.iter().flat_map(|it| &it.credential_refs);
            let namespace = &policy.metadata.namespace;
            for name in users.chain(keys.map(|it| &it.name)) {
                self.found.insert(CertificateObject::new("Secret", namespace, name));
            }
            if let Some(jwt) = &policy.spec.jwt {
                let owner = OwnerObject::of(SECURITY_POLICY, policy);
                self.found.extend(jwt::config_maps(self.index, owner, jwt));
            }
        }
        for policy in self.index.traffic_policies.values() {
            let TrafficPolicySpec { request_rules, direct_response, error_pages, .. } =
                &policy.spec;
            let of_rules = request_rules.iter().filter_map(|it| it.respond.as_ref());
            let direct = direct_response.iter().chain(of_rules);
            let direct = direct.filter_map(|it| it.body_ref.as_ref());
            let pages = error_pages.iter().filter_map(|it| it.body_ref.as_ref());
            for value in direct.chain(pages) {
                let namespace = &policy.metadata.namespace;
                self.found.insert(CertificateObject::new("ConfigMap", namespace, &value.name));
            }
        }
        for policy in &self.index.invalid_objects {
            if let Some(PartialPolicy::Client { spec, .. }) = &policy.spec.partial_policy {
                self.add_revocation_lists(&policy.metadata.namespace, spec);
            }
        }
    }

    fn add_revocation_lists(&mut self, namespace: &str, policy: &ClientPolicySpec) {
        for list in policy.revocation.iter().flat_map(|revocation| &revocation.crl_refs) {
            self.found.insert(CertificateObject::of_list(list.kind, namespace, &list.name));
        }
    }

    /// Adds the references of an object that are permitted.
    fn add<R: 'a>(&mut self, owner: OwnerObject<'a>, references: impl IntoIterator<Item = &'a R>)
    where
        CertificateRef<'a>: From<&'a R>,
    {
        let resolver = CertificateRefResolver { index: self.index, owner };
        let references = references.into_iter().map(CertificateRef::from);
        self.found.extend(references.filter_map(|reference| resolver.permitted_object(reference)));
    }
}
