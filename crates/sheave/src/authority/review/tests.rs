//! Tests of reviews: a year of authorities and certificates, with clocks that differ.

use replica::ReplicaCertificates;

use super::*;
use crate::authority::{AUTHORITY_LIFETIME, DAY, SecretData, test_purpose};

const START: u64 = 1_800_000_000;
const HOUR: u64 = 3600;

/// Replicas, and the Secret with its version.
struct Installation {
    secret: SecretContent,
    version: u64,
    replicas: Vec<TestReplica>,
}

struct TestReplica {
    state: KeeperState,
    /// Seconds by which its clock is fast or slow.
    skew: i64,
    /// Secret and version that it has read last.
    read: Option<(SecretContent, u64)>,
    /// True while the API server does not answer it.
    is_cut_off: bool,
}

impl TestReplica {
    fn new() -> Self {
        Self { state: KeeperState::new(test_purpose()), skew: 0, read: None, is_cut_off: false }
    }

    fn certificates(&self) -> ReplicaCertificates {
        certificates(self.state.issued.as_ref().unwrap())
    }
}

fn certificates(issued: &IssuedCertificate) -> ReplicaCertificates {
    let [chain, key, bundle] = [&issued.chain, &issued.key, &issued.bundle].map(|it| it.as_bytes());
    ReplicaCertificates::from_pem(chain, key, bundle).unwrap()
}

fn read(data: &SecretData) -> SecretContent {
    SecretContent::read(&test_purpose(), test_purpose().secret_type, data)
}

impl Installation {
    fn new(skews: &[i64]) -> Self {
        let replica = |&skew| TestReplica { skew, ..TestReplica::new() };
        let replicas = skews.iter().map(replica).collect();
        Self { secret: SecretContent::Absent, version: 0, replicas }
    }

    /// Lets all replicas read the Secret, and then each write what it finds due in what it has read.
    fn review_all(&mut self, now: u64) {
        for replica in &mut self.replicas {
            if !replica.is_cut_off {
                replica.read = Some((self.secret.clone(), self.version));
            }
        }
        for replica in &mut self.replicas {
            let content = replica.read.as_ref().map(|(content, _)| content);
            let time = now.saturating_add_signed(replica.skew);
            let review = replica.state.review(content, time);
            let version = replica.read.as_ref().map(|(_, version)| *version);
            if let Some((_, authorities)) = review.write
                && !replica.is_cut_off
                && version == Some(self.version)
            {
                // Through the Secret and back.
                let data = authorities.data();
                self.secret = read(&data);
                assert_eq!(self.secret, SecretContent::Authorities(authorities));
                self.version += 1;
            }
        }
    }

    fn settle(&mut self, now: u64) {
        (0..4).for_each(|_| self.review_all(now));
    }

    /// Checks that each replica accepts the certificate of each other one, by its own clock.
    fn check_all_trust_all(&self, now: u64) {
        for (one, verifier) in self.replicas.iter().enumerate() {
            let time = now.saturating_add_signed(verifier.skew);
            let own = verifier.certificates();
            for (other, peer) in self.replicas.iter().enumerate() {
                let verified = own.verify_peer(&peer.certificates(), time);
                assert!(verified.is_ok(), "{one} refuses {other} at {now}: {verified:?}");
            }
        }
    }

    fn current(&self) -> String {
        let SecretContent::Authorities(set) = &self.secret else { panic!("{:?}", self.secret) };
        set.current.name()
    }
}

