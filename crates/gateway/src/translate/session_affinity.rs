//! Session affinity of a Service (`sessionAffinity: ClientIP`), if Sheave serves the Service at its own address.

use balance::Algorithm;

use crate::objects::ServiceSpec;
use crate::snapshot::{AffinitySettings, BackendSettings, HashKey};

/// Changes the settings of a backend to the session affinity of its Service. That of a BackendPolicy has precedence.
pub(super) fn adjust(service: &ServiceSpec, settings: &mut BackendSettings) {
    if service.session_affinity.as_deref() != Some("ClientIP") || settings.affinity.is_some() {
        return;
    }
    settings.affinity = Some(AffinitySettings::Source);
    // Connections without requests have no other affinity than a key.
    if settings.algorithm == Algorithm::LeastLoad && settings.hash_key == HashKey::Source {
        settings.algorithm = Algorithm::ConsistentHash;
    }
}
