//! The cases as data, and what each requires besides complete responses. Names are those of quic-interop-runner, whose
//! conditions these follow; `ecn` marks datagrams, which it does not.

use std::time::Duration;

use anyhow::ensure;
use tests::Result;
use tests::udp_relay::{DirectionRecord, LineConditions, LineOutage, LineRebinding, PacketKind};

use super::case_run::CaseEvidence;
use crate::http3::FixtureOptions;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// Delay of a line, in each direction: 10 ms are a round trip within a country.
const DELAY: Duration = Duration::from_millis(5);
/// Length of each request body of the case `http3`.
const UPLOAD_BYTES: u64 = 100_000;

/// A case.
pub(super) struct InteropCase {
    pub(super) name: &'static str,
    pub(super) connections: u64,
    /// Requests of each connection, all at once.
    pub(super) requests: u64,
    /// Length of each response body.
    pub(super) body_bytes: u64,
    pub(super) conditions: LineConditions,
    pub(super) options: FixtureOptions,
    /// True if other clients make Sheave ask for proofs of the address.
    pub(super) needs_flood: bool,
    pub(super) check: fn(&CaseEvidence) -> Result,
}

impl InteropCase {
    /// A case with one connection and one small response, which requires nothing else.
    fn new(name: &'static str) -> Self {
        Self {
            name,
            connections: 1,
            requests: 1,
            body_bytes: KIB,
            conditions: LineConditions { delay: DELAY, seed: 1, ..LineConditions::default() },
            options: FixtureOptions::default(),
            needs_flood: false,
            check: |_evidence| Ok(()),
        }
    }

    fn with_responses(self, requests: u64, body_bytes: u64) -> Self {
        Self { requests, body_bytes, ..self }
    }

    fn with_check(self, check: fn(&CaseEvidence) -> Result) -> Self {
        Self { check, ..self }
    }

    fn with_loss(mut self, percent: u64) -> Self {
        self.conditions.loss_percent = percent;
        self.with_check(|seen| check_line(seen, "dropped", |direction| direction.dropped))
    }

    fn with_corruption(mut self, percent: u64) -> Self {
        self.conditions.corruption_percent = percent;
        self.with_check(|seen| check_line(seen, "corrupted", |direction| direction.corrupted))
    }

    fn with_rebinding(mut self, changes_ip: bool) -> Self {
        self.conditions.rebinding = Some(LineRebinding { every: 300, most: 4, changes_ip });
        self.with_responses(2, MIB).with_check(|seen| {
            let rebindings = seen.record.rebindings;
            ensure!(rebindings == 4 && handshakes(seen) == 1.0, "{rebindings} rebindings");
            Ok(())
        })
    }
}

/// Returns all cases.
pub(super) fn all() -> Vec<InteropCase> {
    let mut cases = handshakes_of_all_kinds();
    cases.extend(transfers());
    cases.extend(bad_lines());
    cases.extend(moving_clients());
    cases
}

fn handshakes_of_all_kinds() -> Vec<InteropCase> {
    let new = InteropCase::new;
    let mut retry = new("retry");
    retry.needs_flood = true;
    // Each worker counts handshakes of its own.
    retry.options.arguments = &["--workers", "1"];
    let mut early = new("zerortt");
    early.options.zero_rtt = true;
    // Long enough for a busy machine to read the request before the handshake can end.
    early.conditions.delay = Duration::from_millis(100);
    let mut ipv6 = new("ipv6");
    ipv6.options.address = "::1";
    vec![
        new("handshake").with_check(|seen| {
            ensure!(seen.full_handshakes == 1.0 && from_server(seen, PacketKind::Retry) == 0);
            Ok(())
        }),
        new("chacha20"),
        retry.with_check(|seen| {
            ensure!(from_server(seen, PacketKind::Retry) > 0, "no Retry");
            Ok(())
        }),
        InteropCase { connections: 2, ..new("resumption") }.with_check(|seen| {
            let (full, resumed) = (seen.full_handshakes, seen.resumed_handshakes);
            ensure!(full == 1.0 && resumed == 1.0, "{full} full handshakes, {resumed} resumed");
            Ok(())
        }),
        InteropCase { connections: 2, ..early }.with_check(|seen| {
            ensure!(seen.record.from_client.packets(PacketKind::ZeroRtt) > 0, "no 0-RTT packet");
            ensure!(has_fact(seen, "early-data") && seen.early_requests == 1, "not accepted");
            Ok(())
        }),
        new("versionnegotiation").with_check(|seen| {
            ensure!(seen.record.from_client.packets(PacketKind::OtherVersion) > 0);
            ensure!(from_server(seen, PacketKind::VersionNegotiation) > 0);
            Ok(())
        }),
        ipv6,
    ]
}

