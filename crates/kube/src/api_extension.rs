//! Questions of an extension API server to the API server: how its proxy authenticates, what a user may do, and that requests
//! for a group are sent here.
//!
//! Source: Kubernetes' aggregation layer, "Configure the Aggregation Layer".

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube_client::api::{Patch, PatchParams, PostParams};
use kube_client::{Api, Error};
use serde_json::json;
use thiserror::Error;
use tokio::time::timeout;

use crate::ClusterClient;

/// Settings of the proxy in the API server.
mod front_proxy;

pub use front_proxy::FrontProxySettings;

/// Namespace and name of the ConfigMap with the settings of the API server's proxy.
const AUTHENTICATION_NAMESPACE: &str = "kube-system";
const AUTHENTICATION_CONFIG_MAP: &str = "extension-apiserver-authentication";

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Field manager of the bundle.
const FIELD_MANAGER: &str = "sheave";

/// Reason why the API server gives no answer that can be used.
#[derive(Debug, Error)]
pub enum ApiExtensionError {
    /// The API server has rejected the request, or cannot be reached.
    #[error("{0}")]
    Api(#[from] Box<Error>),
    /// There is no answer.
    #[error("the API server does not answer")]
    Timeout,
    /// The ConfigMap lacks a value, or it cannot be read.
    #[error(
        "ConfigMap {AUTHENTICATION_NAMESPACE}/{AUTHENTICATION_CONFIG_MAP}: {0}: the API server has to run with \
         --requestheader-client-ca-file"
    )]
    Settings(&'static str),
    /// The group has no APIService.
    #[error(
        "APIService {0} does not exist: the chart creates it with metricsApi.enabled and metricsApi.groups"
    )]
    Unregistered(String),
    /// The group belongs to another Service.
    #[error(
        "APIService {name} belongs to {owner}: a cluster has one provider of it; uninstall the other one, or leave \
         the API out of metricsApi.groups"
    )]
    Foreign {
        /// Name of the APIService.
        name: String,
        /// Service that has it, as `Service namespace/name`.
        owner: String,
    },
}

/// User that the API server has authenticated.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiUser {
    /// Name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further attributes, by name.
    pub extra: Vec<(String, Vec<String>)>,
}

/// Object of an access: a resource of an API group.
#[derive(Clone, Copy, Debug)]
pub struct AccessedResource<'a> {
    /// API group.
    pub group: &'a str,
    /// Resource; `*` is every one.
    pub resource: &'a str,
    /// Subresource.
    pub subresource: Option<&'a str>,
    /// Namespace; `None`: all of them.
    pub namespace: Option<&'a str>,
    /// Verb.
    pub verb: &'a str,
}

impl ClusterClient {
    /// Reads how the proxy in the API server authenticates.
    ///
    /// # Errors
    /// If the ConfigMap cannot be read, or lacks a value.
    pub async fn front_proxy_settings(&self) -> Result<FrontProxySettings, ApiExtensionError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), AUTHENTICATION_NAMESPACE);
        let found = answer(api.get(AUTHENTICATION_CONFIG_MAP)).await?;
        let data = found.data.unwrap_or_default();
        FrontProxySettings::read(&data).map_err(ApiExtensionError::Settings)
    }

    /// True if the user may access the resource.
    ///
    /// # Errors
    /// If the API server does not tell.
    pub async fn may_access(
        &self,
        user: &ApiUser,
        resource: AccessedResource<'_>,
    ) -> Result<bool, ApiExtensionError> {
        let attributes = ResourceAttributes {
            group: Some(resource.group.to_owned()),
            resource: Some(resource.resource.to_owned()),
            subresource: resource.subresource.map(str::to_owned),
            namespace: resource.namespace.map(str::to_owned),
            verb: Some(resource.verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.iter().cloned().collect()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let reviewed = answer(api.create(&PostParams::default(), &review)).await?;
        Ok(reviewed.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }

    /// Lets the API server trust these certificates, in PEM, of the Service that has the APIService.
    ///
    /// # Errors
    /// If there is no such APIService, another Service has it, or it cannot be written.
    pub async fn register_api(
        &self,
        api_service: &str,
        namespace: &str,
        service: &str,
        bundle: &str,
    ) -> Result<(), ApiExtensionError> {
        let api: Api<APIService> = Api::all(self.client.clone());
        let Some(found) = answer(api.get_opt(api_service)).await? else {
            return Err(ApiExtensionError::Unregistered(api_service.to_owned()));
        };
        let spec = found.spec.unwrap_or_default();
        let owner = spec.service.unwrap_or_default();
        let is_own =
            owner.namespace.as_deref() == Some(namespace) && owner.name.as_deref() == Some(service);
        if !is_own {
            let owner = match (owner.namespace, owner.name) {
                (Some(namespace), Some(name)) => format!("Service {namespace}/{name}"),
                _ => "the API server itself".to_owned(),
            };
            return Err(ApiExtensionError::Foreign { name: api_service.to_owned(), owner });
        }
        if spec.ca_bundle.is_some_and(|held| held.0 == bundle.as_bytes()) {
            return Ok(());
        }
        // The version: if the APIService has got another owner meanwhile, nothing is written.
        let change = json!({
            "metadata": { "resourceVersion": found.metadata.resource_version },
            "spec": { "caBundle": k8s_openapi::ByteString(bundle.as_bytes().to_vec()) },
        });
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        answer(api.patch(api_service, &params, &Patch::Merge(change))).await?;
        Ok(())
    }
}

/// Returns the answer to a request within a time limit.
pub(crate) async fn answer<T>(
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, ApiExtensionError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answered) => answered.map_err(|error| Box::new(error).into()),
        Err(_) => Err(ApiExtensionError::Timeout),
    }
}

#[cfg(test)]
mod tests;
