//! Cost of endpoints that die, fall silent or fail, without any policy.

/// Sheave in front of endpoints that can be killed.
mod outage_helpers;
/// Clients that send requests until they are stopped.
mod load;
/// HTTP/1.1 endpoints that die under load.
mod deaths;
/// The same for other protocols, on either side.
mod protocols;
/// Connections that die while a request is on its way to them.
mod races;
/// TCP connections and UDP flows.
mod flows;
/// Requests bound to an endpoint by session affinity or a hash key.
mod affinity;
/// Outages of all endpoints of a backend at once.
mod outages;
/// Endpoints that return at the same address.
mod returns;
/// Silent endpoints: their packets are lost.
mod silence;
/// Endpoints that answer errors faster than others answer.
mod errors;
