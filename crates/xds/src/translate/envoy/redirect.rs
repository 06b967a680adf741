//! Redirects.

use gateway::snapshot::{PathRewrite, RedirectAction};

use super::action::replaced_prefix;
use crate::message::{RedirectResponse, RouteMatcher};

/// Returns the response of a redirect.
pub(super) fn response(redirect: &RedirectAction, matcher: &RouteMatcher) -> RedirectResponse {
    let mut response = RedirectResponse {
        host_redirect: redirect.hostname.as_deref().unwrap_or_default().to_owned(),
        response_code: response_code(redirect.status),
        scheme_redirect: redirect.scheme.map(|scheme| scheme.text().to_owned()),
        port_redirect: redirect.port.map(u32::from).unwrap_or_default(),
        ..RedirectResponse::default()
    };
    match &redirect.path {
        Some(PathRewrite::Full(path)) => response.path_redirect = Some(path.to_string()),
        Some(PathRewrite::Prefix { replacement, .. }) => {
            response.prefix_rewrite = Some(replaced_prefix(replacement, matcher));
        }
        None => {}
    }
    response
}

/// `RedirectResponseCode`.
fn response_code(status: u16) -> i32 {
    match status {
        302 => 1,
        303 => 2,
        307 => 3,
        308 => 4,
        _ => 0,
    }
}
