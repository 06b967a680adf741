//! Names of the objects that can hold certificates.

use std::fmt;

use crate::objects::RevocationListKind;

/// The name of a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateObject {
    /// Its kind.
    pub kind: CertificateObjectKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A kind of object that can hold certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateObjectKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl fmt::Display for CertificateObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl CertificateObject {
    /// Returns the name of an object of this kind, which is `Secret` or `ConfigMap`.
    pub(crate) fn new(kind: &str, namespace: &str, name: &str) -> Self {
        let kind = match kind {
            "Secret" => CertificateObjectKind::Secret,
            _ => CertificateObjectKind::ConfigMap,
        };
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the name of an object with revocation lists.
    pub(crate) fn of_list(kind: RevocationListKind, namespace: &str, name: &str) -> Self {
        let kind = match kind {
            RevocationListKind::ConfigMap => CertificateObjectKind::ConfigMap,
            RevocationListKind::Secret => CertificateObjectKind::Secret,
        };
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}
