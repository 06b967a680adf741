//! Simulated servers that close idle connections in different ways, and a pool that consults the
//! history.

use std::ops::Range;

use super::*;
use crate::rng::Rng;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

/// Behaviour of a server after a response on a connection.
#[derive(Clone)]
struct Server {
    /// True if it reads a second request that arrives before it closes.
    reads_on: bool,
    /// Nanoseconds from the response to its close.
    closes_after: Range<u64>,
    /// Nanoseconds from its close until the client sees it; a request takes as long.
    transit: Range<u64>,
}

impl Server {
    /// Returns a server that closes after each response, without saying so.
    fn closing_each() -> Self {
        Self { reads_on: false, closes_after: 0..5 * MILLISECOND, transit: 10_000..2 * MILLISECOND }
    }

    fn closing_after(idle: u64) -> Self {
        Self { reads_on: true, closes_after: idle..idle + 1, transit: 10_000..MILLISECOND }
    }
}

struct Connection {
    idle_since: u64,
    closes_at: u64,
    seen_closed_at: u64,
}

/// Connection pool of a worker: last in, first out; a connection that may not be used stays and is
/// observed.
struct Pool {
    server: Server,
    history: IdleHistory,
    idle: Vec<Connection>,
    now: u64,
    rng: Rng,
    fresh: u32,
    lost_posts: u32,
}

impl Pool {
    const IDLE_CONNECTIONS: usize = 8;

    fn new(server: Server, seed: u64) -> Self {
        let history = IdleHistory::default();
        Self { server, history, idle: vec![], now: 0, rng: Rng::new(seed), fresh: 0, lost_posts: 0 }
    }

    /// Sends a request after a gap; a `replayable` one that is lost is sent again.
    fn send(&mut self, gap: Range<u64>, replayable: bool) {
        self.now += self.draw(&gap);
        self.look();
        if self.reused(replayable) {
            return;
        }
        self.fresh += 1;
        self.respond();
    }

    /// Reports the state of the idle connections.
    fn look(&mut self) {
        let (now, history) = (self.now, &self.history);
        self.idle.retain(|connection| {
            let age = Duration::from_nanos(now - connection.idle_since);
            let open = now < connection.seen_closed_at;
            if open {
                history.found_open(age)
            } else {
                history.found_closed(age)
            }
            open
        });
    }

    /// True if the request has been answered on the youngest connection.
    fn reused(&mut self, replayable: bool) -> bool {
        let Some(youngest) = self.idle.last() else { return false };
        let age = Duration::from_nanos(self.now - youngest.idle_since);
        if !self.history.may_reuse(age, replayable) {
            return false;
        }
        let connection = self.idle.pop().expect("the pool is not empty");
        let arrives_at = self.now + self.draw(&self.server.transit.clone());
        if self.server.reads_on && arrives_at < connection.closes_at {
            self.history.served_again();
            self.respond();
            return true;
        }
        self.history.found_closed(age);
        self.lost_posts += u32::from(!replayable);
        false
    }

    /// Receives the response, which comes at once; its connection becomes idle.
    fn respond(&mut self) {
        let closes_at = self.now + self.draw(&self.server.closes_after.clone());
        let seen_closed_at = closes_at + self.draw(&self.server.transit.clone());
        self.idle.push(Connection { idle_since: self.now, closes_at, seen_closed_at });
        if self.idle.len() > Self::IDLE_CONNECTIONS {
            // The oldest connection is kept, because it gives the most information.
            self.idle.remove(1);
        }
    }

    /// Restarts the server: all connections are closed, and the client sees it at once.
    fn restart(&mut self) {
        for connection in &mut self.idle {
            (connection.closes_at, connection.seen_closed_at) = (self.now, self.now);
        }
    }

    fn draw(&mut self, range: &Range<u64>) -> u64 {
        range.start + self.rng.below((range.end - range.start) as usize) as u64
    }

