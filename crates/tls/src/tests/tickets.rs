//! Sessions that are resumed at another replica, and keys at their end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use balance::Time;
use balance::shared_keys::{KeySecret, OPENING_TIME, SEALING_TIME, SharedKeySet};
use rustls::HandshakeKind;
use rustls::server::ProducesTickets;

use super::*;

/// Replicas with a clock of the test.
struct Replicas {
    now: Arc<AtomicU64>,
    all: Vec<Replica>,
}

struct Replica {
    keys: SharedKeySet,
    ring: Arc<TicketKeyRing>,
    servers: ServerTlsConfigs,
}

impl Replicas {
    fn new(count: usize) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let replica = |_| {
            let clock = Arc::clone(&now);
            let clock = move || Time::from_nanos(clock.load(Ordering::Relaxed));
            let ring = Arc::new(TicketKeyRing::new(clock));
            let keys = SharedKeySet::new(new_secret().unwrap(), Time::ZERO);
            ring.set(keys.keys());
            let servers = ServerTlsConfigs::new(Some(Arc::clone(&ring)));
            Replica { keys, ring, servers }
        };
        let all = (0..count).map(replica).collect();
        Self { now, all }
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.now.store((self.now() + time).as_nanos(), Ordering::Relaxed);
    }

    /// Has all replicas exchange their keys, for so long.
    fn exchange(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.now() < end {
            self.wait((time / 20).min(Duration::from_secs(60)));
            let now = self.now();
            for turn in 0..self.all.len() {
                self.all[turn].keys.step(turn, new_secret, now);
                let message = self.all[turn].keys.message(now);
                for other in &mut self.all {
                    message.iter().for_each(|it| other.keys.receive(it, now).unwrap());
                }
            }
            self.all.iter().for_each(|replica| replica.ring.set(replica.keys.keys()));
        }
    }

    /// Connects to a replica; returns if the session was resumed.
    fn resumes(&mut self, replica: usize, rule: &SniRule, trust: &Arc<EndpointTlsContext>) -> bool {
        let sites = sites(&mut self.all[replica].servers, vec![rule.clone()]);
        let (client, _) = connected_sessions(trust, config(&sites, "a.example.com"));
        client.common_state().handshake_kind() == Some(HandshakeKind::Resumed)
    }
}

#[test]
fn session_resumes_at_another_replica_and_after_rotation() {
    let authority = TestAuthority::new();
    // Each has a certificate of its own.
    let rule = || site("", &[&authority.certificate(&["a.example.com"])]);
    let trust = authority.trust("a.example.com", &[], None);
    let mut replicas = Replicas::new(3);
    replicas.exchange(Duration::from_secs(10));
    assert!(!replicas.resumes(0, &rule(), &trust));
    for replica in [1, 2, 0, 1] {
        assert!(replicas.resumes(replica, &rule(), &trust), "{replica}");
        // At the end there is another key, and the ticket is one of the last.
        replicas.exchange(SEALING_TIME - Duration::from_secs(60));
    }
    replicas.exchange(OPENING_TIME);
    assert!(!replicas.resumes(2, &rule(), &trust), "the key of the ticket is gone");
}

#[test]
fn session_does_not_resume_without_shared_keys() {
    let authority = TestAuthority::new();
    let rule = site("", &[&authority.certificate(&["a.example.com"])]);
    let trust = authority.trust("a.example.com", &[], None);
    let mut replicas = Replicas::new(2);
    assert!(!replicas.resumes(0, &rule, &trust));
    assert!(replicas.resumes(0, &rule, &trust), "at the same replica");
    assert!(!replicas.resumes(1, &rule, &trust), "at another one");
}

/// A key of such an entry would make tickets for any client.
#[test]
fn entry_that_requests_client_certificates_shares_no_key() {
    let authority = TestAuthority::new();
    let server = authority.certificate(&["a.example.com"]);
    let client = authority.certificate(&["client"]);
    let trust = authority.trust("a.example.com", &[], Some(&client));
    let mut replicas = Replicas::new(2);
    replicas.exchange(Duration::from_secs(10));
    for required in [false, true] {
        let rule = site_for("", &[&server], Some(authority.clients(required)));
        assert!(!replicas.resumes(0, &rule, &trust));
        assert!(replicas.resumes(0, &rule, &trust), "at the same replica");
        assert!(!replicas.resumes(1, &rule, &trust), "at another one");
    }
}

