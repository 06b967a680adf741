//! The task that keeps the APIs served: the certificate, the authorities of the API server's proxy, and the APIServices
//! that let the API server trust the certificate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::{ClusterClient, FrontProxySettings};
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::sleep;

use super::api_group::ApiGroup;
use super::tls_listener;
use crate::authority::{AuthorityPurpose, CertificateRecipient, IssuedCertificate};

/// Interval at which everything is looked at anew, and the interval after a failure.
const REVIEW_INTERVAL: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Certificate of the API, with the authorities that the API server is to trust, in PEM.
#[derive(Clone)]
pub(super) struct ServingCertificate {
    chain: Arc<str>,
    key: Arc<str>,
    bundle: Arc<str>,
}

/// Takes certificates from their authority.
pub(super) struct ServingCertificates(pub(super) watch::Sender<Option<ServingCertificate>>);

/// Service of the API.
#[derive(Clone, Debug)]
pub(super) struct ApiService {
    pub(super) namespace: String,
    pub(super) name: String,
    /// APIs that it serves.
    pub(super) groups: Vec<ApiGroup>,
}

impl ApiService {
    /// Returns the purpose of the authorities of its certificates.
    pub(super) fn purpose(&self) -> Arc<AuthorityPurpose> {
        Arc::new(AuthorityPurpose {
            secret_type: "sheave.dev/metrics-api-authorities",
            prefix: "sheave-metrics-api",
            // The name that the API server verifies.
            dns_name: format!("{}.{}.svc", self.name, self.namespace),
            has_clients: false,
        })
    }
}

impl CertificateRecipient for ServingCertificates {
    fn accept(&mut self, issued: &IssuedCertificate, _now: u64) -> anyhow::Result<()> {
        let [chain, key, bundle] =
            [&issued.chain, &issued.key, &issued.bundle].map(|pem| pem.as_str().into());
        self.0.send_replace(Some(ServingCertificate { chain, key, bundle }));
        Ok(())
    }

    /// The task of the authorities has logged it already.
    fn report(&mut self, _problem: Option<String>) {}
}

/// State that is kept up to date.
pub(super) struct ApiUpkeep {
    pub(super) client: ClusterClient,
    pub(super) service: ApiService,
    pub(super) certificates: watch::Receiver<Option<ServingCertificate>>,
    pub(super) settings: watch::Sender<Option<Arc<FrontProxySettings>>>,
    pub(super) configs: watch::Sender<Option<Arc<ServerConfig>>>,
}

impl ApiUpkeep {
    /// Runs for ever.
    pub(super) async fn run(mut self) {
        let mut logged = BTreeMap::new();
        loop {
            let certificate = self.certificates.borrow_and_update().clone();
            let mut has_problem = false;
            if let Some(certificate) = &certificate {
                for (group, problem) in self.review(certificate).await {
                    has_problem |= problem.is_some();
                    if logged.get(&group) != Some(&problem) {
                        log(group, problem.as_deref());
                        logged.insert(group, problem);
                    }
                }
            }
            let pause = if has_problem { RETRY_INTERVAL } else { REVIEW_INTERVAL };
            tokio::select! {
                changed = self.certificates.changed() => match changed {
                    Ok(()) => {}
                    Err(_) => return,
                },
                () = sleep(pause) => {}
            }
        }
    }

    /// Returns each API with the reason why it is not served, if there is one.
    async fn review(&self, certificate: &ServingCertificate) -> Vec<(ApiGroup, Option<String>)> {
        let mut reviewed = Vec::new();
        let prepared = self.prepare(certificate).await;
        for &group in &self.service.groups {
            let problem = match &prepared {
                Ok(()) => self.register(group, certificate).await.err(),
                Err(error) => Some(format!("{error:#}")),
            };
            reviewed.push((group, problem));
        }
        reviewed
    }

    async fn prepare(&self, certificate: &ServingCertificate) -> anyhow::Result<()> {
        let settings = Arc::new(self.client.front_proxy_settings().await?);
        let config =
            tls_listener::config(&certificate.chain, &certificate.key, &settings.authorities)?;
        self.settings.send_replace(Some(settings));
        self.configs.send_replace(Some(config));
        Ok(())
    }

    async fn register(
        &self,
        group: ApiGroup,
        certificate: &ServingCertificate,
    ) -> Result<(), String> {
        let ApiService { namespace, name, .. } = &self.service;
        let (api_service, bundle) = (group.api_service(), &certificate.bundle);
        let registered = self.client.register_api(&api_service, namespace, name, bundle);
        registered.await.map_err(|error| error.to_string())
    }
}

fn log(group: ApiGroup, problem: Option<&str>) {
    let api = group.name();
    match problem {
        Some(error) => tracing::error!(api, error, "autoscalers cannot read metrics"),
        None => tracing::info!(api, "autoscalers can read metrics"),
    }
}