    /// Sends requests for this duration, one after each gap; returns how many needed a fresh
    /// connection.
    fn fresh_within(&mut self, duration: u64, gap: Range<u64>, replayable: bool) -> u32 {
        let (end, before) = (self.now + duration, self.fresh);
        while self.now < end {
            self.send(gap.clone(), replayable);
        }
        self.fresh - before
    }
}

/// Sends 10,000 POSTs for each of some seeds, every `nth` request being replayable instead (0 for
/// none); returns the number lost.
fn lost_posts(server: &Server, gap: &Range<u64>, nth: u32) -> u32 {
    let lost = (0..8).map(|seed| {
        let mut pool = Pool::new(server.clone(), seed);
        for request in 1..=10_000 {
            pool.send(gap.clone(), nth > 0 && request % nth == 0);
        }
        pool.lost_posts
    });
    lost.sum()
}

#[test]
fn no_post_is_lost_to_a_server_that_closes_after_each_response() {
    for gap in [1..2, 1..MILLISECOND, 1..10 * MILLISECOND, MILLISECOND..2 * SECOND] {
        for nth in [0, 2, 10] {
            let lost = lost_posts(&Server::closing_each(), &gap, nth);
            assert_eq!(lost, 0, "gaps {gap:?}, every {nth}th replayable");
        }
    }
}

#[test]
fn no_post_is_lost_to_a_server_that_closes_within_the_usual_gaps() {
    let server = Server::closing_after(50 * MILLISECOND);
    for gap in [45 * MILLISECOND..55 * MILLISECOND, 1..60 * MILLISECOND, 1..200 * MILLISECOND] {
        for nth in [0, 2, 10] {
            let lost = lost_posts(&server, &gap, nth);
            assert_eq!(lost, 0, "gaps {gap:?}, every {nth}th replayable");
        }
    }
}

#[test]
fn posts_reuse_connections_to_a_keep_alive_server_after_one_second() {
    for keep_alive in [5 * SECOND, 75 * SECOND] {
        let mut pool = Pool::new(Server::closing_after(keep_alive), 1);
        let gap = 5 * MILLISECOND..15 * MILLISECOND;
        assert!(pool.fresh_within(SECOND, gap.clone(), false) > 50, "nothing is proven yet");
        pool.fresh_within(SECOND / 10, gap.clone(), false);
        assert_eq!(pool.fresh_within(20 * SECOND, gap, false), 0);
        assert_eq!(pool.lost_posts, 0);
    }
}

#[test]
fn one_successful_replayable_reuse_enables_reuse_for_posts() {
    let mut pool = Pool::new(Server::closing_after(5 * SECOND), 1);
    let gap = 10 * MILLISECOND..11 * MILLISECOND;
    pool.fresh_within(SECOND / 10, gap, true);
    assert_eq!(pool.fresh_within(SECOND, 1..5 * MILLISECOND, false), 0);
}

#[test]
fn server_restart_disables_reuse_only_temporarily() {
    for replayable in [true, false] {
        let mut pool = Pool::new(Server::closing_after(5 * SECOND), 1);
        let gap = 5 * MILLISECOND..15 * MILLISECOND;
        pool.fresh_within(3 * SECOND, gap.clone(), replayable);
        pool.restart();
        pool.fresh_within(2 * SECOND, gap.clone(), replayable);
        assert_eq!(pool.fresh_within(20 * SECOND, gap, replayable), 0, "replayable: {replayable}");
    }
}

#[test]
fn reuse_is_regained_by_trial_reuses() {
    let history = IdleHistory::default();
    history.found_closed(Duration::ZERO);
    let age = Duration::from_millis(10);
    let allowed = (0..2 * TRIAL_INTERVAL).filter(|_| history.may_reuse(age, true)).count();
    assert_eq!(allowed, 2, "one trial in {TRIAL_INTERVAL}");
    history.found_open(age);
    assert!(history.may_reuse(Duration::from_secs(1), true));
}
