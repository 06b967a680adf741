//! Learned limits of several replicas in front of the same endpoints.
//!
//! A replica that learns alone takes the load of the others for slowness of the endpoint. So
//! replicas tell one another their load and their observations. Each observation has the level of
//! all replicas together, and all of them are evidence of one estimate: the *total*. The replica
//! that has run longest, of those that are heard, holds trials and decides the total; the others
//! follow it, and have the same evidence when it is gone. Each replica uses a part of the total
//! (`divide`).
//!
//! A part is lowered at once, and raised into room that the others have reported to leave.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::LimitSettings;
use super::division::{ReplicaDemand, divide};
use super::levels::MOST;
use super::message::{
    LIMITS_VERSION, LimitEntry, LimitMessage, LimitRefusal, MAX_LIMIT_ENTRIES, MAX_REQUESTS,
    ObservationSums, SharedLimit,
};
use crate::leases::{PoolKey, ReplicaIdentity};
use crate::slot_assignment::canonical;
use crate::time::Time;

/// Time without a message about an endpoint after which a peer is silent: it decides nothing, and
/// its part is taken as unchanged.
const SILENCE: Duration = Duration::from_secs(1);
/// Time without a message after which what a peer has told is void.
const LIFETIME: Duration = Duration::from_secs(30);

/// Endpoint and the backend that computes its limit.
pub(super) type LimitKey = (PoolKey, SocketAddr);

/// State that replicas share about learned limits: what peers have told, and what to tell them.
#[derive(Debug)]
pub struct LimitSharing {
    me: ReplicaIdentity,
    /// Other members.
    members: BTreeSet<SocketAddr>,
    peers: BTreeMap<SocketAddr, PeerLimits>,
    own: BTreeMap<LimitKey, OwnLimit>,
    /// Endpoint with which the last message ended.
    last_told: Option<LimitKey>,
    last_sent: Time,
    refused: [u64; LimitRefusal::ALL.len()],
}

/// State of one peer.
#[derive(Debug)]
struct PeerLimits {
    incarnation: u64,
    sent: Time,
    endpoints: BTreeMap<LimitKey, PeerLimit>,
}

/// State of one endpoint at one peer.
#[derive(Debug)]
struct PeerLimit {
    heard: Time,
    state: SharedLimit,
    sums: ObservationSums,
    /// Sums at the beginning of the window.
    window: ObservationSums,
}

/// State of one endpoint here.
#[derive(Debug)]
struct OwnLimit {
    published: Time,
    state: SharedLimit,
    sums: ObservationSums,
}

/// One endpoint as all peers together have told.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerView {
    /// Mean requests in flight of all peers.
    pub(super) in_flight: f64,
    /// Observations of each peer in this window.
    pub(super) observed: Vec<ObservationSums>,
    /// Mean requests in flight of peers of which there are none.
    pub(super) unobserved: f64,
    /// Peers that are heard.
    demands: Vec<ReplicaDemand>,
    /// Parts that these use.
    claims: u32,
    /// Parts of silent peers.
    silent_claims: u32,
    /// Limit of the peer that decides; `None` if this replica does.
    pub(super) leader: Option<SharedLimit>,
    /// Limit that the endpoint has reported to a peer.
    pub(super) reported: Option<u32>,
}

impl LimitSharing {
    /// Returns the state of a replica without peers.
    pub fn new(me: ReplicaIdentity) -> Self {
        Self {
            me: ReplicaIdentity { member: canonical(me.member), ..me },
            members: BTreeSet::new(),
            peers: BTreeMap::new(),
            own: BTreeMap::new(),
            last_told: None,
            last_sent: Time::ZERO,
            refused: [0; LimitRefusal::ALL.len()],
        }
    }

    /// Sets the replicas that serve now, this one included. What others have told is forgotten.
    pub fn update_members(&mut self, members: impl IntoIterator<Item = SocketAddr>) {
        let me = self.me.member;
        self.members = members.into_iter().map(canonical).filter(|&member| member != me).collect();
        self.peers.retain(|member, _| self.members.contains(member));
        if self.members.is_empty() {
            self.own.clear();
        }
    }

    /// True if there are other members.
    pub fn has_peers(&self) -> bool {
        !self.members.is_empty()
    }

