//! Parsing and writing of messages: bytes to messages, and messages to bytes.
//!
//! Decides if bytes are a valid message, and what that message means. Pure: no I/O, no clock, no runtime. This crate must
//! not know where bytes come from or go to: no socket, no listener, no backend.

// Bytes of strangers must not end the process: see docs/internals/panics.md.
#![warn(clippy::expect_used, clippy::indexing_slicing, clippy::string_slice)]
#![warn(clippy::panic, clippy::unreachable, clippy::unimplemented)]

/// The protocol of a connection, by its first bytes.
pub mod first_bytes;
/// The head of a message, for every protocol.
pub mod head;
/// Normal form of request paths.
pub mod path;
/// HTTP/1.1: bytes to heads and chunks, and back.
pub mod h1;
/// Message heads in the form that HTTP/2 and HTTP/3 share.
pub mod binary;
/// HTTP/2: heads, on top of the types of `http`, and frame boundaries.
pub mod h2;
/// HTTP/3: frames, field sections, heads.
pub mod h3;
/// The PROXY protocol: the client address that a proxy before us announces.
pub mod proxy_protocol;
/// gRPC: status, timeouts, gRPC-Web, messages of the health check and of external authorization.
pub mod grpc;
/// Load reports of endpoints, sent with responses (ORCA).
pub mod orca;
/// Words of eight bytes.
mod word;
