//! HTTPRoute features beyond plain forwarding, over real sockets.

/// One route in front of some Services.
mod fixture;
/// Rule matching and its precedence.
mod matching;
/// Header modifier filters.
mod filters;
/// Redirects.
mod redirect;
/// Rewrites of host and path.
mod rewrite;
/// CORS: permissions of scripts from other origins.
mod cors;
/// Request mirroring.
mod mirror;
/// Session affinity and hash keys.
mod affinity;
/// Session persistence and retry budgets of Gateway API.
mod session_persistence;
