//! The annotations of a Service in transparent mode, and of a Namespace for its Services.

use super::eligibility::finding;
use crate::objects::ObjectMeta;
use crate::transparent::{
    ADOPT_ANNOTATION, AdoptMode, BALANCE_ANNOTATION, CLIENT_ADDRESS_ANNOTATION,
    FORWARDED_FOR_ANNOTATION, PREFER_LOCAL_ANNOTATION, TransparentFinding,
};

/// The field path of the annotation that turns transparent mode on.
pub(super) const BALANCE_FIELD: &str = "metadata.annotations.sheave.dev/balance";

/// The value that takes the Service.
const REQUESTS: &str = "requests";
/// The value that leaves the Service alone, whatever its Namespace says.
const NONE: &str = "none";

/// The annotations of a Service that is to be taken, with every default filled in.
#[derive(Default)]
pub(super) struct ServiceAnnotations {
    /// True if the annotation is the Namespace's, not the Service's own.
    pub(super) of_namespace: bool,
    pub(super) adopt: AdoptMode,
    /// True if endpoints see the node's address instead of the client's.
    pub(super) hides_clients: bool,
    pub(super) prefers_local: bool,
    /// True if requests name the client in `X-Forwarded-For`.
    pub(super) appends_forwarded_for: bool,
    /// Values that are not known: the field, and the message.
    pub(super) faults: Vec<(String, String)>,
}

impl ServiceAnnotations {
    /// Reads the annotations. Returns `None` if the Service is to be left alone.
    pub(super) fn read(service: &ObjectMeta, namespace: Option<&ObjectMeta>) -> Option<Self> {
        let own = balance(service);
        let inherited = namespace.and_then(balance).filter(|value| *value == REQUESTS);
        let value = own.or(inherited).filter(|value| *value != NONE)?;
        let mut read = Self {
            of_namespace: own.is_none(),
            adopt: AdoptMode::New,
            hides_clients: false,
            prefers_local: false,
            appends_forwarded_for: false,
            faults: Vec::new(),
        };
        read.faults.extend(unknown(BALANCE_ANNOTATION, value, [REQUESTS, NONE]));
        let reset = read.is_second(service, ADOPT_ANNOTATION, ["new", "reset"]);
        read.adopt = if reset { AdoptMode::Reset } else { AdoptMode::New };
        read.hides_clients = read.is_second(service, CLIENT_ADDRESS_ANNOTATION, ["keep", "node"]);
        read.prefers_local = read.is_second(service, PREFER_LOCAL_ANNOTATION, ["false", "true"]);
        read.appends_forwarded_for =
            read.is_second(service, FORWARDED_FOR_ANNOTATION, ["keep", "append"]);
        Some(read)
    }

    /// True if an annotation has the second of its values. The first is the default.
    fn is_second(&mut self, service: &ObjectMeta, name: &str, values: [&str; 2]) -> bool {
        let Some(value) = service.annotations.get(name) else { return false };
        self.faults.extend(unknown(name, value, values));
        value == values[1]
    }

    /// Returns why the Service is not taken: a value is not known.
    pub(super) fn fault(&self) -> Option<TransparentFinding> {
        let (field, message) = self.faults.first()?;
        let name = field.trim_start_matches("metadata.annotations.");
        Some(finding("UnknownValue", format!("the annotation {name} {message}")))
    }
}

/// Returns the error in the annotation of a Namespace.
pub(super) fn namespace_fault(namespace: &ObjectMeta) -> Option<String> {
    unknown(BALANCE_ANNOTATION, balance(namespace)?, [REQUESTS, NONE]).map(|(_, message)| message)
}

fn balance(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.get(BALANCE_ANNOTATION).map(String::as_str)
}

fn unknown(name: &str, value: &str, known: [&str; 2]) -> Option<(String, String)> {
    let [first, second] = known;
    let message = format!("must be {first} or {second}, is {value:?}");
    (!known.contains(&value)).then(|| (format!("metadata.annotations.{name}"), message))
}
