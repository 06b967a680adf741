//! Third-party programs for TLS, HTTP/2, HTTP/3, WebSocket and gRPC against the binary. `make conformance`
//! downloads and runs them.

/// The programs, and how to run them.
mod tools;
/// testssl.sh and sslyze on an HTTPS listener with default settings.
mod scanners;
/// h2spec: RFC 9113 and RFC 7541, test by test.
mod h2spec;
/// gRPC's interop clients in Go, Java, Python and for Node.js, through Sheave to grpc-go's server.
mod interop;
/// gRPC clients in Go, Java, Python and for Node.js that balance each call themselves, by Sheave's xDS server.
mod proxyless;
/// Envoy as a client of the same server, for HTTP.
mod envoy;
/// Prometheus' own check of metrics, alerts and the Grafana board.
mod prometheus;
/// An authorizer of Envoy's protocol, with grpc-go.
mod authorizer;
/// OpenTelemetry's Collector, which gets traces.
mod collector;
/// wsproto as both ends of WebSockets: Autobahn's list of cases between every pair of HTTP versions.
mod websocket;
/// Sheave with HTTP/3 in front of an endpoint, for third-party clients.
mod http3;
/// curl: HTTP/3 at once, and discovered by `Alt-Svc`.
mod curl;
/// Chromium, which reports the protocol of each of its requests.
mod browser;
/// The dashboard in Chromium.
mod dashboard;
/// Chromium, which signs in through oauth2-proxy.
mod sign_in;
/// aioquic and Niquests, in the versions of the article and in current versions.
mod python;
/// Hypercorn and nginx as HTTP/3 endpoints.
mod endpoints;
/// Annotations of ingress-nginx, with nginx as it would configure it.
mod ingress_nginx;
/// quic-go, aioquic, s2n-quic and quiche in the cases of quic-interop-runner.
mod quic;