    /// Takes a message of a peer.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused. Then it has no effect.
    pub fn receive(&mut self, message: &LimitMessage, now: Time) -> Result<(), LimitRefusal> {
        let checked = self.check(message);
        if let Err(refusal) = checked {
            self.refused[refusal as usize] += 1;
            return Err(refusal);
        }
        let ReplicaIdentity { member, incarnation } = message.from;
        let new = || PeerLimits { incarnation, sent: Time::ZERO, endpoints: BTreeMap::new() };
        let peer = self.peers.entry(canonical(member)).or_insert_with(new);
        if peer.incarnation != incarnation {
            *peer = new();
        }
        peer.sent = message.sent;
        for entry in &message.endpoints {
            let key = (entry.pool, entry.endpoint);
            // A peer may know endpoints that we do not.
            if self.own.contains_key(&key) {
                peer.endpoints.entry(key).or_insert_with(|| PeerLimit::new(entry)).take(entry, now);
            }
        }
        peer.endpoints.retain(|key, known| {
            self.own.contains_key(key) && now.saturating_since(known.heard) < LIFETIME
        });
        Ok(())
    }

    /// Returns the next message, which is the same for all peers; `None` if there is none to send.
    /// To be called ten times a second.
    pub fn message(&mut self, now: Time) -> Option<LimitMessage> {
        self.own.retain(|_, own| now.saturating_since(own.published) < SILENCE);
        if self.members.is_empty() || self.own.is_empty() {
            return None;
        }
        let mut endpoints = Vec::new();
        for key in self.next_keys().into_iter().take(MAX_LIMIT_ENTRIES) {
            let (pool, endpoint) = key;
            let OwnLimit { state, sums, .. } = self.own[&key];
            endpoints.push(LimitEntry { pool, endpoint, state, sums });
            self.last_told = Some(key);
        }
        self.last_sent = now.max(Time::from_nanos(self.last_sent.as_nanos() + 1));
        let (from, sent) = (self.me, self.last_sent);
        Some(LimitMessage { version: LIMITS_VERSION, from, sent, endpoints })
    }

    /// Returns the number of messages refused for each reason, in the order of
    /// [`LimitRefusal::ALL`].
    pub fn refused(&self) -> [u64; LimitRefusal::ALL.len()] {
        self.refused
    }

    /// Returns the number of peers whose state of some endpoint is in use.
    pub fn peers_heard(&self, now: Time) -> usize {
        let is_heard = |peer: &&PeerLimits| {
            peer.endpoints.values().any(|it| now.saturating_since(it.heard) < SILENCE)
        };
        self.peers.values().filter(is_heard).count()
    }

    /// Returns what peers have told of an endpoint; `None` if that is nothing, or too old.
    pub(super) fn view(&self, key: LimitKey, now: Time) -> Option<PeerView> {
        let mut view = PeerView::default();
        let mut is_known = false;
        let mut first = self.me;
        for (&member, peer) in &self.peers {
            let Some(told) = peer.endpoints.get(&key) else { continue };
            let silent = now.saturating_since(told.heard);
            if silent >= LIFETIME {
                continue;
            }
            is_known = true;
            view.add(member, told, silent < SILENCE);
            let identity = ReplicaIdentity { member, incarnation: peer.incarnation };
            if silent < SILENCE && leads(identity) < leads(first) {
                (first, view.leader) = (identity, Some(told.state));
            }
        }
        is_known.then_some(view)
    }

    /// Returns the part of the total for this replica, which is its limit.
    pub(super) fn part(
        &self,
        endpoint: SocketAddr,
        total: u32,
        demand: f64,
        claim: u32,
        view: &PeerView,
        settings: &LimitSettings,
    ) -> u32 {
        let mut demands = view.demands.clone();
        let own = ReplicaDemand { member: self.me.member, demand };
        let at = demands.partition_point(|each| each.member < own.member);
        demands.insert(at, own);
        let least = (settings.min / demands.len() as u32).max(1);
        let available = total.saturating_sub(view.silent_claims);
        let part = divide(endpoint, available, least, &demands)[at];
        let room = available.saturating_sub(view.claims);
        if part > claim { part.min(room).max(claim) } else { part }
    }

    /// Sets the state of an endpoint here.
    pub(super) fn publish(
        &mut self,
        key: LimitKey,
        state: SharedLimit,
        sums: ObservationSums,
        now: Time,
    ) {
        self.own.insert(key, OwnLimit { published: now, state, sums });
    }

    /// Begins a new window of observations of an endpoint.
    pub(super) fn begin_window(&mut self, key: LimitKey) {
        for peer in self.peers.values_mut() {
            if let Some(told) = peer.endpoints.get_mut(&key) {
                told.window = told.sums;
            }
        }
    }

    /// Returns the part of an endpoint's total that this replica has told to use.
    pub(super) fn claim(&self, key: LimitKey) -> Option<u32> {
        self.own.get(&key).map(|own| own.state.claim)
    }

    /// Returns the keys of all endpoints, those first that were not in the last message.
    fn next_keys(&self) -> Vec<LimitKey> {
        let mut keys: Vec<_> = self.own.keys().copied().collect();
        let next = self.last_told.map_or(0, |last| keys.partition_point(|&key| key <= last));
        keys.rotate_left(next);
        keys
    }

