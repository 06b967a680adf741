//! Migration of Ingresses: objects of Gateway API, and policies, that mean the same.
//!
//! The objects are those into which a translation expands Ingresses, under names that a cluster accepts.

/// Names that a cluster accepts.
mod names;
/// Objects as values for YAML.
mod output;
/// Input: Ingresses of classes of other controllers.
mod input;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::objects::{ApiObject, IngressSpec, TypedObject};
use crate::problem::{ObjectProblem, label};
use crate::translate::ingress::equivalent_objects;
use output::ObjectWriter;

/// The ending of the message of a problem that keeps an Ingress from being served.
const REFUSED: &str = "all requests are answered with 500";

/// Settings of a migration.
#[derive(Clone, Debug)]
pub struct MigrationSettings {
    /// The IngressClass whose Ingresses are migrated. `None`: all classes.
    pub ingress_class: Option<String>,
    /// The GatewayClass of the Gateways.
    pub gateway_class: String,
    /// The namespace of the Gateways.
    pub gateway_namespace: String,
}

/// The result of a migration.
#[derive(Clone, Debug)]
pub struct MigrationResult {
    /// The objects, in the order in which they can be applied.
    pub objects: Vec<Value>,
    /// The Ingresses, by namespace and name.
    pub ingresses: Vec<MigratedIngress>,
    /// Objects that a cluster does not accept, and the reason.
    pub unacceptable: Vec<String>,
}

/// An Ingress, and how its requests are served by the objects of the migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigratedIngress {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The treatment of its requests.
    pub outcome: MigrationOutcome,
    /// Each difference, or the reasons for a refusal.
    pub notes: Vec<String>,
}

/// The treatment of an Ingress's requests after a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// Its requests are served as before.
    Same,
    /// Its requests are served with differences.
    Different,
    /// Its requests are answered with 500, because an annotation that restricts requests is not understood.
    Refused,
}

/// Returns what means the same as the Ingresses among these objects. Services that are not among them are taken to have
/// the ports that Ingresses name by number.
pub fn migrate(objects: &[ApiObject], settings: &MigrationSettings) -> MigrationResult {
    let input = input::prepare(objects, settings);
    let (derived, problems) = equivalent_objects(&input);
    let mut writer = ObjectWriter::new(settings, objects);
    let derived_objects = writer.write(&derived);
    let mut ingresses = migrated(&input, settings, &problems);
    let shared = derived.iter().filter_map(shared_rate_limit);
    let ObjectWriter { differences, unacceptable, .. } = writer;
    for (namespace, name, note) in differences.into_iter().chain(shared) {
        let Some(ingress) = ingresses.get_mut(&(namespace, name)) else { continue };
        if !ingress.notes.contains(&note) {
            ingress.notes.push(note);
        }
        if ingress.outcome == MigrationOutcome::Same {
            ingress.outcome = MigrationOutcome::Different;
        }
    }
    let ingresses = ingresses.into_values().collect();
    MigrationResult { objects: derived_objects, ingresses, unacceptable }
}

/// Returns the Ingresses of the migrated classes, by namespace and name.
fn migrated(
    objects: &[ApiObject],
    settings: &MigrationSettings,
    problems: &[ObjectProblem],
) -> BTreeMap<(String, String), MigratedIngress> {
    let migrated = |ingress: &TypedObject<IngressSpec>| {
        let (namespace, name) = (&ingress.metadata.namespace, &ingress.metadata.name);
        let object = label("Ingress", namespace, name);
        let of_ingress = problems.iter().filter(|problem| problem.object == object);
        let note = |problem: &ObjectProblem| format!("{}: {}", problem.field, problem.message);
        let notes: Vec<_> = of_ingress.map(note).collect();
        let outcome = if notes.iter().any(|note| note.ends_with(REFUSED)) {
            MigrationOutcome::Refused
        } else if notes.is_empty() {
            MigrationOutcome::Same
        } else {
            MigrationOutcome::Different
        };
        let key = (namespace.clone(), name.clone());
        (key.clone(), MigratedIngress { namespace: key.0, name: key.1, outcome, notes })
    };
    input::ingresses(objects, settings).map(migrated).collect()
}

/// Returns the Ingress of a policy whose limits all its targets share, which is not possible with the object that is
/// written, and the difference.
fn shared_rate_limit(object: &ApiObject) -> Option<(String, String, String)> {
    let ApiObject::RateLimitPolicy(policy) = object else { return None };
    let ingress = policy.spec.ingress.clone()?;
    let note =
        "metadata.annotations: limit-rps and limit-rpm count the requests of each host separately";
    let is_shared = policy.spec.target_refs.len() > 1;
    is_shared.then(|| (policy.metadata.namespace.clone(), ingress, note.to_owned()))
}
