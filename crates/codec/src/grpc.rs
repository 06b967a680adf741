//! gRPC: the parts of a call that are written in fields and messages.
//!
//! What a status says about an endpoint, and when a call ends, is decided elsewhere.

/// Status codes.
mod code;
/// Timeouts of clients.
pub mod timeout;
/// gRPC-Web.
pub mod web;
/// Messages of the health check.
pub mod message;
/// Messages of external authorization.
pub mod authorization;

pub use code::{GrpcCallStatus, GrpcCode, RetryPushback};
