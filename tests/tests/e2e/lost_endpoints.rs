//! Endpoints that die, fall silent or fail: what that costs requests, without any policy.

/// Sheave in front of endpoints that can be killed.
mod outage_helpers;
/// Clients that send requests until they are told to stop.
mod load;
/// Endpoints of HTTP/1.1 that die under load.
mod deaths;
/// The same for other protocols, on either side.
mod protocols;
/// Connections that die while a request is on its way to them.
mod races;
/// TCP connections and UDP flows.
mod flows;
/// Requests that are bound to an endpoint.
mod affinity;
/// All endpoints of a backend at once.
mod outages;
/// Endpoints that return.
mod returns;
/// Endpoints whose packets vanish.
mod silence;
/// Endpoints that answer errors sooner than others answer.
mod errors;
