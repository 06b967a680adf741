//! Requests of health checks, which must not wake a Service that has no endpoint: they come forever, and are answered
//! by the fact that there is none.

use codec::head::RequestHead;

/// Prefixes of the `User-Agent` of health checks: of the kubelet, Google Cloud, AWS, Azure and Envoy.
const USER_AGENTS: [&[u8]; 6] = [
    b"kube-probe/",
    b"GoogleHC/",
    b"ELB-HealthChecker/",
    b"Edge Health Probe",
    b"Load Balancer Agent",
    b"Envoy/HC",
];

/// Service of gRPC's health checks.
const GRPC_HEALTH: &[u8] = b"/grpc.health.v1.Health/";

/// True if the request is a health check, as far as it says so.
pub(crate) fn is_health_check(request: &RequestHead) -> bool {
    let agent = request.fields.get("user-agent");
    agent.is_some_and(|agent| USER_AGENTS.iter().any(|prefix| agent.starts_with(prefix)))
        || request.path().starts_with(GRPC_HEALTH)
}
