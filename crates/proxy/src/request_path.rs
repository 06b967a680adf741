//! The form of a request's path that routes and endpoints see.

use codec::h1::BadRequest;
use codec::path::{PathRules, normalise};
use gateway::snapshot::PathSettings;

/// Returns the steps of the normalisation on a listener.
pub(crate) const fn path_rules(settings: PathSettings) -> PathRules {
    let PathSettings { normalise, merge_slashes, reject_escaped_slashes } = settings;
    PathRules { normalise, merge_slashes, reject_escaped_slashes }
}

/// Returns the path, which begins with `/`, as routes and endpoints see it on a listener with these settings; `None` if
/// that is how it is written.
///
/// # Errors
/// If the request would be answered with 400.
pub fn normal_path(path: &str, settings: PathSettings) -> Result<Option<String>, String> {
    let normal = normalise(path.as_bytes(), path_rules(settings));
    let normal = normal.map_err(|bad| BadRequest::from(bad).to_string())?;
    Ok(normal.map(|path| String::from_utf8_lossy(&path).into_owned()))
}
