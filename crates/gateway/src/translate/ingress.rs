//! Ingress: turned into the objects of Gateway API that mean the same, so that there is one translation.
//!
//! An IngressClass of ours becomes a Gateway, each host of an Ingress an HTTPRoute, certificates become listeners, and
//! annotations filters and BackendPolicies. Of several Ingresses that ask for the same the oldest wins, as ingress-nginx
//! has it. What is made is in no cluster: nothing is said of it but what concerns an Ingress, and there.

/// Which Ingresses are ours.
mod class;
/// What annotations ask for.
mod annotation;
/// The names that other controllers gave to annotations.
mod dialect;
/// Where is accepted: hosts and their certificates.
mod class_listeners;
/// Which requests go where.
mod route;
/// Paths, and what becomes of them on the way.
mod path;
/// How Services are used.
mod policy;
/// Whose fault it is.
mod source;

use serde_json::{Value, json};

use super::index::ObjectIndex;
use super::{TranslationReport, TranslationResult};
use crate::addresses::GatewayName;
use crate::managed_services::PublishedAddress;
use crate::objects::{ApiObject, GatewaySpec, ObjectMeta, SharedObject, TypedObject};
use class::accepted_classes;
use dialect::AnnotationDialect;
use source::IngressSources;

/// The controller of the IngressClasses that are ours.
pub const CONTROLLER: &str = "sheave.dev/ingress";

/// The namespace of the Gateways that stand for IngressClasses; no namespace of a cluster can have a dot.
pub const NAMESPACE: &str = "ingress.class";

/// An Ingress of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedIngress {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The Gateway that stands for its class.
    pub gateway: GatewayName,
}

/// The Ingresses that are ours, each once.
pub fn served_ingresses(objects: &[ApiObject]) -> Vec<ServedIngress> {
    let mut report = TranslationReport::default();
    let index = ObjectIndex::new(objects, &mut report);
    let classes = accepted_classes(&index, &mut report);
    let of_class = |class: class::AcceptedIngressClass<'_>| {
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

/// Whether an annotation, of an Ingress or of an IngressClass, is looked at; those of other kinds never are.
pub fn is_known_annotation(annotation: &str) -> bool {
    let others = [
        class::CLASS_ANNOTATION,
        class::DEFAULT_CLASS_ANNOTATION,
        class_listeners::HTTP_PORT,
        class_listeners::HTTPS_PORT,
    ];
    AnnotationDialect::find(annotation).is_some() || others.contains(&annotation)
}

/// The status of an Ingress whose class is served at these addresses.
pub fn status(places: &[PublishedAddress]) -> Value {
    let place = |place: &PublishedAddress| match place {
        PublishedAddress::Ip(address) => json!({ "ip": address }),
        PublishedAddress::Hostname(name) => json!({ "hostname": name }),
    };
    let places: Vec<_> = places.iter().map(place).collect();
    json!({ "loadBalancer": { "ingress": places } })
}

/// The Gateways that stand for IngressClasses, by which requests come for at least one Ingress.
pub(crate) fn gateways(objects: &[ApiObject]) -> Vec<SharedObject<GatewaySpec>> {
    let mut report = TranslationReport::default();
    let index = ObjectIndex::new(objects, &mut report);
    let gateway =
        |object| if let ApiObject::Gateway(gateway) = object { Some(gateway) } else { None };
    expand(&index, &mut report).objects.into_iter().filter_map(gateway).collect()
}

/// What Ingresses come to.
#[derive(Default)]
pub(super) struct IngressExpansion {
    /// What means the same.
    pub(super) objects: Vec<ApiObject>,
    /// Where each part of it comes from.
    sources: IngressSources,
}

/// The objects of Gateway API that mean what the Ingresses of our classes mean; what is wrong is reported.
pub(super) fn expand(index: &ObjectIndex<'_>, report: &mut TranslationReport) -> IngressExpansion {
    let mut made = IngressExpansion::default();
    for class in accepted_classes(index, report) {
        if class.ingresses.is_empty() {
            continue;
        }
        let wishes: Vec<_> =
            class.ingresses.iter().map(|it| annotation::annotation_settings(it, report)).collect();
        let doors = class_listeners::class_listeners(&class, report);
        doors.add(&mut made, &class);
        route::add(index, &class, &wishes, &doors, &mut made, report);
        policy::add(index, &class, &wishes, &mut made, report);
    }
    made
}

impl IngressExpansion {
    /// Says of Ingresses what was said of the objects that were made of them.
    pub(super) fn attribute(&self, translation: &mut TranslationResult) {
        self.sources.attribute(translation);
    }
}

/// An object that was made of another.
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
    use crate::addresses::{AddressAssignment, assign};

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
            served_ingresses(&objects),
            [ServedIngress { namespace, name, gateway: gateway.clone() }]
        );

        let pool = ["192.0.2.7/32".parse().unwrap()];
        let AddressAssignment::Pool { assigned } = assign(&pool, &objects, &BTreeMap::new()) else {
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