fn transfers() -> Vec<InteropCase> {
    let new = InteropCase::new;
    let mut long = new("longrtt");
    long.conditions.delay = Duration::from_millis(750);
    let mut marked = new("ecn").with_responses(1, MIB);
    marked.conditions.mark_percent = 1;
    vec![
        // The client's windows are small.
        new("transfer").with_responses(3, MIB),
        new("http3").with_responses(3, 500_000).with_check(|seen| {
            ensure!(seen.uploads == [UPLOAD_BYTES; 3], "{:?}", seen.uploads);
            Ok(())
        }),
        new("multiplexing").with_responses(1000, 32),
        long.with_responses(1, 10 * KIB),
        new("keyupdate").with_responses(1, MIB).with_check(|seen| {
            ensure!(has_fact(seen, "key-update"), "no key update");
            Ok(())
        }),
        marked.with_check(|seen| {
            // Either side stops after some ten datagrams if the other's counts are missing or wrong (RFC 9000
            // §13.4.2). s2n-quic pauses until it knows.
            for direction in [&seen.record.from_client, &seen.record.from_server] {
                let DirectionRecord { datagrams, ecn_capable, .. } = direction;
                ensure!(ecn_capable * 2 >= *datagrams, "{ecn_capable} of {datagrams} capable");
            }
            Ok(())
        }),
    ]
}

fn bad_lines() -> Vec<InteropCase> {
    let new = InteropCase::new;
    let mut outage = new("blackhole").with_responses(1, 2 * MIB);
    outage.conditions.outage = Some(LineOutage { after: 300, duration: Duration::from_secs(2) });
    let mut large_certificate = new("amplificationlimit");
    large_certificate.options.names = (0..200).map(|n| format!("{n:0>50}.test")).collect();
    large_certificate.conditions.dropped_from_client = 2..8;
    vec![
        InteropCase { connections: 10, ..new("handshakeloss") }.with_loss(30),
        new("transferloss").with_responses(2, MIB).with_loss(2),
        InteropCase { connections: 10, ..new("handshakecorruption") }.with_corruption(30),
        new("transfercorruption").with_responses(2, MIB).with_corruption(2),
        outage.with_check(|seen| {
            ensure!(seen.record.from_server.dropped > 0, "no outage");
            Ok(())
        }),
        large_certificate.with_check(|seen| {
            let ratio = seen.record.amplification;
            // At 3 times what it has received the server waits (RFC 9000 §8.1).
            ensure!(ratio <= 3.0, "{ratio} times as many bytes");
            ensure!(seen.record.from_client.dropped > 0, "nothing was dropped");
            Ok(())
        }),
    ]
}

fn moving_clients() -> Vec<InteropCase> {
    let new = InteropCase::new;
    vec![
        new("rebind-port").with_rebinding(false),
        new("rebind-addr").with_rebinding(true),
        new("connectionmigration").with_responses(1, 2 * MIB).with_check(|seen| {
            let flows = seen.record.flows;
            ensure!(flows == 2 && handshakes(seen) == 1.0, "{flows} addresses");
            Ok(())
        }),
    ]
}

/// Checks that the line has done something to some datagrams.
fn check_line(seen: &CaseEvidence, what: &str, count: fn(&DirectionRecord) -> u64) -> Result {
    let total = count(&seen.record.from_client) + count(&seen.record.from_server);
    ensure!(total > 0, "no datagram was {what}");
    Ok(())
}

fn handshakes(seen: &CaseEvidence) -> f64 {
    seen.full_handshakes + seen.resumed_handshakes
}

fn from_server(seen: &CaseEvidence, kind: PacketKind) -> u64 {
    seen.record.from_server.packets(kind)
}

fn has_fact(seen: &CaseEvidence, fact: &str) -> bool {
    seen.facts.iter().any(|seen| seen == fact)
}
