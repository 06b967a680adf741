//! Wire form of reports, and their delivery.

use std::net::IpAddr;

use balance::peer_reports::{
    BackendHash, DemandMessage, DemandReport, MAX_DEMAND_REPORTS, MAX_OUTAGE_REPORTS,
    MAX_REFUSAL_REPORTS, MAX_REPORTED_DEMAND_MILLI, MAX_REPORTED_RATE_MILLI, MAX_ROUTE_REPORTS,
    OutageMessage, REPORTED_WINDOWS, RefusalMessage, RefusalReport, ReportedDemand, ReportedRates,
    RouteHash, RouteReport,
};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::frame::message_frame;
use crate::wire::{FrameBody, WireError};

/// Tag of the last kind of report.
const LAST_KIND: u8 = 5;

fn demand() -> impl Strategy<Value = ReportedDemand> {
    any::<[u64; 3]>().prop_map(|[in_flight, queued, rejected]| ReportedDemand {
        in_flight,
        queued,
        rejected,
    })
}

fn demand_report() -> impl Strategy<Value = DemandReport> {
    (any::<u64>(), demand(), vec(demand(), REPORTED_WINDOWS.len()), rates()).prop_map(
        |(backend, present, averages, rates)| DemandReport {
            backend: BackendHash(backend),
            present,
            averages: averages.try_into().unwrap(),
            rates,
        },
    )
}

fn rates() -> impl Strategy<Value = ReportedRates> {
    any::<[u64; 2]>().prop_map(|[requests, rejected]| ReportedRates { requests, rejected })
}

fn route_report() -> impl Strategy<Value = RouteReport> {
    (any::<u64>(), rates())
        .prop_map(|(route, rates)| RouteReport { route: RouteHash(route), rates })
}

/// Returns the message that a receiver decodes.
fn over_the_wire(message: &ReplicaMessage) -> Result<ReplicaMessage, WireError> {
    let mut bytes = BytesMut::new();
    assert!(append_frame(&message_frame(message), &mut bytes));
    let mut buffer = FrameBuffer::default();
    buffer.append(&bytes);
    decode(buffer.next_frame(MAX_FRAME_BYTES).unwrap().unwrap())
}

fn decode(frame: WireFrame) -> Result<ReplicaMessage, WireError> {
    match frame.body {
        Some(FrameBody::Demand(demand)) => demand.try_into().map(ReplicaMessage::Demand),
        Some(FrameBody::Refusals(refusals)) => refusals.try_into().map(ReplicaMessage::Refusals),
        Some(FrameBody::Outages(outages)) => outages.try_into().map(ReplicaMessage::Outages),
        other => panic!("{other:?}"),
    }
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
}

fn refusal_report() -> impl Strategy<Value = RefusalReport> {
    // Milliseconds that fit a duration.
    (address(), any::<u32>(), any::<u64>()).prop_map(|(endpoint, limit, millis)| RefusalReport {
        endpoint,
        limit,
        remaining: Duration::from_millis(millis),
    })
}

proptest! {
    #[test]
    fn demand_survives_the_wire(
        reports in vec(demand_report(), 0..9),
        routes in vec(route_report(), 0..9),
    ) {
        let message = ReplicaMessage::Demand(DemandMessage { reports, routes });
        prop_assert_eq!(over_the_wire(&message), Ok(message));
    }

    #[test]
    fn refusals_survive_the_wire(reports in vec(refusal_report(), 0..9)) {
        let message = ReplicaMessage::Refusals(RefusalMessage { reports });
        prop_assert_eq!(over_the_wire(&message), Ok(message));
    }

    #[test]
    fn outages_survive_the_wire(endpoints in vec(address(), 0..9), ejected in vec(address(), 0..9)) {
        let message = ReplicaMessage::Outages(OutageMessage { endpoints, ejected });
        prop_assert_eq!(over_the_wire(&message), Ok(message));
    }

    #[test]
    fn random_reports_are_refused_or_ignored(
        kind in 3..=LAST_KIND,
        bytes in vec(any::<u8>(), 0..120),
    ) {
        let mut frame = vec![kind << 3 | 2, bytes.len() as u8];
        frame.extend_from_slice(&bytes);
        if let Ok(frame) = WireFrame::decode(&*frame)
            && frame.body.is_some()
        {
            let _judged = decode(frame);
        }
    }
}

