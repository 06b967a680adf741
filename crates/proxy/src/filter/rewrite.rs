//! URL rewrite filter: host and path that the endpoint gets in place of the client's.

use codec::head::RequestHead;
use gateway::snapshot::RewriteAction;

/// Rewrites host and path; the query is kept. The target `*` is not a path, and is kept as well.
pub(super) fn apply(rewrite: &RewriteAction, request: &mut RequestHead) {
    if let Some(hostname) = &rewrite.hostname {
        request.set_sent_authority(hostname.as_bytes());
    }
    let (path, query) = request.target().split_at(request.path().len());
    if let Some(rewrite) = &rewrite.path
        && path.starts_with(b"/")
    {
        let mut target = Vec::with_capacity(request.target().len());
        rewrite.write(path, &mut target);
        target.extend_from_slice(query);
        request.set_sent_target(&target);
    }
}
