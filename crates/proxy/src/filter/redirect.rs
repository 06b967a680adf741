//! Redirect filter.

use codec::h1::BadRequest;
use codec::head::{RequestHead, ResponseHead};
use gateway::snapshot::{RedirectAction, RequestUrl, UrlScheme};

use crate::failure::Failure;

/// Builds the head of the redirect for a request that arrived by `scheme` at the listener's `port`.
pub(super) fn answer(
    redirect: &RedirectAction,
    request: &RequestHead,
    scheme: UrlScheme,
    port: u16,
    response: &mut ResponseHead,
) -> Result<(), Failure> {
    // HTTP/1.0 allows a request without a host, and then there is no location to redirect to.
    if request.host().is_empty() && redirect.hostname.is_none() {
        return Err(Failure::BadRequest(BadRequest::HostMissing));
    }
    let (path, query) = request.target().split_at(request.path().len());
    // `*` denotes the whole server and has no path.
    let path = if path.starts_with(b"/") { path } else { b"/" };
    let asked = RequestUrl { scheme, host: request.host(), port, path, query };
    let mut location = Vec::new();
    redirect.location(&asked, &mut location);
    response.status = redirect.status;
    response.fields.append("Location", location);
    Ok(())
}