/// Returns a message of the largest reports that a receiver accepts.
fn largest_demand(reports: usize, routes: usize) -> ReplicaMessage {
    let most = MAX_REPORTED_DEMAND_MILLI;
    let demand = ReportedDemand { in_flight: most, queued: most, rejected: most };
    let averages = [demand; REPORTED_WINDOWS.len()];
    let rates =
        ReportedRates { requests: MAX_REPORTED_RATE_MILLI, rejected: MAX_REPORTED_RATE_MILLI };
    let report = DemandReport { backend: BackendHash(u64::MAX), present: demand, averages, rates };
    let route = RouteReport { route: RouteHash(u64::MAX), rates };
    let (reports, routes) = (vec![report; reports], vec![route; routes]);
    ReplicaMessage::Demand(DemandMessage { reports, routes })
}

#[test]
fn largest_message_of_demand_fits_a_frame() {
    let mut bytes = BytesMut::new();
    let largest = largest_demand(MAX_DEMAND_REPORTS, MAX_ROUTE_REPORTS);
    assert!(append_frame(&message_frame(&largest), &mut bytes));
    assert!(bytes.len() < 46_000, "{} bytes", bytes.len());
    for too_many in
        [largest_demand(MAX_DEMAND_REPORTS + 1, 0), largest_demand(0, MAX_ROUTE_REPORTS + 1)]
    {
        assert_eq!(over_the_wire(&too_many), Err(WireError::Absurd));
    }
}

#[test]
fn largest_message_of_refusals_fits_a_frame() {
    let endpoint = SocketAddr::from(([u16::MAX; 8], u16::MAX));
    let report = RefusalReport { endpoint, limit: u32::MAX, remaining: Duration::from_secs(60) };
    let message =
        |reports| ReplicaMessage::Refusals(RefusalMessage { reports: vec![report; reports] });
    let mut bytes = BytesMut::new();
    assert!(append_frame(&message_frame(&message(MAX_REFUSAL_REPORTS)), &mut bytes));
    assert!(bytes.len() < 20_000, "{} bytes", bytes.len());
    let too_many = message(MAX_REFUSAL_REPORTS + 1);
    assert_eq!(over_the_wire(&too_many), Err(WireError::Absurd));
}

#[test]
fn largest_message_of_outages_fits_a_frame() {
    let endpoint = SocketAddr::from(([u16::MAX; 8], u16::MAX));
    let message = |unreachable, ejected| {
        let (endpoints, ejected) = (vec![endpoint; unreachable], vec![endpoint; ejected]);
        ReplicaMessage::Outages(OutageMessage { endpoints, ejected })
    };
    let mut bytes = BytesMut::new();
    let largest = message(MAX_OUTAGE_REPORTS, MAX_OUTAGE_REPORTS);
    assert!(append_frame(&message_frame(&largest), &mut bytes));
    assert!(bytes.len() < 32_000, "{} bytes", bytes.len());
    assert_eq!(over_the_wire(&message(MAX_OUTAGE_REPORTS + 1, 0)), Err(WireError::Absurd));
    assert_eq!(over_the_wire(&message(0, MAX_OUTAGE_REPORTS + 1)), Err(WireError::Absurd));
}

#[test]
fn demand_of_a_later_version_is_understood() {
    let report = |numbers: u8| {
        let numbers: Vec<u8> = (1..=numbers).collect();
        let report = [&[9][..], &[7; 8], &[2 << 3 | 2, numbers.len() as u8], &numbers];
        let mut report = report.concat();
        report.extend([15 << 3, 1]); // A field that we do not know.
        let reports = [&[1 << 3 | 2, report.len() as u8][..], &report].concat();
        let frame = [&[3 << 3 | 2, reports.len() as u8][..], &reports].concat();
        decode(WireFrame::decode(&*frame).unwrap())
    };
    let Ok(ReplicaMessage::Demand(demand)) = report(30) else { panic!("refused") };
    assert_eq!(demand.reports[0].backend, BackendHash(u64::from_le_bytes([7; 8])));
    assert_eq!(demand.reports[0].averages[6].rejected, 24);
    assert_eq!(report(23), Err(WireError::Absurd), "a window is missing");
}

#[tokio::test]
async fn impossible_report_is_refused_and_the_connection_stays() {
    let authority = TestAuthority::new();
    let mut group = TestReplica::group(2, &authority);
    let (mut other, first) = (group.pop().unwrap(), group.pop().unwrap());
    eventually("connected", || first.is_connected_to(other.me.member)).await;
    first.sender.send_to_all(&largest_demand(MAX_DEMAND_REPORTS + 1, 0));
    other.refuses(RefusalReason::Absurd, 1).await;
    let demand = largest_demand(1, 0);
    first.sender.send_to_all(&demand);
    assert_eq!(other.receive().await, ReceivedMessage { from: first.me, message: demand });
    assert_eq!(first.count(|it| &it.connects), 1);
}
