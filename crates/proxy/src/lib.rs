//! The data plane: sockets, HTTP/1.1, connection pools, the life of a request.
