//! A worker's HTTP/3 connections to endpoints.
//!
//! QUIC's connections belong to the worker that opened them, down to the memory, so they lie with it and not with their
//! endpoints. Those of an endpoint that has left are let go at the next sweep; what runs on them is finished.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tokio::time::timeout;

use super::link::{self, Driver, Link};
use crate::clock;
use crate::dial::call::{Asked, Call};
use crate::dial::pool::{Connection, Endpoint};
use crate::dial::trunk::{self, Kind, Trunk, Waiting};
use crate::failure::Failure;
use crate::h3::Code;
use crate::quic::LinkSettings;
use crate::tls::{QuicSecret, Trust, Untrusted};
use crate::worker::Worker;

/// A link on which nothing comes for as long as `unacknowledged` has broken. It is not for want of anything to say: while
/// it is open, the endpoint is asked to give a sign of life. Links that are not used end by the backend's policy.
fn link_settings(unacknowledged: Duration) -> LinkSettings {
    LinkSettings { idle_timeout: unacknowledged, keep_alive: Some(unacknowledged / 3) }
}

/// The HTTP/3 connections of one worker.
#[derive(Default)]
pub(crate) struct Links(RefCell<HashMap<*const Endpoint, Entry>>);

/// Those to one endpoint.
struct Entry {
    /// Keeps the address from being used again, and nothing else.
    endpoint: Weak<Endpoint>,
    /// By what they are opened with: one, hardly ever two.
    trunks: Vec<Trunk<Link>>,
}

impl Links {
    fn with_trunk<R>(
        &self,
        endpoint: &Arc<Endpoint>,
        trust: Option<&Arc<Trust>>,
        does: impl FnOnce(&mut Trunk<Link>) -> R,
    ) -> R {
        let mut entries = self.0.borrow_mut();
        let entry = entries
            .entry(Arc::as_ptr(endpoint))
            .or_insert_with(|| Entry { endpoint: Arc::downgrade(endpoint), trunks: Vec::new() });
        does(trunk::of(&mut entry.trunks, Kind { announced: None, trust }))
    }

    fn of_call<R>(&self, call: &Call<'_>, does: impl FnOnce(&mut Trunk<Link>) -> R) -> R {
        self.with_trunk(call.endpoint, call.current.trust.as_ref(), does)
    }

    /// A stream on which the head has been sent, if one can be had at once.
    pub(super) fn stream(&self, call: &Call<'_>) -> Result<Option<Box<Connection>>, Failure> {
        let counters = &call.endpoint.data.counters[call.worker].http3;
        self.of_call(call, |trunk| {
            let usable = trunk.usable(&call.current.settings, counters, call.now);
            let Some(link) = usable else { return Ok(None) };
            let (stream, berth) = link.send(call)?;
            let connection = Connection::on_link(stream, berth, call.worker, call.now);
            Ok(Some(Box::new(connection)))
        })
    }

    /// Asks for a stream; `waiting` tells since when.
    pub(super) fn ask(
        &self,
        worker: &Rc<Worker>,
        call: &Call<'_>,
        waiting: Option<&Waiting>,
    ) -> Result<Asked, Failure> {
        if let Some(connection) = self.stream(call)? {
            return Ok(Asked::Opened(connection));
        }
        if let Some(failure) = self.of_call(call, |trunk| trunk.failure_since(waiting)) {
            return Err(failure);
        }
        self.dial(worker, call);
        Ok(Asked::Wait(self.of_call(call, |trunk| trunk.waiting(waiting))))
    }

    /// Opens another link, unless that is being done or there are as many as may be.
    pub(super) fn dial(&self, worker: &Rc<Worker>, call: &Call<'_>) {
        let (settings, workers) = (&call.current.settings, call.endpoint.data.links.len());
        let wanted = self.of_call(call, |trunk| trunk.wants_another(settings, workers, call.now));
        if wanted {
            let dial = Dial {
                worker: Rc::clone(worker),
                endpoint: Arc::clone(call.endpoint),
                trust: call.current.trust.clone(),
                patience: settings.connect_timeout,
                unacknowledged: settings.unacknowledged_timeout,
            };
            tokio::task::spawn_local(dial.run());
        }
    }

