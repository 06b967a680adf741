//! What others say that HTTP/2 and gRPC are: their programs against the binary. `make conformance` builds and runs them.

/// The programs, and how they are run.
mod tools;
/// h2spec: RFC 9113 and RFC 7541, test by test.
mod h2spec;
/// grpc-go's client of the interop suite, through Sheave to its server.
mod interop;
