//! Annotations of Ingresses, as equivalent settings.

/// Values of annotations.
mod value;
/// Load balancing, affinity, limits and timeouts.
mod backend;
/// Redirects.
mod redirect;
/// Changes to the request that an endpoint gets.
mod rewrite;

use super::super::report::TranslationReport;
use super::dialect::{AnnotationDialect, AnnotationKey};
use crate::objects::{BackendPolicySpec, IngressSpec, TypedObject};

pub(super) use backend::BackendAnnotation;
use backend::BackendAnnotations;
pub(super) use redirect::{IngressRedirects, RedirectAnnotation};
pub(super) use rewrite::{IngressRewrite, RewriteAnnotation, RewriteTarget};

/// The field path of every problem in annotations.
pub(super) const FIELD: &str = "metadata.annotations";

/// Settings from the annotations of an Ingress.
pub(super) struct AnnotationSettings {
    /// The BackendPolicy of its Services, as far as annotations set it; its targets are not known yet.
    pub(super) policy: BackendPolicySpec,
    /// Changes to requests.
    pub(super) rewrite: IngressRewrite,
    /// The redirects.
    pub(super) redirects: IngressRedirects,
    /// True if an unsupported annotation restricts access, so that all requests are denied.
    pub(super) denies_all: bool,
}

/// Settings while annotations are read.
#[derive(Default)]
struct AnnotationReader {
    backend: BackendAnnotations,
    rewrite: IngressRewrite,
    redirects: IngressRedirects,
    denies_all: bool,
}

/// Returns all settings of an Ingress. Annotations that are not understood are reported by name.
pub(super) fn annotation_settings(
    ingress: &TypedObject<IngressSpec>,
    report: &mut TranslationReport,
) -> AnnotationSettings {
    let mut reader = AnnotationReader::default();
    for (annotation, value) in &ingress.metadata.annotations {
        let Some((dialect, name)) = AnnotationDialect::find(annotation) else { continue };
        let result = match dialect.setting(name) {
            Some(setting) => reader.add(dialect, setting, value.trim()),
            None => Err("is not supported and is ignored".to_owned()),
        };
        if let Err(message) = result {
            report.problem("Ingress", ingress, FIELD, format!("{annotation} {message}"));
        }
    }
    let AnnotationReader { backend, rewrite, redirects, denies_all } = reader;
    AnnotationSettings { policy: backend.into_policy(), rewrite, redirects, denies_all }
}

impl AnnotationSettings {
    /// True if annotations set anything in the BackendPolicy.
    pub(super) fn has_policy(&self) -> bool {
        self.policy != BackendPolicySpec::for_targets(Vec::new())
    }
}

impl AnnotationReader {
    fn add(
        &mut self,
        dialect: AnnotationDialect,
        setting: AnnotationKey,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            AnnotationKey::Backend(setting) => self.backend.add(dialect, setting, value),
            AnnotationKey::Redirect(setting) => self.redirects.add(setting, value),
            AnnotationKey::Rewrite(setting) => self.rewrite.add(dialect, setting, value),
            AnnotationKey::NoEffect => Ok(()),
            AnnotationKey::Only(values, _) if values.contains(&value) => Ok(()),
            AnnotationKey::Only(_, message) => Err(message.to_owned()),
            AnnotationKey::AccessControl => {
                self.denies_all = true;
                let message = "is not supported and restricts access: all requests are \
                               answered with 500";
                Err(message.to_owned())
            }
        }
    }
}
