//! What others say that HTTP/2, HTTP/3 and gRPC are: their programs against the binary. `make conformance` gets and runs
//! them.

/// The programs, and how they are run.
mod tools;
/// h2spec: RFC 9113 and RFC 7541, test by test.
mod h2spec;
/// grpc-go's client of the interop suite, through Sheave to its server.
mod interop;
/// Sheave before an endpoint, with HTTP/3, for programs that come by it.
mod http3;
/// curl: by HTTP/3 at once, and by `Alt-Svc`.
mod curl;
/// Chromium, which tells by what each of its requests went.
mod browser;
/// aioquic and Niquests, in the versions of the article and in today's.
mod python;
/// Hypercorn and nginx as endpoints that are spoken to by HTTP/3.
mod endpoints;
