//! What is wrong with an object, and where: the one shape of every message about input.

use std::fmt;
use std::sync::Arc;

/// Where an object was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectOrigin {
    /// The file, or what else the source calls it.
    pub file: Arc<str>,
    /// The document in the file, counted from 1; 0: the file as a whole.
    pub document: usize,
}

/// `Kind namespace/name`, or `Kind name` for the kinds that are in no namespace.
pub(crate) fn label(kind: &str, namespace: &str, name: &str) -> String {
    if ["GatewayClass", "IngressClass", "Namespace"].contains(&kind) {
        format!("{kind} {name}")
    } else {
        format!("{kind} {namespace}/{name}")
    }
}

/// Something wrong with an object, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectProblem {
    /// Where the object was written.
    pub origin: ObjectOrigin,
    /// `Kind namespace/name`, as far as they are known.
    pub object: String,
    /// The path of the field, as in `spec.rules[0].matches[0].path.value`; empty: the whole object.
    pub field: String,
    /// What is wrong, and what to do where that is not plain.
    pub message: String,
}

/// One line: `file: document 2: HTTPRoute default/web: spec.rules[0]: message`.
impl fmt::Display for ObjectProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin.file)?;
        if self.origin.document > 0 {
            write!(f, "document {}: ", self.origin.document)?;
        }
        for part in [&self.object, &self.field] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.message)
    }
}
