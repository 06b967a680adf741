//! Filters of derived routes.

use super::annotation::MirrorService;
use crate::objects::{
    BackendObjectRef, CorsFilter, HeaderModifier, HttpFilter, HttpFilterType, PathModifier,
    RequestMirror, RequestRedirect, UrlRewrite,
};

/// Returns a redirect as a filter.
pub(super) fn redirect(redirect: RequestRedirect) -> HttpFilter {
    let request_redirect = Some(redirect);
    HttpFilter { request_redirect, ..empty(HttpFilterType::RequestRedirect) }
}

/// Returns a filter that changes the host and path of requests, if it changes anything.
pub(super) fn rewrite(hostname: Option<String>, path: Option<PathModifier>) -> Option<HttpFilter> {
    let is_change = hostname.is_some() || path.is_some();
    let url_rewrite = Some(UrlRewrite { hostname, path });
    is_change.then(|| HttpFilter { url_rewrite, ..empty(HttpFilterType::UrlRewrite) })
}

/// Returns a filter for cross-origin requests.
pub(super) fn cors(cors: CorsFilter) -> HttpFilter {
    HttpFilter { cors: Some(cors), ..empty(HttpFilterType::Cors) }
}

/// Returns a filter that changes the fields of requests, if it changes any.
pub(super) fn request_headers(edits: HeaderModifier) -> Option<HttpFilter> {
    let is_change = edits != HeaderModifier::default();
    let request_header_modifier = Some(edits);
    is_change.then(|| HttpFilter {
        request_header_modifier,
        ..empty(HttpFilterType::RequestHeaderModifier)
    })
}

/// Returns a filter that changes the fields of responses, if it changes any.
pub(super) fn response_headers(edits: HeaderModifier) -> Option<HttpFilter> {
    let is_change = edits != HeaderModifier::default();
    let response_header_modifier = Some(edits);
    is_change.then(|| HttpFilter {
        response_header_modifier,
        ..empty(HttpFilterType::ResponseHeaderModifier)
    })
}

/// Returns a filter that copies requests to a Service of the namespace of the route.
pub(super) fn mirror(service: &MirrorService) -> HttpFilter {
    let backend_ref = BackendObjectRef {
        group: None,
        kind: None,
        namespace: None,
        name: service.name.clone(),
        port: Some(service.port),
    };
    let request_mirror = Some(RequestMirror { backend_ref, percent: None, fraction: None });
    HttpFilter { request_mirror, ..empty(HttpFilterType::RequestMirror) }
}

fn empty(kind: HttpFilterType) -> HttpFilter {
    HttpFilter {
        kind,
        request_header_modifier: None,
        response_header_modifier: None,
        request_mirror: None,
        request_redirect: None,
        url_rewrite: None,
        cors: None,
        extension_ref: None,
        external_auth: None,
    }
}
