//! Ingresses of our classes: those with an IngressClass of ours, or those without a class if the default class is ours.
//! Other controllers serve classes for which no object exists.

use super::super::index::{ObjectIndex, by_age};
use super::super::report::TranslationReport;
use crate::objects::{IngressClassSpec, IngressSpec, ObjectMeta, TypedObject};

/// Annotation of the default class, for Ingresses without a class.
pub(crate) const DEFAULT_CLASS_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";
/// Annotation of an Ingress with its class, from before there was a field for it.
pub(crate) const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// An IngressClass of ours.
pub(super) struct AcceptedIngressClass<'a> {
    pub(super) object: &'a TypedObject<IngressClassSpec>,
    /// Its Ingresses, the oldest first.
    pub(super) ingresses: Vec<&'a TypedObject<IngressSpec>>,
}

/// Returns our classes, the oldest first, with their Ingresses.
pub(super) fn accepted_classes<'a>(
    index: &ObjectIndex<'a>,
    report: &mut TranslationReport,
) -> Vec<AcceptedIngressClass<'a>> {
    let classes = by_age(&index.ingress_classes);
    let mut ours: Vec<AcceptedIngressClass<'a>> = Vec::new();
    let controllers = &index.settings.controllers;
    for object in classes.iter().copied().filter(|class| controllers.own_ingress_class(class)) {
        if object.spec.parameters.is_some() {
            let message = "is not supported: use annotations of the class";
            report.problem("IngressClass", object, "spec.parameters", message);
        }
        ours.push(AcceptedIngressClass { object, ingresses: Vec::new() });
    }
    let default = classes.iter().find(|class| is_default(&class.metadata));
    for ingress in by_age(&index.ingresses) {
        let Some((field, name)) = class_name(ingress) else {
            let named = default.map(|class| &*class.metadata.name);
            match ours.iter_mut().find(|class| Some(&*class.object.metadata.name) == named) {
                Some(class) => class.ingresses.push(ingress),
                None if default.is_none() => {
                    let message = "is missing, and no IngressClass is the default";
                    report.problem_if_ours("Ingress", ingress, "spec.ingressClassName", message);
                }
                // The default class belongs to another controller.
                None => {}
            }
            continue;
        };
        match ours.iter_mut().find(|class| class.object.metadata.name == name) {
            Some(class) => class.ingresses.push(ingress),
            None if !index.ingress_classes.contains_key(&("", name)) => {
                let message = format!("there is no IngressClass {name}");
                report.problem_if_ours("Ingress", ingress, field, message);
            }
            None => {}
        }
    }
    ours
}

fn is_default(metadata: &ObjectMeta) -> bool {
    metadata.annotations.get(DEFAULT_CLASS_ANNOTATION).is_some_and(|value| value == "true")
}

/// Returns the class of an Ingress, and its field path. The annotation counts only if the field is not set.
fn class_name(ingress: &TypedObject<IngressSpec>) -> Option<(&'static str, &str)> {
    let field = ingress.spec.ingress_class_name.as_deref();
    let annotation = || ingress.metadata.annotations.get(CLASS_ANNOTATION).map(String::as_str);
    field
        .map(|name| ("spec.ingressClassName", name))
        .or_else(|| annotation().map(|name| ("metadata.annotations", name)))
}
