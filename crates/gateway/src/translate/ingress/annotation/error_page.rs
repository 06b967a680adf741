//! Error pages, and the Service that is asked for them.
//!
//! ingress-nginx: `error_page CODE = @custom`, with a location that asks the default backend.

use super::super::super::index::ObjectIndex;
use super::value::parse_bool;
use crate::objects::{BackendObjectRef, ErrorPage, StatusRange};

/// Largest number of statuses.
const MAX_STATUSES: usize = 32;

/// An annotation about error pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum ErrorPageAnnotation {
    /// The statuses that get a page.
    Statuses,
    /// True if the responses of endpoints get no page.
    Disabled,
    /// The Service that has the pages, and gets the requests of Services without endpoints.
    Service,
}

/// Error pages while annotations are read.
#[derive(Default)]
pub(super) struct ErrorPageAnnotations {
    statuses: Vec<StatusRange>,
    service: Option<String>,
    is_disabled: bool,
}

impl ErrorPageAnnotations {
    pub(super) fn add(&mut self, setting: ErrorPageAnnotation, value: &str) -> Result<(), String> {
        match setting {
            _ if value.is_empty() => {}
            ErrorPageAnnotation::Disabled => self.is_disabled = parse_bool(value)?,
            ErrorPageAnnotation::Service => self.service = Some(value.to_owned()),
            ErrorPageAnnotation::Statuses => {
                let statuses = value.split(',').map(|it| status(it.trim()));
                let statuses: Vec<_> = statuses.collect::<Result<_, _>>()?;
                if statuses.len() > MAX_STATUSES {
                    return Err(format!("has more than {MAX_STATUSES} statuses"));
                }
                self.statuses = statuses;
            }
        }
        Ok(())
    }

    /// Returns the page of an Ingress in this namespace, and the fault of an annotation with its name.
    pub(super) fn into_page(
        mut self,
        index: &ObjectIndex<'_>,
        namespace: &str,
    ) -> Result<Option<ErrorPage>, String> {
        if self.is_disabled {
            self.statuses.clear();
        }
        let Some(name) = self.service else {
            if self.statuses.is_empty() {
                return Ok(None);
            }
            return Err(
                "custom-http-errors has no effect without default-backend: clients get the \
                        responses of endpoints"
                    .to_owned(),
            );
        };
        let service = index.services.get(&(namespace, &*name));
        let port = service.and_then(|it| it.spec.ports.first()).map(|it| it.port);
        // As in ingress-nginx, the first port of the Service.
        let Some(port) = port else {
            return Err(format!(
                "default-backend must be a Service of the Ingress's namespace with a port, is {name}: clients get the \
                 responses of endpoints"
            ));
        };
        Ok(Some(ErrorPage {
            statuses: self.statuses,
            no_endpoint: true,
            body: None,
            body_ref: None,
            content_type: "text/html".to_owned(),
            backend_ref: Some(BackendObjectRef {
                group: None,
                kind: None,
                namespace: None,
                name,
                port: Some(port),
            }),
            response_status: None,
            is_of_ingress: true,
        }))
    }
}

fn status(text: &str) -> Result<StatusRange, String> {
    let status = StatusRange::parse(text).filter(|it| it.0.start() == it.0.end());
    status.ok_or_else(|| format!("must have statuses from 400 to 599, has {text}"))
}
