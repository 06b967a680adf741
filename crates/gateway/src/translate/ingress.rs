//! Expansion of Ingresses into equivalent objects of Gateway API, so that there is one translation.
//!
//! An IngressClass of ours becomes a Gateway, each host of an Ingress becomes an HTTPRoute, certificates become
//! listeners, and annotations become filters and BackendPolicies. Of several Ingresses for the same host and path the
//! oldest wins, as with ingress-nginx. The derived objects exist in no cluster. Their problems are reported only if
//! they concern an Ingress, and on that Ingress.

/// IngressClasses of ours and their Ingresses.
mod class;
/// Settings from annotations.
mod annotation;
/// Annotation names of other controllers.
mod dialect;
/// Hosts of Ingresses.
mod class_hosts;
/// Listeners: hosts and their certificates.
mod class_listeners;
/// References to Services.
mod backend;
/// Authorizers, found by their URLs.
mod authorizer;
/// Canary Ingresses, which join others.
mod canary;
/// HTTPRoutes from Ingress rules.
mod route;
/// Paths and their rewrites.
mod path;
/// Filters of derived routes.
mod filter;
/// BackendPolicies from annotations.
mod policy;
/// Policies of requests from annotations.
mod request_policy;
/// Attribution of problems to Ingresses.
mod source;

use serde_json::{Value, json};

use super::index::ObjectIndex;
use super::report::{TranslationReport, TranslationResult};
use crate::managed_services::PublishedAddress;
use crate::objects::{
    ApiObject, GatewayName, GatewaySpec, IngressSpec, ObjectMeta, SharedObject, TypedObject,
};
use crate::problem::ObjectProblem;
use crate::translation_settings::{ControllerNames, TranslationSettings};
use canary::ClassCanaries;
use class::{AcceptedIngressClass, accepted_classes};
pub(crate) use class::{CLASS_ANNOTATION, DEFAULT_CLASS_ANNOTATION};
use class_hosts::ClassHosts;
use dialect::AnnotationDialect;
use route::ClassContext;
use source::IngressSources;

/// The namespace of the Gateways that represent IngressClasses. It cannot exist in a cluster, because it contains a
/// dot.
pub const NAMESPACE: &str = "ingress.class";

/// An Ingress of one of our classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedIngress {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Gateway that represents its class.
    pub gateway: GatewayName,
}

/// Returns the Ingresses of our classes, each once.
pub fn served_ingresses(
    objects: &[ApiObject],
    controllers: &ControllerNames,
) -> Vec<ServedIngress> {
    let mut report = TranslationReport::default();
    let index = ObjectIndex::new(objects, &of_controllers(controllers), &mut report);
    let classes = accepted_classes(&index, &mut report);
    let of_class = |class: AcceptedIngressClass<'_>| {
        let gateway = (NAMESPACE.to_owned(), class.object.metadata.name.clone());
        let served = |ObjectMeta { namespace, name, .. }: &ObjectMeta| ServedIngress {
            namespace: namespace.clone(),
            name: name.clone(),
            gateway: gateway.clone(),
        };
        class.ingresses.iter().map(|it| served(&it.metadata)).collect::<Vec<_>>()
    };
    classes.into_iter().flat_map(of_class).collect()
}

/// True if an annotation of an Ingress or IngressClass is read. Annotations of other kinds never are.
pub fn is_known_annotation(annotation: &str) -> bool {
    let others = [
        CLASS_ANNOTATION,
        DEFAULT_CLASS_ANNOTATION,
        class_listeners::HTTP_PORT,
        class_listeners::HTTPS_PORT,
    ];
    AnnotationDialect::find(annotation).is_some() || others.contains(&annotation)
}

/// Returns the status of an Ingress whose class is served at these addresses.
pub fn status(places: &[PublishedAddress]) -> Value {
    let place = |place: &PublishedAddress| match place {
        PublishedAddress::Ip(address) => json!({ "ip": address }),
        PublishedAddress::Hostname(name) => json!({ "hostname": name }),
    };
    let places: Vec<_> = places.iter().map(place).collect();
    json!({ "loadBalancer": { "ingress": places } })
}

