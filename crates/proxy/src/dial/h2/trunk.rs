//! The HTTP/2 connections to an endpoint from one worker: when another is opened, and which carries a request.
//!
//! As few as may be: another link is opened only when all are full, one at a time, and whoever needs it meanwhile waits
//! for the same. It is opened by a task of its own, since whoever asked first may leave first.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::link::{self, Condition, Driver, Link, Tally};
use crate::dial::connect;
use crate::dial::pool::{Endpoint, lock};
use crate::failure::Failure;
use crate::observe::EndpointCounters;
use crate::tls::{Security, Trust};

/// Links of one kind to one endpoint, from one worker, where the policy sets no other limit.
const LINKS: usize = 64;

/// The links to one endpoint from one worker. On cache lines of its own: the next worker's lie beside it.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Links {
    /// By what they are opened with: one, hardly ever two.
    trunks: Mutex<Vec<Trunk>>,
    pub(crate) tally: Arc<Tally>,
}

/// Links that are opened alike.
pub(super) struct Trunk {
    announced: Option<SocketAddr>,
    trust: Option<Arc<Trust>>,
    links: Vec<Link>,
    dialing: bool,
    /// How often a link was to be opened so far, and what was in the way the last time.
    dials: u64,
    failure: Option<Failure>,
    room: Arc<Notify>,
}

/// What a link is opened with.
#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    /// The client whose address it begins with (PROXY protocol), and whose requests alone it may carry.
    pub(super) announced: Option<SocketAddr>,
    pub(super) trust: Option<&'a Arc<Trust>>,
}

/// Somebody who waits for a place on a link.
pub(crate) struct Waiting {
    room: Arc<Notify>,
    /// How many dials had ended when the wait began.
    since: u64,
}

impl Waiting {
    /// Until it is worth while to ask again.
    pub(super) async fn wait(&self) {
        self.room.notified().await;
    }
}

impl Links {
    /// Nobody is in the way but who reads metrics.
    pub(super) fn trunks(&self) -> MutexGuard<'_, Vec<Trunk>> {
        lock(&self.trunks)
    }
}

/// The trunk of this kind, a new one if there is none.
pub(super) fn of<'t>(trunks: &'t mut Vec<Trunk>, kind: Kind<'_>) -> &'t mut Trunk {
    let place = trunks.iter().position(|trunk| trunk.is_of(kind)).unwrap_or_else(|| {
        trunks.push(Trunk::new(kind));
        trunks.len() - 1
    });
    &mut trunks[place]
}

impl Trunk {
    fn new(kind: Kind<'_>) -> Self {
        Self {
            announced: kind.announced,
            trust: kind.trust.cloned(),
            links: Vec::new(),
            dialing: false,
            dials: 0,
            failure: None,
            room: Arc::new(Notify::new()),
        }
    }

    fn is_of(&self, kind: Kind<'_>) -> bool {
        let address = |trust: Option<&Arc<Trust>>| trust.map(Arc::as_ptr);
        self.announced == kind.announced && address(self.trust.as_ref()) == address(kind.trust)
    }

    /// A link that may carry another request.
    pub(super) fn usable(
        &mut self,
        settings: &BackendSettings,
        counters: &EndpointCounters,
        now: Time,
    ) -> Option<&mut Link> {
        let mut place = 0;
        while let Some(link) = self.links.get_mut(place) {
            match link.condition(settings, now) {
                Condition::Usable => return self.links.get_mut(place),
                Condition::Full => place += 1,
                Condition::Over { said_goaway } => self.let_go(place, said_goaway, counters),
            }
        }
        None
    }

    /// Its streams go on; it ends with the last of them.
    fn let_go(&mut self, place: usize, said_goaway: bool, counters: &EndpointCounters) {
        counters.goaways.add(u64::from(said_goaway));
        drop(self.links.remove(place));
    }

    fn look_over(&mut self, settings: &BackendSettings, counters: &EndpointCounters, now: Time) {
        let mut place = 0;
        while let Some(link) = self.links.get_mut(place) {
            match link.look_over(settings, now) {
                Condition::Usable | Condition::Full => place += 1,
                Condition::Over { said_goaway } => self.let_go(place, said_goaway, counters),
            }
        }
    }

    /// Why there is no link for who waits, if one could not be opened since.
    pub(super) fn failure_since(&self, waiting: Option<&Waiting>) -> Option<Failure> {
        self.failure.filter(|_| waiting.is_some_and(|waiting| self.dials > waiting.since))
    }

    /// A place in the line, for who waits already or from now on.
    pub(super) fn waiting(&self, already: Option<&Waiting>) -> Waiting {
        let since = already.map_or(self.dials, |waiting| waiting.since);
        Waiting { room: Arc::clone(&self.room), since }
    }

    /// Whether another link is to be opened now, by the caller.
    pub(super) fn wants_another(&mut self, settings: &BackendSettings, workers: usize) -> bool {
        let wanted = !self.dialing && self.links.len() < most_links(settings, workers);
        self.dialing |= wanted;
        wanted
    }

    fn dialed(&mut self, opened: Result<Link, Failure>) {
        self.dialing = false;
        self.dials += 1;
        self.failure = opened.map(|link| self.links.push(link)).err();
        self.room.notify_waiters();
    }
}

/// A worker's share of the connections that the policy allows, but one at least: without any it could serve nobody.
fn most_links(settings: &BackendSettings, workers: usize) -> usize {
    let share = |most: std::num::NonZeroU32| (most.get() as usize / workers).max(1);
    settings.connection_max.map_or(LINKS, share).min(LINKS)
}

/// A link that is to be opened.
pub(super) struct Dial {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) worker: usize,
    pub(super) announced: Option<SocketAddr>,
    pub(super) trust: Option<Arc<Trust>>,
    /// What it begins with.
    pub(super) header: Vec<u8>,
    pub(super) patience: Duration,
}

impl Dial {
    /// Opens the link, tells who waits for it, and moves its bytes as long as it lives.
    pub(super) async fn run(self) {
        let opened = timeout(self.patience, self.open()).await;
        let (opened, driver) = match opened.unwrap_or(Err(Failure::ConnectTimeout)) {
            Ok((link, driver)) => (Ok(link), Some(driver)),
            Err(failure) => (Err(failure), None),
        };
        of(&mut self.links().trunks(), self.kind()).dialed(opened);
        // An endpoint that has left is not kept by its links, but they by it.
        drop(self);
        if let Some(driver) = driver {
            driver.run().await;
        }
    }

    async fn open(&self) -> Result<(Link, Driver), Failure> {
        let security = Security::of_requests(self.trust.as_ref());
        let stream = connect::open(&self.endpoint, self.worker, &self.header, security).await?;
        let room = Arc::clone(&of(&mut self.links().trunks(), self.kind()).room);
        link::begin(stream, room, Arc::clone(&self.links().tally)).await
    }

    fn links(&self) -> &Links {
        &self.endpoint.data.links[self.worker]
    }

    fn kind(&self) -> Kind<'_> {
        Kind { announced: self.announced, trust: self.trust.as_ref() }
    }
}

/// Lets go of links that are spent, or that nobody has used for long.
pub(crate) fn sweep(endpoint: &Endpoint, worker: usize, settings: &BackendSettings, now: Time) {
    let counters = &endpoint.data.counters[worker];
    let mut trunks = endpoint.data.links[worker].trunks();
    trunks.iter_mut().for_each(|trunk| trunk.look_over(settings, counters, now));
    trunks.retain(|trunk| trunk.dialing || !trunk.links.is_empty());
}
