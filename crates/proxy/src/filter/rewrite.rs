//! URL rewrite filter: host and path that the endpoint gets in place of the client's.

use codec::head::RequestHead;
use gateway::snapshot::RewriteAction;

/// Rewrites host and path; the query is kept. The target `*` is not a path, and is kept as well. If `keeps_path` is true,
/// only the host is rewritten.
pub(super) fn apply(rewrite: &RewriteAction, keeps_path: bool, request: &mut RequestHead) {
    if let Some(hostname) = &rewrite.hostname {
        request.set_sent_authority(hostname.as_bytes());
    }
    let path = request.path();
    // A check of keys may have removed one from the query.
    let query = request.sent_target().iter().position(|byte| *byte == b'?');
    let query = query.map_or(&b""[..], |start| &request.sent_target()[start..]);
    if let Some(rewrite) = &rewrite.path
        && path.starts_with(b"/")
        && !keeps_path
    {
        let mut target = Vec::with_capacity(request.target().len());
        rewrite.write(path, &mut target);
        target.extend_from_slice(query);
        request.set_sent_target(&target);
    }
}