#[test]
fn replicas_trust_one_another_through_three_rotations() {
    // Clocks differ by up to 50 minutes. Replica 2 has no API server for six days at a time.
    let mut installation = Installation::new(&[0, -1500, 1500, 400]);
    installation.settle(START);
    let mut authorities = vec![installation.current()];
    for hour in (0..200 * 24).step_by(3) {
        let now = START + hour * HOUR;
        installation.replicas[2].is_cut_off = hour % (8 * 24) >= 2 * 24;
        installation.review_all(now);
        // In between each has read and issued what it will, and not all have read the last change.
        installation.check_all_trust_all(now);
        if authorities.last() != Some(&installation.current()) {
            authorities.push(installation.current());
        }
    }
    // The first one issues for 67 days, each next one for 60.
    assert_eq!(authorities.len(), 4, "{authorities:?}");
    // Created once; each is published and promoted, and the one before it is removed.
    assert_eq!(installation.version, 1 + 3 * 3);
}

#[test]
fn certificates_are_renewed_after_half_of_their_day() {
    let mut installation = Installation::new(&[0]);
    installation.settle(START);
    let expiry = |it: &Installation| it.replicas[0].state.issued.as_ref().unwrap().not_after;
    assert_eq!(expiry(&installation), START + DAY);
    installation.settle(START + DAY / 2 - 1);
    assert_eq!(expiry(&installation), START + DAY);
    installation.settle(START + DAY / 2);
    assert_eq!(expiry(&installation), START + DAY + DAY / 2);
    // A clock that is set back makes certificates that are valid again.
    installation.settle(START - DAY / 2);
    let replica = &installation.replicas[0];
    assert_eq!(expiry(&installation), START + DAY + DAY / 2, "the authority is not valid yet");
    assert!(replica.state.problem.as_ref().unwrap().contains("clock"));
}

#[test]
fn deleted_secret_is_created_anew_and_the_old_authority_is_no_longer_trusted() {
    let mut installation = Installation::new(&[0, 0]);
    installation.settle(START);
    let before = installation.current();
    let old = installation.replicas[0].certificates();
    installation.secret = SecretContent::Absent;
    installation.version += 1;
    installation.settle(START + HOUR);
    assert_ne!(installation.current(), before);
    installation.check_all_trust_all(START + HOUR);
    let new = installation.replicas[1].certificates();
    assert!(new.verify_peer(&old, START + HOUR).is_err());
}

#[test]
fn former_certificates_stay_in_use_and_are_renewed_while_the_secret_cannot_be_used() {
    let foreign = SecretContent::Foreign(test_purpose().secret_type);
    for secret in [foreign, read(&SecretData::new())] {
        let mut installation = Installation::new(&[0, 0]);
        installation.settle(START);
        installation.secret = secret.clone();
        installation.version += 1;
        let version = installation.version;
        for day in 0..60 {
            installation.settle(START + day * DAY);
            installation.check_all_trust_all(START + day * DAY);
            assert!(installation.replicas[0].state.problem.is_some());
        }
        assert_eq!((&installation.secret, installation.version), (&secret, version), "unchanged");
    }
}

#[test]
fn replica_that_starts_with_an_unusable_secret_has_no_certificate_until_it_is_replaced() {
    let mut installation = Installation::new(&[0]);
    installation.secret = SecretContent::Foreign(test_purpose().secret_type);
    installation.settle(START);
    assert!(installation.replicas[0].state.issued.is_none());
    installation.secret = SecretContent::Absent;
    installation.settle(START);
    installation.check_all_trust_all(START);
}

#[test]
fn installation_that_was_stopped_for_long_starts_over() {
    let mut installation = Installation::new(&[0, 0]);
    installation.settle(START);
    let before = installation.current();
    let later = START + AUTHORITY_LIFETIME + DAY;
    installation.settle(later);
    assert_ne!(installation.current(), before);
    installation.check_all_trust_all(later);
}

#[test]
fn authority_made_with_a_slow_clock_is_replaced() {
    // The node's clock is in 1970 until NTP has set it.
    let mut installation = Installation::new(&[-(START as i64) + 1000]);
    installation.settle(START);
    installation.replicas[0].skew = 0;
    installation.replicas.push(TestReplica::new());
    installation.settle(START);
    installation.check_all_trust_all(START);
}
