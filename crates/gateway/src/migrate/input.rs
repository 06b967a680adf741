//! Input of a migration: Ingresses of classes of other controllers, as if the classes were ours.

use std::collections::{BTreeMap, BTreeSet};

use super::MigrationSettings;
use crate::objects::{
    ApiObject, INGRESS_CONTROLLER, IngressBackend, IngressClassSpec, IngressSpec, ObjectMeta,
    ServicePort, ServiceSpec, TypedObject,
};
use crate::problem::ObjectOrigin;
use crate::translate::ingress::{CLASS_ANNOTATION, DEFAULT_CLASS_ANNOTATION};

/// The class of Ingresses without one, if no IngressClass is the default.
const DEFAULT_CLASS: &str = "nginx";

/// Returns the objects with the migrated classes as ours. Classes and Services that are named but not there are added.
pub(super) fn prepare(objects: &[ApiObject], settings: &MigrationSettings) -> Vec<ApiObject> {
    let mut prepared: Vec<_> = objects.iter().map(|it| with_controller(it, settings)).collect();
    prepared.extend(missing_classes(objects, settings));
    prepared.extend(missing_services(objects));
    prepared
}

/// Returns the Ingresses of the migrated classes.
pub(super) fn ingresses<'a>(
    objects: &'a [ApiObject],
    settings: &'a MigrationSettings,
) -> impl Iterator<Item = &'a TypedObject<IngressSpec>> {
    let default = default_class(objects, settings);
    all_ingresses(objects).filter(move |ingress| {
        let class = class_name(ingress).or(default.as_deref());
        settings.ingress_class.as_deref().is_none_or(|only| class == Some(only))
    })
}

fn all_ingresses(objects: &[ApiObject]) -> impl Iterator<Item = &TypedObject<IngressSpec>> {
    objects.iter().filter_map(|object| {
        let ApiObject::Ingress(ingress) = object else { return None };
        Some(&**ingress)
    })
}

fn classes(objects: &[ApiObject]) -> impl Iterator<Item = &TypedObject<IngressClassSpec>> {
    objects.iter().filter_map(|object| {
        let ApiObject::IngressClass(class) = object else { return None };
        Some(&**class)
    })
}

fn class_name(ingress: &TypedObject<IngressSpec>) -> Option<&str> {
    let annotation = ingress.metadata.annotations.get(CLASS_ANNOTATION);
    let field = ingress.spec.ingress_class_name.as_ref();
    field.or(annotation).map(String::as_str)
}

/// Returns the class of Ingresses without one.
fn default_class(objects: &[ApiObject], settings: &MigrationSettings) -> Option<String> {
    let is_default = |class: &&TypedObject<IngressClassSpec>| {
        let value = class.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION);
        value.is_some_and(|value| value == "true")
    };
    let default = classes(objects).find(is_default).map(|class| class.metadata.name.clone());
    default.or_else(|| settings.ingress_class.clone()).or_else(|| Some(DEFAULT_CLASS.to_owned()))
}

fn with_controller(object: &ApiObject, settings: &MigrationSettings) -> ApiObject {
    let ApiObject::IngressClass(class) = object else { return object.clone() };
    let name = &class.metadata.name;
    let is_migrated = settings.ingress_class.as_ref().is_none_or(|only| only == name);
    let controller = if is_migrated { INGRESS_CONTROLLER } else { "another" }.to_owned();
    let mut class = TypedObject::clone(class);
    class.metadata.in_cluster = false;
    // Parameters are those of the other controller.
    class.spec = IngressClassSpec { controller, parameters: None };
    ApiObject::IngressClass(class.into())
}

fn missing_classes(objects: &[ApiObject], settings: &MigrationSettings) -> Vec<ApiObject> {
    let known: BTreeSet<_> = classes(objects).map(|class| &*class.metadata.name).collect();
    let default = default_class(objects, settings);
    let named = all_ingresses(objects).map(|it| class_name(it).or(default.as_deref()));
    let named: BTreeSet<_> = named.flatten().filter(|name| !known.contains(name)).collect();
    let class = |name: &str| {
        let mut metadata = ObjectMeta::named("", name);
        if default.as_deref() == Some(name) {
            let is_default = (DEFAULT_CLASS_ANNOTATION.to_owned(), "true".to_owned());
            metadata.annotations = BTreeMap::from([is_default]);
        }
        let spec = IngressClassSpec { controller: INGRESS_CONTROLLER.to_owned(), parameters: None };
        let class = TypedObject { origin: ObjectOrigin::default(), metadata, spec };
        with_controller(&ApiObject::IngressClass(class.into()), settings)
    };
    named.into_iter().map(class).collect()
}

fn missing_services<'a>(objects: &'a [ApiObject]) -> Vec<ApiObject> {
    let name = |object: &'a ApiObject| {
        let ApiObject::Service(service) = object else { return None };
        Some((&*service.metadata.namespace, &*service.metadata.name))
    };
    let known: BTreeSet<_> = objects.iter().filter_map(name).collect();
    let mut missing: BTreeMap<(&str, &str), BTreeSet<u16>> = BTreeMap::new();
    for ingress in all_ingresses(objects) {
        let paths = ingress.spec.rules.iter().filter_map(|rule| rule.http.as_ref());
        let backends = paths.flat_map(|it| &it.paths).map(|path| &path.backend);
        for IngressBackend { service, .. } in backends.chain(&ingress.spec.default_backend) {
            let Some(service) = service else { continue };
            let key = (&*ingress.metadata.namespace, &*service.name);
            if let Some(number) = service.port.number.filter(|_| !known.contains(&key)) {
                missing.entry(key).or_default().insert(number);
            }
        }
    }
    let service = |((namespace, name), numbers): ((&str, &str), BTreeSet<u16>)| {
        let port = |number: u16| ServicePort {
            name: format!("port-{number}"),
            port: number,
            ..ServicePort::default()
        };
        let ports = numbers.into_iter().map(port).collect();
        let spec = ServiceSpec { ports, ..ServiceSpec::default() };
        let metadata = ObjectMeta::named(namespace, name);
        let origin = ObjectOrigin::default();
        ApiObject::Service(TypedObject { origin, metadata, spec }.into())
    };
    missing.into_iter().map(service).collect()
}