/// Returns the Gateways that represent IngressClasses with at least one Ingress.
pub(crate) fn gateways(
    objects: &[ApiObject],
    controllers: &ControllerNames,
) -> Vec<SharedObject<GatewaySpec>> {
    let mut report = TranslationReport::default();
    let index = ObjectIndex::new(objects, &of_controllers(controllers), &mut report);
    let gateway =
        |object| if let ApiObject::Gateway(gateway) = object { Some(gateway) } else { None };
    expand(&index, &mut report).objects.into_iter().filter_map(gateway).collect()
}

/// Returns equivalent objects of Gateway API for the Ingresses of our classes, and the problems of the Ingresses.
pub(crate) fn equivalent_objects(objects: &[ApiObject]) -> (Vec<ApiObject>, Vec<ObjectProblem>) {
    let mut report = TranslationReport::default();
    let settings = TranslationSettings::default();
    // Problems of other objects are not of interest.
    let index = ObjectIndex::new(objects, &settings, &mut TranslationReport::default());
    let objects = expand(&index, &mut report).objects;
    (objects, report.problems)
}

/// Returns the namespace and name of each Secret of the Ingresses of our classes.
pub(super) fn secrets<'a>(index: &ObjectIndex<'a>) -> Vec<(&'a str, &'a str)> {
    let classes = accepted_classes(index, &mut TranslationReport::default());
    let ingresses = classes.into_iter().flat_map(|class| class.ingresses);
    let of_ingress = |ingress: &'a TypedObject<IngressSpec>| {
        let names = ingress.spec.tls.iter().filter_map(|tls| tls.secret_name.as_deref());
        let names = names.chain(annotation::endpoint_secret(ingress));
        let names = names.chain(annotation::client_authority(ingress));
        let names = names.chain(annotation::user_secrets(ingress));
        names.map(|name| (&*ingress.metadata.namespace, name))
    };
    ingresses.flat_map(of_ingress).collect()
}

/// Returns the namespace and name of each ConfigMap of the Ingresses of our classes.
pub(super) fn config_maps<'a>(index: &ObjectIndex<'a>) -> Vec<(&'a str, &'a str)> {
    let classes = accepted_classes(index, &mut TranslationReport::default());
    let ingresses = classes.into_iter().flat_map(|class| class.ingresses);
    let of_ingress = |ingress: &'a TypedObject<IngressSpec>| {
        Some((&*ingress.metadata.namespace, annotation::header_map(ingress)?))
    };
    ingresses.filter_map(of_ingress).collect()
}

fn of_controllers(controllers: &ControllerNames) -> TranslationSettings {
    TranslationSettings { controllers: controllers.clone(), ..TranslationSettings::default() }
}

/// The result of expanding Ingresses.
#[derive(Default)]
pub(super) struct IngressExpansion {
    /// Equivalent objects of Gateway API.
    pub(super) objects: Vec<ApiObject>,
    /// The Ingress field that each part of the objects comes from.
    sources: IngressSources,
}

