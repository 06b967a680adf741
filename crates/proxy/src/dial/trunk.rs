//! The links to an endpoint from one worker: when another is opened, and which carries a request.
//!
//! As few as may be: another link is opened only when all are full, one at a time, and whoever needs it meanwhile waits
//! for the same.

use std::net::SocketAddr;
use std::sync::Arc;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tokio::sync::Notify;

use crate::dial::link::{Condition, Link};
use crate::failure::Failure;
use crate::observe::LinkCounters;
use crate::tls::Trust;

/// Links of one kind to one endpoint, from one worker, where the policy sets no other limit.
const LINKS: usize = 64;

/// Links that are opened alike.
pub(super) struct Trunk<L> {
    announced: Option<SocketAddr>,
    trust: Option<Arc<Trust>>,
    links: Vec<L>,
    /// Since when another is being opened.
    dialing: Option<Time>,
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

/// The trunk of this kind, a new one if there is none.
pub(super) fn of<'t, L: Link>(trunks: &'t mut Vec<Trunk<L>>, kind: Kind<'_>) -> &'t mut Trunk<L> {
    let place = trunks.iter().position(|trunk| trunk.is_of(kind)).unwrap_or_else(|| {
        trunks.push(Trunk::new(kind));
        trunks.len() - 1
    });
    &mut trunks[place]
}

impl<L: Link> Trunk<L> {
    fn new(kind: Kind<'_>) -> Self {
        Self {
            announced: kind.announced,
            trust: kind.trust.cloned(),
            links: Vec::new(),
            dialing: None,
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
        counters: &LinkCounters,
        now: Time,
    ) -> Option<&mut L> {
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
    fn let_go(&mut self, place: usize, said_goaway: bool, counters: &LinkCounters) {
        counters.goaways.add(u64::from(said_goaway));
        drop(self.links.remove(place));
    }

    fn look_over(&mut self, settings: &BackendSettings, counters: &LinkCounters, now: Time) {
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
    pub(super) fn wants_another(
        &mut self,
        settings: &BackendSettings,
        workers: usize,
        now: Time,
    ) -> bool {
        let wanted = self.dialing.is_none() && self.links.len() < most_links(settings, workers);
        if wanted {
            self.dialing = Some(now);
        }
        wanted
    }

    /// Since when a link is being opened.
    pub(super) fn dialing(&self) -> Option<Time> {
        self.dialing
    }

    /// Where who waits for a link that is being opened is told.
    pub(super) fn room(&self) -> Arc<Notify> {
        Arc::clone(&self.room)
    }

    /// What was to be opened is there, or is not to be had.
    pub(super) fn dialed(&mut self, opened: Result<L, Failure>) {
        self.dialing = None;
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

/// Lets go of links that are spent, or that nobody has used for long.
pub(super) fn look_over<L: Link>(
    trunks: &mut Vec<Trunk<L>>,
    settings: &BackendSettings,
    counters: &LinkCounters,
    now: Time,
) {
    trunks.iter_mut().for_each(|trunk| trunk.look_over(settings, counters, now));
    trunks.retain(|trunk| trunk.dialing.is_some() || !trunk.links.is_empty());
}