    /// Since when a link is being opened.
    pub(super) fn dialing(&self, call: &Call<'_>) -> Option<Time> {
        self.of_call(call, |trunk| trunk.dialing())
    }

    /// Lets go of links to the endpoint that are spent, or that nobody has used for long.
    pub(crate) fn sweep(
        &self,
        endpoint: &Arc<Endpoint>,
        worker: usize,
        settings: &BackendSettings,
        now: Time,
    ) {
        let mut entries = self.0.borrow_mut();
        if let Some(entry) = entries.get_mut(&Arc::as_ptr(endpoint)) {
            let counters = &endpoint.data.counters[worker].http3;
            trunk::look_over(&mut entry.trunks, settings, counters, now);
        }
    }

    /// Lets go of what leads to endpoints that have left.
    pub(crate) fn forget_the_gone(&self) {
        let stays = |entry: &Entry| entry.endpoint.strong_count() > 0 && !entry.trunks.is_empty();
        self.0.borrow_mut().retain(|_, entry| stays(entry));
    }
}

/// A link that is to be opened.
struct Dial {
    worker: Rc<Worker>,
    endpoint: Arc<Endpoint>,
    trust: Option<Arc<Trust>>,
    patience: Duration,
    /// The endpoint is gone that acknowledges nothing for so long.
    unacknowledged: Duration,
}

impl Dial {
    /// Opens the link, tells who waits for it, and serves it as long as it lives.
    async fn run(self) {
        let (opened, driver) = match self.open().await {
            Ok((link, driver)) => (Ok(link), Some(driver)),
            Err(failure) => (Err(failure), None),
        };
        self.learn(opened.as_ref().err().copied());
        self.with_trunk(|trunk| trunk.dialed(opened));
        // An endpoint that has left is not kept by its links, but they by it.
        drop(self);
        if let Some(driver) = driver {
            driver.run().await;
        }
    }

    fn learn(&self, failure: Option<Failure>) {
        let reach = &self.endpoint.data.reach;
        let (was_open, endpoint) = (reach.is_open(), self.endpoint.address);
        match failure {
            None => {
                reach.succeeded();
                if !was_open {
                    tracing::info!(%endpoint, "HTTP/3 works again");
                }
            }
            // We are at fault; or it answers by QUIC, as somebody else than it has to be.
            Some(
                Failure::OutOfDescriptors
                | Failure::Untrusted(Untrusted::Unusable | Untrusted::Certificate),
            ) => {}
            Some(failure) => {
                reach.failed(clock::now());
                if was_open {
                    let fault = failure.details();
                    tracing::warn!(%endpoint, fault, "HTTP/3 does not work: requests go by TCP");
                }
            }
        }
    }

    async fn open(&self) -> Result<(Link, Driver), Failure> {
        let Self { worker, endpoint, trust, patience, unacknowledged } = self;
        let secret = trust.as_ref().and_then(|trust| trust.quic());
        let secret = secret.ok_or(Failure::Untrusted(Untrusted::Unusable))?;
        endpoint.data.counters[worker.index].connections.add(1);
        let QuicSecret { config, name } = secret;
        let settings = link_settings(*unacknowledged);
        let begun_at = clock::now();
        let connection = worker.quic.dial(endpoint.address, name, config, settings)?;
        let room = self.with_trunk(|trunk| trunk.room());
        let tally = Arc::clone(&endpoint.data.over_quic[worker.index]);
        let begun = timeout(*patience, link::begin(&connection, room, tally)).await;
        let begun = begun.unwrap_or(Err(Failure::ConnectTimeout));
        match &begun {
            Ok(_) => {
                let took = clock::now().saturating_since(begun_at);
                endpoint.data.reachability.connected_in(took);
            }
            Err(_) => connection.close(Code::NO_ERROR.0, "not in time"),
        }
        begun
    }

    fn with_trunk<R>(&self, does: impl FnOnce(&mut Trunk<Link>) -> R) -> R {
        self.worker.links.with_trunk(&self.endpoint, self.trust.as_ref(), does)
    }
}