#[test]
fn early_data_needs_a_session_of_this_process() {
    let authority = TestAuthority::new();
    let rule = site("", &[&authority.certificate(&["a.example.com"])]);
    let mut replicas = Replicas::new(1);
    let sites = sites(&mut replicas.all[0].servers, vec![rule]);
    let ServerTlsMode::Terminate(decryption) = &site_of(&sites, "a.example.com").unwrap().mode
    else {
        panic!("not decrypted")
    };
    let quic = decryption.over_quic.as_ref().unwrap();
    assert!(quic.without_early_data.ticketer.enabled());
    assert_eq!(quic.without_early_data.max_early_data_size, 0);
    assert_eq!(decryption.over_tcp.max_early_data_size, 0);
    // Sessions are stored, and each is taken out by its use: no ticket of a shared key is accepted.
    assert!(!quic.with_early_data.ticketer.enabled());
    let ticket = replicas.all[0].ring.encrypt(b"session").unwrap();
    assert_eq!(quic.with_early_data.ticketer.decrypt(&ticket), None);
    assert_eq!(quic.with_early_data.session_storage.take(&ticket), None);
}

#[test]
fn key_ends_without_a_step() {
    let replicas = Replicas::new(1);
    let ring = &replicas.all[0].ring;
    let ticket = ring.encrypt(b"session").unwrap();
    replicas.wait(SEALING_TIME);
    assert_eq!(ring.encrypt(b"session"), None);
    assert_eq!(ring.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
    replicas.wait(OPENING_TIME - SEALING_TIME);
    assert_eq!(ring.decrypt(&ticket), None);
}

#[test]
fn changed_ticket_is_not_opened() {
    let replicas = Replicas::new(2);
    let [ring, other] = [0, 1].map(|replica: usize| &replicas.all[replica].ring);
    let ticket = ring.encrypt(&bytes(300)).unwrap();
    assert_ne!(ring.encrypt(&bytes(300)).unwrap(), ticket, "each has an IV of its own");
    assert_eq!(ring.decrypt(&ticket), Some(bytes(300)));
    assert_eq!(other.decrypt(&ticket), None);
    for length in 0..ticket.len() {
        assert_eq!(ring.decrypt(&ticket[..length]), None, "{length}");
    }
    for bit in 0..ticket.len() * 8 {
        let mut changed = ticket.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ring.decrypt(&changed), None, "{bit}");
    }
    assert_eq!(ring.encrypt(&bytes(1024)), None, "too large");
    assert_eq!(ring.decrypt(&[&ticket[..], &[0; 1024]].concat()), None);
}

/// Replicas of all machines and builds derive the same keys from a secret.
#[test]
fn derived_keys_are_stable() {
    let key = |byte| SharedKeySet::new(KeySecret::new([byte; 32]), Time::ZERO);
    let ring = |byte| {
        let ring = TicketKeyRing::new(|| Time::ZERO);
        ring.set(key(byte).keys());
        ring
    };
    let ticket = ring(1).encrypt(b"session").unwrap();
    assert_eq!(ring(1).decrypt(&ticket).as_deref(), Some(&b"session"[..]));
    assert_eq!(ring(2).decrypt(&ticket), None);
}

/// The content of a ticket is private to rustls: a version must not read that of another.
#[test]
fn content_format_names_the_version_of_rustls() {
    let lock = include_str!("../../../../Cargo.lock");
    let version = lock.split("name = \"rustls\"\nversion = \"").nth(1).unwrap();
    let version = version.split('"').next().unwrap();
    assert!(
        ticket_keys::CONTENT_FORMAT.ends_with(&format!(" {version}")),
        "set CONTENT_FORMAT in ticket_keys.rs to {version}"
    );
}

#[test]
fn keys_are_not_shown() {
    let secret = KeySecret::new([0xab; 32]);
    let ring = TicketKeyRing::new(|| Time::ZERO);
    ring.set(SharedKeySet::new(secret, Time::ZERO).keys());
    assert_eq!(format!("{ring:?}"), "TicketKeyRing { .. }");
}
