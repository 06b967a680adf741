//! From what the sources hold to what is in force: all of it, or none of it.
//!
//! It knows objects and the data plane; it must not know where objects come from.

use std::net::SocketAddr;
use std::sync::Arc;

use gateway::snapshot::{BackendKey, EndpointSpec, Snapshot};
use gateway::{Endpoints, Object, Problem, Translation};
use proxy::Proxy;
use tokio::sync::watch;

use crate::failure::bind_advice;
use crate::files::Contents;
use crate::report::{Reload, Report};

/// What is in force.
pub(crate) struct Configuration {
    proxy: Arc<Proxy>,
    objects: Vec<Object>,
    backends: Vec<BackendKey>,
    /// Of each backend in its place.
    endpoints: Vec<Vec<EndpointSpec>>,
    report: watch::Sender<Report>,
}

/// Objects without an error, and what they come to.
pub(crate) struct Checked {
    pub(crate) objects: Vec<Object>,
    pub(crate) translation: Translation,
}

/// Every error of the contents, or what they come to.
pub(crate) fn check(contents: Contents) -> Result<Checked, Vec<Problem>> {
    let Contents { objects, mut problems } = contents;
    let mut translation = gateway::translate(&objects);
    problems.append(&mut translation.problems);
    if problems.is_empty() { Ok(Checked { objects, translation }) } else { Err(problems) }
}

impl Configuration {
    /// Nothing is in force yet.
    pub(crate) fn new(proxy: Arc<Proxy>, report: watch::Sender<Report>) -> Self {
        let (objects, backends, endpoints) = (Vec::new(), Vec::new(), Vec::new());
        Self { proxy, objects, backends, endpoints, report }
    }

    /// Puts the contents in force by the shortest way, or reports every error and leaves all as it is.
    pub(crate) fn reload(&mut self, contents: Contents) {
        let had_problems = !self.report.borrow().problems.is_empty();
        let reload = self.take(contents);
        self.report.send_modify(|report| report.count(reload));
        if had_problems && reload != Reload::Refused {
            tracing::info!("the configuration is mended");
        }
    }

    /// Puts a new Snapshot in force; tells which addresses cannot be listened on.
    pub(crate) fn apply(&mut self, checked: Checked) -> Vec<String> {
        let Checked { objects, translation: Translation { snapshot, statuses, .. } } = checked;
        let before = self.listening();
        let unbound: Vec<String> = self.proxy.apply(&snapshot).iter().map(with_advice).collect();
        self.tell_listeners(&before);
        tell_size(&snapshot);
        self.objects = objects;
        (self.backends, self.endpoints) =
            snapshot.backends.into_iter().map(|backend| (backend.key, backend.endpoints)).unzip();
        self.record(|report| {
            report.statuses = statuses.into();
            report.unbound = unbound.clone().into();
        });
        unbound
    }

    fn take(&mut self, contents: Contents) -> Reload {
        if contents.problems.is_empty() && self.report.borrow().unbound.is_empty() {
            if contents.objects == self.objects {
                self.report.send_modify(|report| report.problems = Arc::default());
                return Reload::Unchanged;
            }
            if differ_in_slices_alone(&contents.objects, &self.objects) {
                return self.swap_endpoints(contents.objects);
            }
        }
        match check(contents) {
            Ok(checked) => {
                for sentence in self.apply(checked) {
                    tracing::error!("{sentence}");
                }
                Reload::Applied
            }
            Err(problems) => {
                self.refuse(problems);
                Reload::Refused
            }
        }
    }

    /// The short way: no translation, no new Snapshot.
    fn swap_endpoints(&mut self, objects: Vec<Object>) -> Reload {
        let changed = Endpoints::new(&objects);
        let problems = changed.problems(&self.backends);
        if !problems.is_empty() {
            self.refuse(problems);
            return Reload::Refused;
        }
        for (key, endpoints) in self.backends.iter().zip(&mut self.endpoints) {
            let before = std::mem::replace(endpoints, changed.of(key));
            if *endpoints == before {
                continue;
            }
            let known = self.proxy.set_endpoints(key, endpoints);
            debug_assert!(known, "the data plane knows the backends of the Snapshot in force");
            tracing::info!(backend = %key, endpoints = endpoints.len(), "endpoints changed");
        }
        self.objects = objects;
        self.record(|_| {});
        Reload::Endpoints
    }

    fn refuse(&self, problems: Vec<Problem>) {
        for problem in &problems {
            let named = |part: &str| (!part.is_empty()).then(|| part.to_owned());
            tracing::error!(
                file = %problem.origin.file,
                document = (problem.origin.document > 0).then_some(problem.origin.document),
                object = named(&problem.object),
                field = named(&problem.field),
                "{}",
                problem.message
            );
        }
        let errors = problems.len();
        tracing::error!(errors, "the configuration has errors: what was in force still is");
        self.report.send_modify(|report| report.problems = problems.into());
    }

    fn listening(&self) -> Vec<(Arc<str>, SocketAddr)> {
        self.proxy.listeners().into_iter().map(|view| (view.name, view.address)).collect()
    }

    fn tell_listeners(&self, before: &[(Arc<str>, SocketAddr)]) {
        let after = self.listening();
        for (name, address) in after.iter().filter(|it| !before.contains(it)) {
            tracing::info!(%address, listener = %name, "listening");
        }
        for (name, address) in before.iter().filter(|it| !after.contains(it)) {
            tracing::info!(%address, listener = %name, "no longer listening");
        }
    }

    /// Something new is in force.
    fn record(&self, detail: impl FnOnce(&mut Report)) {
        self.report.send_modify(|report| {
            report.generation += 1;
            report.applied_at = Some(proxy::clock::wall());
            report.problems = Arc::default();
            detail(report);
        });
    }
}

fn tell_size(snapshot: &Snapshot) {
    let endpoints: usize = snapshot.backends.iter().map(|backend| backend.endpoints.len()).sum();
    tracing::info!(
        listeners = snapshot.listeners.len(),
        rules = snapshot.rules.len(),
        backends = snapshot.backends.len(),
        endpoints,
        "configuration in force"
    );
}

fn with_advice(error: &proxy::ListenError) -> String {
    format!("{error}: {}: {}", error.source, bind_advice(&error.source))
}

fn differ_in_slices_alone(some: &[Object], others: &[Object]) -> bool {
    let kept = |object: &&Object| !matches!(object, Object::EndpointSlice(_));
    some.iter().filter(kept).eq(others.iter().filter(kept))
}

#[cfg(test)]
mod tests;
