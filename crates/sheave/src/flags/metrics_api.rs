//! Flags of the API of metrics for autoscalers.

use clap::Args;

use super::values::AdminAddress;
use crate::metrics_api::ApiGroup;

const METRICS_API: &str = "Metrics API";

/// Flags of the API of metrics for autoscalers.
#[derive(Debug, Args)]
pub(crate) struct MetricsApiFlags {
    /// Address of the API of metrics (HTTPS), or `off`; port 0 takes any free port.
    ///
    /// HorizontalPodAutoscalers read the demand on a Service from it, and rates of Services and routes, without KEDA and
    /// without Prometheus. The API server forwards their requests; no other client is served.
    #[arg(long, value_name = "ADDR", default_value = "off", help_heading = METRICS_API)]
    pub(crate) metrics_api: AdminAddress,

    /// APIs to serve, separated by commas: external.metrics.k8s.io (`external`), custom.metrics.k8s.io (`custom`).
    ///
    /// The APIService of each must refer to --metrics-api-service: a cluster has one provider of each API.
    #[arg(long, value_name = "API", value_enum, value_delimiter = ',', default_value = "external", help_heading = METRICS_API)]
    pub(crate) metrics_api_groups: Vec<ApiGroup>,

    /// Service in --namespace through which the API server connects to --metrics-api.
    #[arg(long, value_name = "NAME", requires = "kubernetes", default_value = "sheave-metrics-api", help_heading = METRICS_API)]
    pub(crate) metrics_api_service: String,

    /// Secret in --namespace with the authorities that issue the certificate of the API; Sheave creates it, replaces the
    /// authorities every two months, and writes their certificates into the APIServices.
    #[arg(long, value_name = "NAME", requires = "kubernetes", default_value = "sheave-metrics-api", help_heading = METRICS_API)]
    pub(crate) metrics_api_secret: String,
}
