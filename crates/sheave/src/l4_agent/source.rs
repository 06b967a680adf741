//! The objects of the agent: from files, or from a cluster.

use std::io;

use gateway::{ApiObject, ObjectProblem};
use kube::ServiceObjects;

use super::service_plan::StatusAddresses;
use crate::cluster;
use crate::failure::Failure;
use crate::files::FileSource;
use crate::flags::L4Flags;

/// A source of Services, EndpointSlices and Nodes.
pub(super) enum ObjectSource {
    Files(Box<FileSource>),
    Cluster(ServiceObjects),
}

/// Objects with the addresses of Services, and what cannot be read.
#[derive(Default)]
pub(super) struct SourceObjects {
    pub(super) objects: Vec<ApiObject>,
    pub(super) addresses: StatusAddresses,
    pub(super) problems: Vec<ObjectProblem>,
}

impl ObjectSource {
    /// Opens the source that the flags name. Needs a running tokio runtime.
    pub(super) async fn open(flags: &L4Flags) -> Result<Self, Failure> {
        if flags.kubernetes {
            return Ok(Self::Cluster(ServiceObjects::watch(&cluster::connect().await?)));
        }
        let files = FileSource::new(flags.config.clone()).map_err(|error| {
            Failure::input(format_args!(
                "cannot watch files: {error}; `sysctl fs.inotify` shows the limits"
            ))
        })?;
        Ok(Self::Files(Box::new(files)))
    }

    /// Waits until there is something to load. Cancel-safe.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        match self {
            Self::Files(files) => files.changed().await,
            Self::Cluster(objects) => {
                objects.changed().await;
                Ok(())
            }
        }
    }

    /// Returns the objects when the initial lists are complete.
    pub(super) async fn load_first(&mut self) -> SourceObjects {
        if let Self::Cluster(objects) = self {
            tracing::info!("waiting for the initial lists of the cluster");
            objects.changed().await;
        }
        self.load()
    }

    pub(super) fn load(&mut self) -> SourceObjects {
        match self {
            Self::Files(files) => {
                let contents = files.load();
                let addresses = addresses(&contents.objects);
                let problems = contents.problems;
                SourceObjects { objects: contents.objects, addresses, problems }
            }
            Self::Cluster(objects) => {
                let (objects, problems, addresses) = objects.load();
                SourceObjects { objects, addresses, problems }
            }
        }
    }

    /// True if an object with an error leaves all others in force: in a cluster, objects have many authors.
    pub(super) const fn skips_invalid(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Makes the next load read all files.
    pub(super) fn expire(&mut self) {
        if let Self::Files(files) = self {
            files.expire();
        }
    }
}

fn addresses(objects: &[ApiObject]) -> StatusAddresses {
    let service = |object: &ApiObject| match object {
        ApiObject::Service(it) => {
            let name = (it.metadata.namespace.clone(), it.metadata.name.clone());
            Some((name, it.spec.status_addresses.clone()))
        }
        _ => None,
    };
    objects.iter().filter_map(service).collect()
}
