//! The sessions with all routers: each has a task, which connects again when its session ends.

use std::collections::BTreeMap;
use std::time::Duration;

use rustbgpd_fsm::SessionState;
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::connect::connect;
use crate::connection::{self, SessionInputs, StopReason};
use crate::next_hop::NextHops;
use crate::report::{PeerReport, SharedReport};
use crate::session::PeerSession;
use crate::settings::{PeerSettings, RouteTable, SpeakerIdentity};

/// Pause before the first further connection attempt, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Time limit for the last messages of all sessions.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Announces routes to routers. Needs a running tokio runtime.
pub struct BgpSpeaker {
    identity: SpeakerIdentity,
    routes: Sender<RouteTable>,
    peers: BTreeMap<String, PeerHandle>,
}

/// The task of one router.
struct PeerHandle {
    settings: PeerSettings,
    stop: Sender<StopReason>,
    report: SharedReport,
    task: JoinHandle<()>,
}

impl BgpSpeaker {
    /// Returns a speaker without routers.
    #[must_use]
    pub fn new(identity: SpeakerIdentity) -> Self {
        Self { identity, routes: channel(RouteTable::new()).0, peers: BTreeMap::new() }
    }

    /// Opens sessions with these routers. A session with other settings, or with none, is closed.
    pub fn set_peers(&mut self, peers: Vec<PeerSettings>) {
        let peers: BTreeMap<_, _> = peers.into_iter().map(|it| (it.name.clone(), it)).collect();
        self.peers.retain(|name, handle| {
            let stays = peers.get(name) == Some(&handle.settings);
            if !stays {
                handle.stop.send_replace(Some("the configuration has changed".to_owned()));
            }
            stays
        });
        for (name, settings) in peers {
            self.peers.entry(name).or_insert_with(|| {
                PeerHandle::start(settings, &self.identity, self.routes.subscribe())
            });
        }
    }

    /// Replaces the routes: routers are told the difference.
    pub fn set_routes(&self, routes: RouteTable) {
        self.routes.send_if_modified(|before| std::mem::replace(before, routes) != *before);
    }

    /// Returns the state of all sessions, sorted by name.
    #[must_use]
    pub fn reports(&self) -> Vec<PeerReport> {
        self.peers.values().map(|peer| peer.report.lock().clone()).collect()
    }

    /// Closes all sessions, with a reason for operators of routers.
    pub async fn shut_down(self, reason: &str) {
        for peer in self.peers.values() {
            peer.stop.send_replace(Some(reason.to_owned()));
        }
        let all = async {
            for peer in self.peers.into_values() {
                // A task that panicked has no session.
                drop(peer.task.await);
            }
        };
        if timeout(STOP_TIMEOUT, all).await.is_err() {
            tracing::warn!("a router does not take the end of its session");
        }
    }
}

impl PeerHandle {
    fn start(
        settings: PeerSettings,
        identity: &SpeakerIdentity,
        routes: Receiver<RouteTable>,
    ) -> Self {
        let (stop, stopped) = channel(None);
        let report = SharedReport::new(&settings.name);
        let task = PeerTask {
            settings: settings.clone(),
            identity: identity.clone(),
            routes,
            stop: stopped,
            report: report.clone(),
        };
        Self { settings, stop, report, task: tokio::spawn(task.run()) }
    }
}

/// The sessions with one router, one after the other.
struct PeerTask {
    settings: PeerSettings,
    identity: SpeakerIdentity,
    routes: Receiver<RouteTable>,
    stop: Receiver<StopReason>,
    report: SharedReport,
}

impl PeerTask {
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut logged = String::new();
        loop {
            let before = self.report.lock().counts.established;
            let reason = self.attempt().await;
            if self.is_stopped() {
                self.report.lock().state = SessionState::Idle;
                return;
            }
            let was_up = self.report.lock().counts.established > before;
            if was_up {
                pause = FIRST_PAUSE;
                logged.clear();
            }
            self.record_failure(&reason, &mut logged);
            let mut stop = self.stop.clone();
            tokio::select! {
                () = sleep(pause) => {}
                _ = stop.wait_for(Option::is_some) => return,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Connects and runs one session; returns why it ended.
    async fn attempt(&mut self) -> String {
        self.report.lock().state = SessionState::Connect;
        let mut stop = self.stop.clone();
        let connected = tokio::select! {
            connected = connect(&self.settings) => connected,
            _ = stop.wait_for(Option::is_some) => return String::new(),
        };
        let local = connected.and_then(|stream| Ok((stream.local_addr()?, stream)));
        let (local, stream) = match local {
            Ok(connected) => connected,
            Err(error) => return error.to_string(),
        };
        let next_hops = NextHops::of_session(local.ip());
        let session = PeerSession::new(self.settings.clone(), self.identity.router_id, next_hops);
        let inputs = SessionInputs {
            routes: &mut self.routes,
            stop: &mut self.stop,
            hold_time: Duration::from_secs(self.settings.hold_time.into()),
        };
        connection::run(stream, session, inputs, &self.report).await
    }

    fn is_stopped(&self) -> bool {
        // The speaker may have been dropped.
        self.stop.has_changed().is_err() || self.stop.borrow().is_some()
    }

    /// Counts a failure, and logs it unless the attempt before failed for the same reason.
    fn record_failure(&self, reason: &str, logged: &mut String) {
        let PeerSettings { name, address, .. } = &self.settings;
        if logged != reason {
            tracing::warn!(peer = name, %address, reason, "no BGP session");
            reason.clone_into(logged);
        }
        let mut report = self.report.lock();
        report.state = SessionState::Idle;
        report.routes = 0;
        report.counts.failures += 1;
        reason.clone_into(&mut report.error);
    }
}
