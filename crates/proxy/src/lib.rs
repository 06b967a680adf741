//! The data plane: sockets, HTTP/1.1, connection pools, the life of a request.

/// The head of a message, for every protocol.
pub mod head;
/// HTTP/1.1: bytes to heads and chunks, and back.
pub mod h1;
