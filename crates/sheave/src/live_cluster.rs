//! A cluster that is read once with the credentials of an operator: for `sheave check --cluster`, `sheave migrate
//! --cluster` and the kubectl plugin. It writes nothing.

use std::error::Error;

use anyhow::Context;
use gateway::{ObjectProblem, TranslationSettings};
use kube::{AccessError, ClusterClient, ClusterListing, OperatorCredentials};
use tokio::runtime::{Builder, Runtime};

use crate::check;
use crate::configuration::ErrorPolicy;
use crate::failure::Failure;
use crate::files::{self, SourceContents};
use crate::flags::{CheckFlags, ClusterAccessFlags};
use crate::terminal_text::escaped;

/// Kinds without which the other objects have no false error: policies that change how requests are served, and the
/// version of Gateway API.
const OPTIONAL_KINDS: [&str; 10] = [
    "CustomResourceDefinition",
    "XBackendTrafficPolicy",
    "BackendPolicy",
    "ClientPolicy",
    "RateLimitPolicy",
    "SecurityPolicy",
    "TrafficPolicy",
    "AddressPool",
    "BgpPeer",
    "NetworkPolicy",
];

/// Kinds that a migration reads.
const MIGRATED_KINDS: [&str; 3] = ["IngressClass", "Ingress", "Service"];

/// Connection to a cluster, with the thread that drives it.
pub(crate) struct LiveCluster {
    runtime: Runtime,
    pub(crate) client: ClusterClient,
    namespace: Option<String>,
}

/// Configuration of a cluster.
struct LiveConfiguration {
    contents: SourceContents,
    /// Sentences about kinds that could not be read, and that the check of the others does not need.
    omissions: Vec<String>,
}

impl LiveCluster {
    /// Takes the credentials. Sends no request yet.
    pub(crate) fn connect(flags: &ClusterAccessFlags) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the thread of the client")?;
        let credentials = OperatorCredentials {
            kubeconfig: flags.kubeconfig.clone(),
            context: flags.context.clone(),
        };
        let client = runtime.block_on(ClusterClient::connect_as(&credentials));
        let client = client.map_err(|error| {
            // The cause repeats its own causes.
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            Failure::input(format_args!("{error}{cause}"))
        })?;
        Ok(Self { runtime, client, namespace: flags.namespace.clone() })
    }

    /// Runs a future to its end.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Returns the namespace of the flags, or that of the credentials.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_else(|| self.client.namespace())
    }

    /// Reads everything that a configuration is made of.
    fn configuration(&self) -> Result<LiveConfiguration, Failure> {
        let settings = TranslationSettings { proxyless: true, ..TranslationSettings::default() };
        let listing =
            self.client.list_configuration(self.namespace.as_deref(), &settings.controllers);
        let listing = self.wait(listing).map_err(|error| access_failure(&error))?;
        let mut configuration = configuration_of(listing, settings)?;
        configuration.omissions.extend(self.namespace.as_ref().map(|namespace| {
            format!(
                "sheave: only namespace {namespace} was read: objects of others, such as Gateways, seem to be missing"
            )
        }));
        Ok(configuration)
    }

    /// Reads the Ingresses with their classes and Services.
    pub(crate) fn ingresses(&self) -> Result<SourceContents, Failure> {
        let listing = self.client.list_kinds(&MIGRATED_KINDS, self.namespace.as_deref());
        let listing = self.wait(listing).map_err(|error| access_failure(&error))?;
        if !listing.refused.is_empty() {
            let mut lines = missing_permissions(&listing);
            lines.push("sheave: a migration without them would be wrong".to_owned());
            return Err(Failure::Input(lines));
        }
        Ok(contents_of(listing, TranslationSettings::default()))
    }
}

/// Runs `sheave check`: of files, or of a cluster.
pub(crate) fn check(flags: &CheckFlags) -> Result<(), Failure> {
    if let Some(conflict) = flags.live.conflict(&flags.paths) {
        return Err(Failure::input(conflict));
    }
    if !flags.live.cluster {
        return check::run(files::read(&flags.paths), Vec::new());
    }
    let LiveConfiguration { contents, omissions } =
        LiveCluster::connect(&flags.live.access)?.configuration()?;
    check::run(contents, omissions)
}

/// Returns the failure of a request.
pub(crate) fn access_failure(error: &AccessError) -> Failure {
    Failure::input(escaped(&error.to_string()))
}

fn configuration_of(
    listing: ClusterListing,
    settings: TranslationSettings,
) -> Result<LiveConfiguration, Failure> {
    let mut lines = missing_permissions(&listing);
    if listing.refused.iter().any(|(kind, _)| !OPTIONAL_KINDS.contains(kind)) {
        lines.push("sheave: without them other objects would seem to have errors".to_owned());
        return Err(Failure::Input(lines));
    }
    let settings =
        TranslationSettings { unreadable_objects: listing.unreadable.clone(), ..settings };
    Ok(LiveConfiguration { contents: contents_of(listing, settings), omissions: lines })
}

fn contents_of(listing: ClusterListing, settings: TranslationSettings) -> SourceContents {
    let ClusterListing { objects, mut problems, .. } = listing;
    problems.sort_by(|a: &ObjectProblem, b| a.object.cmp(&b.object));
    SourceContents { objects, problems, settings, error_policy: ErrorPolicy::SkipInvalid }
}

/// Returns a sentence for each kind that the user may not list.
fn missing_permissions(listing: &ClusterListing) -> Vec<String> {
    let line = |(kind, permission): &(&str, _)| {
        format!("sheave: {kind} cannot be read: you may not {permission}")
    };
    listing.refused.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use gateway::{CertificateObject, CertificateObjectKind};
    use kube::RequiredPermission;

    use super::*;

    fn refused(kind: &'static str, resource: &str) -> ClusterListing {
        let permission = RequiredPermission {
            verb: "list",
            resource: resource.to_owned(),
            namespace: Some("shop".to_owned()),
        };
        ClusterListing { refused: vec![(kind, permission)], ..ClusterListing::default() }
    }

    #[test]
    fn check_goes_on_without_a_kind_that_no_other_needs() {
        let listing = refused("TrafficPolicy", "trafficpolicies.sheave.dev");
        let read = configuration_of(listing, TranslationSettings::default()).unwrap();
        assert_eq!(
            read.omissions,
            [
                "sheave: TrafficPolicy cannot be read: you may not list trafficpolicies.sheave.dev in namespace shop"
            ]
        );
    }

    #[test]
    fn check_refuses_without_a_kind_whose_lack_looks_like_an_error() {
        let listing = refused("Service", "services");
        let Err(Failure::Input(lines)) = configuration_of(listing, TranslationSettings::default())
        else {
            panic!("accepted");
        };
        assert!(lines[0].ends_with("you may not list services in namespace shop"), "{lines:?}");
        assert!(lines[1].contains("would seem to have errors"), "{lines:?}");
    }

    #[test]
    fn unreadable_secrets_reach_the_translation_with_their_reason() {
        let object = CertificateObject {
            kind: CertificateObjectKind::Secret,
            namespace: "shop".to_owned(),
            name: "tls".to_owned(),
        };
        let unreadable = [(object.clone(), "you may not".to_owned())].into();
        let listing = ClusterListing { unreadable, ..ClusterListing::default() };
        let read = configuration_of(listing, TranslationSettings::default()).unwrap();
        assert_eq!(read.contents.settings.unreadable_objects[&object], "you may not");
    }
}