    fn check(&self, message: &LimitMessage) -> Result<(), LimitRefusal> {
        if message.version != LIMITS_VERSION {
            return Err(LimitRefusal::Version);
        }
        let member = canonical(message.from.member);
        if !self.members.contains(&member) {
            return Err(LimitRefusal::UnknownMember);
        }
        let entries = &message.endpoints;
        if entries.len() > MAX_LIMIT_ENTRIES || !entries.iter().all(is_possible) {
            return Err(LimitRefusal::Absurd);
        }
        let Some(peer) = self.peers.get(&member) else { return Ok(()) };
        if message.from.incarnation < peer.incarnation {
            return Err(LimitRefusal::StaleIncarnation);
        }
        if message.from.incarnation > peer.incarnation {
            return Ok(());
        }
        if message.sent <= peer.sent {
            return Err(LimitRefusal::StaleSequence);
        }
        let is_possible = |entry: &LimitEntry| {
            let known = peer.endpoints.get(&(entry.pool, entry.endpoint));
            known.is_none_or(|known| can_follow(&entry.sums, &known.sums))
        };
        let all = message.endpoints.iter().all(is_possible);
        if all { Ok(()) } else { Err(LimitRefusal::Absurd) }
    }
}

/// Returns the order in which replicas lead: the longest-running first, for it knows most.
fn leads(replica: ReplicaIdentity) -> (u64, SocketAddr) {
    (replica.incarnation, replica.member)
}

/// True if no number is impossible.
fn is_possible(entry: &LimitEntry) -> bool {
    let SharedLimit { in_flight_milli, demand_milli, total, claim, reported, .. } = entry.state;
    let requests = in_flight_milli.max(demand_milli);
    let limits = total.max(claim).max(reported);
    requests <= MAX_REQUESTS * 1000 && total > 0 && limits <= MOST
}

/// True if the sums can be those of a peer some time after `before`, or if they have begun anew,
/// as for an endpoint that was gone for a while, or of a replica that was alone.
fn can_follow(sums: &ObservationSums, before: &ObservationSums) -> bool {
    if begins_anew(sums, before) {
        return true;
    }
    let since = sums.since(before);
    let have_grown = sums.observed_nanos >= before.observed_nanos
        && sums.in_flight_nanos >= before.in_flight_nanos
        && sums.limited_nanos >= before.limited_nanos
        && sums.finished >= before.finished;
    have_grown
        && since.limited_nanos <= since.in_flight_nanos
        && since.in_flight_nanos / MAX_REQUESTS <= since.observed_nanos
        && since.finished / MAX_REQUESTS <= since.observed_nanos / 1_000_000
}

fn begins_anew(sums: &ObservationSums, before: &ObservationSums) -> bool {
    sums.begun_nanos != before.begun_nanos
}

impl PeerLimit {
    fn new(entry: &LimitEntry) -> Self {
        let (state, sums) = (entry.state, entry.sums);
        Self { heard: Time::ZERO, state, sums, window: sums }
    }

    fn take(&mut self, entry: &LimitEntry, now: Time) {
        if begins_anew(&entry.sums, &self.sums) {
            self.window = entry.sums;
        }
        (self.heard, self.state, self.sums) = (now, entry.state, entry.sums);
    }
}

impl PeerView {
    fn add(&mut self, member: SocketAddr, told: &PeerLimit, is_heard: bool) {
        let in_flight = told.state.in_flight_milli as f64 / 1000.0;
        self.in_flight += in_flight;
        let observed = told.sums.since(&told.window);
        if is_heard && observed.observed_nanos > 0 {
            self.observed.push(observed);
        } else {
            self.unobserved += in_flight;
        }
        let reported = Some(told.state.reported).filter(|&it| is_heard && it > 0);
        self.reported = self.reported.or(reported);
        if is_heard {
            let demand = told.state.demand_milli as f64 / 1000.0;
            self.demands.push(ReplicaDemand { member, demand });
            self.claims = self.claims.saturating_add(told.state.claim);
        } else {
            self.silent_claims = self.silent_claims.saturating_add(told.state.claim);
        }
    }

    /// True if peers have hardly any requests in flight, so that levels are those of this replica.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight < 0.1
    }

    /// Returns the mean number of requests in flight at peers, rounded.
    pub(super) fn requests(&self) -> u32 {
        self.in_flight.min(MAX_REQUESTS as f64).round() as u32
    }

    /// Returns the mean number of requests in flight and queued at peers.
    pub(super) fn demand(&self) -> f64 {
        self.demands.iter().map(|each| each.demand).sum()
    }
}