/// Expands the Ingresses of our classes into equivalent objects of Gateway API. Problems are reported.
pub(super) fn expand(index: &ObjectIndex<'_>, report: &mut TranslationReport) -> IngressExpansion {
    let mut expansion = IngressExpansion::default();
    for class in accepted_classes(index, report) {
        let ingresses = class.ingresses.iter();
        let mut settings: Vec<_> = ingresses
            .map(|ingress| annotation::annotation_settings(index, ingress, report))
            .collect();
        authorizer::find_all(index, &class.ingresses, &mut settings, report);
        let all = class.ingresses.iter().copied().zip(&settings);
        let (canaries, mains): (Vec<_>, Vec<_>) = all.partition(|(_, it)| it.canary.is_some());
        let canaries = ClassCanaries::new(index, &mains, &canaries, report);
        let (ingresses, settings): (Vec<_>, Vec<_>) = mains.into_iter().unzip();
        if ingresses.is_empty() {
            continue;
        }
        let class = AcceptedIngressClass { object: class.object, ingresses };
        let hosts = ClassHosts::new(&class, &settings, report);
        let listeners = class_listeners::class_listeners(&class, &hosts, &settings, report);
        listeners.add(index, &class, &mut expansion);
        let (class, hosts, listeners, canaries) = (&class, &hosts, &listeners, &canaries);
        let context = ClassContext { index, class, hosts, listeners, canaries };
        route::add(&context, &settings, &mut expansion, report);
        policy::add(&context, &settings, &mut expansion, report);
    }
    expansion
}

impl IngressExpansion {
    /// Attributes problems and statuses of the derived objects to their Ingresses.
    pub(super) fn attribute(&self, translation: &mut TranslationResult) {
        self.sources.attribute(translation);
    }
}

/// Returns an object derived from another.
fn derived<S, T>(from: &TypedObject<S>, namespace: &str, name: &str, spec: T) -> TypedObject<T> {
    let mut metadata = ObjectMeta::named(namespace, name);
    metadata.creation_timestamp.clone_from(&from.metadata.creation_timestamp);
    metadata.in_cluster = from.metadata.in_cluster;
    TypedObject { origin: from.origin.clone(), metadata, spec }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::address_pool::assign;
    use crate::addresses::AddressAssignment;

    const OBJECTS: &str = "
kind: IngressClass
apiVersion: networking.k8s.io/v1
metadata: {name: ours}
spec: {controller: sheave.dev/ingress}
---
kind: IngressClass
apiVersion: networking.k8s.io/v1
metadata: {name: idle}
spec: {controller: sheave.dev/ingress}
---
kind: IngressClass
apiVersion: networking.k8s.io/v1
metadata: {name: theirs}
spec: {controller: k8s.io/ingress-nginx}
---
kind: Ingress
apiVersion: networking.k8s.io/v1
metadata: {name: web, namespace: shop}
spec: {ingressClassName: ours, defaultBackend: {service: {name: web, port: {number: 80}}}}
---
kind: Ingress
apiVersion: networking.k8s.io/v1
metadata: {name: web, namespace: other}
spec: {ingressClassName: theirs, defaultBackend: {service: {name: web, port: {number: 80}}}}
";

    #[test]
    fn ingress_is_served_by_the_gateway_of_its_class() {
        let (objects, problems) = crate::parse(OBJECTS, "cluster");
        assert_eq!(problems, []);
        let gateway = (NAMESPACE.to_owned(), "ours".to_owned());
        let (namespace, name) = ("shop".to_owned(), "web".to_owned());
        assert_eq!(
            served_ingresses(&objects, &ControllerNames::default()),
            [ServedIngress { namespace, name, gateway: gateway.clone() }]
        );

        let pool = ["192.0.2.7/32".parse().unwrap()];
        let AddressAssignment::Pool { assigned } =
            assign(&pool, &objects, &BTreeMap::new(), &ControllerNames::default())
        else {
            panic!("a pool")
        };
        assert_eq!(assigned, [(gateway, vec![[192, 0, 2, 7].into()])].into());
    }

    #[test]
    fn ingress_status_lists_all_addresses() {
        let addresses =
            ["192.0.2.7", "2001:db8::7"].map(|text| PublishedAddress::Ip(text.parse().unwrap()));
        let places = [&addresses[..], &[PublishedAddress::Hostname("lb.test".to_owned())]].concat();
        let expected =
            json!([{ "ip": "192.0.2.7" }, { "ip": "2001:db8::7" }, { "hostname": "lb.test" }]);
        assert_eq!(status(&places)["loadBalancer"]["ingress"], expected);
    }
}
