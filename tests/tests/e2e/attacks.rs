//! Attacks with a known name or CVE. Sheave bounds or ends each at a small cost and counts it, and
//! serves other clients meanwhile.

/// Sheave under attack, and a well-behaved client.
mod target;
/// Floods: clients that send too much.
mod floods;
/// Slow attacks: clients that send too little.
mod slow;
/// Handshake floods.
mod handshakes;
/// Attacks on the admin API, and on the log.
mod process;
