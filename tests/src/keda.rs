//! Client of Sheave's external scaler, by the same interface as KEDA's operator.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

/// Code generated from the .proto file.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
mod externalscaler;

use externalscaler::external_scaler_client::ExternalScalerClient;
use externalscaler::{GetMetricSpecResponse, GetMetricsRequest, IsActiveResponse, ScaledObjectRef};

use crate::SheaveProcess;
use crate::waiting::within;

/// Trigger of a ScaledObject in the namespace `default`, with a connection to the scaler.
#[derive(Clone)]
pub struct KedaClient {
    client: ExternalScalerClient<Channel>,
    reference: ScaledObjectRef,
}

/// Stream of activity updates.
pub struct ActivityStream(Streaming<IsActiveResponse>);

impl KedaClient {
    /// Connects, with this metadata in the trigger.
    pub async fn connect(sheave: &SheaveProcess, metadata: &[(&str, &str)]) -> Result<Self> {
        let address = sheave.scaler.context("started with --scaler")?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        let channel = within("the scaler", endpoint.connect()).await??;
        let client = ExternalScalerClient::new(channel);
        Ok(Self { client, reference: reference(address, metadata) })
    }

    pub async fn is_active(&mut self) -> Result<bool, Status> {
        let response = self.client.is_active(self.reference.clone()).await?;
        Ok(response.into_inner().result)
    }

    /// Returns the target load of one replica.
    pub async fn target(&mut self) -> Result<f64, Status> {
        let response = self.client.get_metric_spec(self.reference.clone()).await?;
        target(response.into_inner())
    }

    /// Returns the first target load of the stream.
    pub async fn streamed_target(&mut self) -> Result<f64, Status> {
        let mut specs = self.client.stream_metric_spec(self.reference.clone()).await?.into_inner();
        let spec = specs.message().await?;
        target(spec.unwrap_or_default())
    }

    pub async fn demand(&mut self) -> Result<f64, Status> {
        self.metric_value("demand").await
    }

    pub async fn metric_value(&mut self, metric: &str) -> Result<f64, Status> {
        let scaled_object_ref = Some(self.reference.clone());
        let request = GetMetricsRequest { scaled_object_ref, metric_name: metric.to_owned() };
        let response = self.client.get_metrics(request).await?.into_inner();
        match response.metric_values.as_slice() {
            [value] => Ok(value.metric_value_float),
            other => Err(Status::internal(format!("one value: {other:?}"))),
        }
    }

    pub async fn activity_stream(&mut self) -> Result<ActivityStream, Status> {
        Ok(ActivityStream(self.client.stream_is_active(self.reference.clone()).await?.into_inner()))
    }
}

impl ActivityStream {
    /// Returns the next update, or the status that ended the stream.
    pub async fn next(&mut self) -> Result<Result<bool, Status>> {
        let response = within("activity", self.0.message()).await?;
        let ended = || Status::new(Code::Ok, "ended without a status");
        Ok(response.and_then(|response| response.map(|it| it.result).ok_or_else(ended)))
    }
}

fn reference(address: SocketAddr, metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let scaler_address = ("scalerAddress".to_owned(), address.to_string());
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    ScaledObjectRef {
        name: "app".to_owned(),
        namespace: "default".to_owned(),
        scaler_metadata: metadata.chain([scaler_address]).collect(),
    }
}

fn target(response: GetMetricSpecResponse) -> Result<f64, Status> {
    match response.metric_specs.as_slice() {
        [spec] if spec.metric_name == "demand" => Ok(spec.target_size_float),
        other => Err(Status::internal(format!("one spec: {other:?}"))),
    }
}
