//! What HTTPRoutes promise beyond leading somewhere, over real sockets.

/// One route in front of some Services.
mod fixture;
/// Which rule a request goes by.
mod matching;
/// What is changed in header fields.
mod filters;
/// Clients that are sent elsewhere.
mod redirect;
/// Endpoints that are asked for something else.
mod rewrite;
/// What scripts from elsewhere may do.
mod cors;
/// Somebody who listens along.
mod mirror;
/// Clients that stay with their endpoint.
mod affinity;
