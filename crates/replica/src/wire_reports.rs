//! Wire form of reports. Numbers are unsigned integers: none is negative, infinite or not a number.

use std::net::SocketAddr;
use std::time::Duration;

use balance::peer_reports::{
    BackendHash, DemandMessage, DemandReport, MAX_DEMAND_REPORTS, MAX_OUTAGE_REPORTS,
    MAX_REFUSAL_REPORTS, MAX_ROUTE_REPORTS, OutageMessage, REPORTED_WINDOWS, RefusalMessage,
    RefusalReport, ReportedDemand, ReportedRates, RouteHash, RouteReport,
};
use prost::Message;

use crate::wire::{WireAddress, WireError, address};

/// Number of kinds of demand.
const KINDS: usize = 3;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireDemandMessage {
    #[prost(message, repeated, tag = "1")]
    reports: Vec<WireDemandReport>,
    #[prost(message, repeated, tag = "2")]
    routes: Vec<WireRouteReport>,
}

#[derive(Clone, PartialEq, Message)]
struct WireDemandReport {
    /// A hash: its bytes are rarely zero.
    #[prost(fixed64, tag = "1")]
    backend: u64,
    /// In flight, queued and rejected in thousandths of a request: now, and then the averages over
    /// each window. A later version may have more of them.
    #[prost(uint64, repeated, tag = "2")]
    demand_milli: Vec<u64>,
    /// Rates, as a route report has them. A sender that does not know the field leaves it out.
    #[prost(uint64, repeated, tag = "3")]
    rates_milli: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct WireRouteReport {
    /// A hash: its bytes are rarely zero.
    #[prost(fixed64, tag = "1")]
    route: u64,
    /// Requests per second and rejected ones, in thousandths.
    #[prost(uint64, repeated, tag = "2")]
    rates_milli: Vec<u64>,
}

impl From<&DemandMessage> for WireDemandMessage {
    fn from(message: &DemandMessage) -> Self {
        let route = |report: &RouteReport| {
            let RouteReport { route, rates } = report;
            WireRouteReport { route: route.0, rates_milli: wire_rates(rates) }
        };
        Self {
            reports: message.reports.iter().map(WireDemandReport::from).collect(),
            routes: message.routes.iter().map(route).collect(),
        }
    }
}

impl TryFrom<WireDemandMessage> for DemandMessage {
    type Error = WireError;

    /// Returns the message. The receiver judges the numbers.
    fn try_from(wire: WireDemandMessage) -> Result<Self, WireError> {
        if wire.reports.len() > MAX_DEMAND_REPORTS || wire.routes.len() > MAX_ROUTE_REPORTS {
            return Err(WireError::Absurd);
        }
        let reports = wire.reports.into_iter().map(DemandReport::try_from);
        let route = |wire: WireRouteReport| {
            let rates = rates(&wire.rates_milli);
            RouteReport { route: RouteHash(wire.route), rates }
        };
        Ok(Self {
            reports: reports.collect::<Result<_, _>>()?,
            routes: wire.routes.into_iter().map(route).collect(),
        })
    }
}

fn wire_rates(rates: &ReportedRates) -> Vec<u64> {
    vec![rates.requests, rates.rejected]
}

/// Returns the rates of a report; those that the sender does not know are zero.
fn rates(milli: &[u64]) -> ReportedRates {
    let rate = |at: usize| milli.get(at).copied().unwrap_or_default();
    ReportedRates { requests: rate(0), rejected: rate(1) }
}

impl From<&DemandReport> for WireDemandReport {
    fn from(report: &DemandReport) -> Self {
        let DemandReport { backend, present, averages, rates } = report;
        let numbers = |it: &ReportedDemand| [it.in_flight, it.queued, it.rejected];
        let demand_milli = [present].into_iter().chain(averages).flat_map(numbers).collect();
        Self { backend: backend.0, demand_milli, rates_milli: wire_rates(rates) }
    }
}

impl TryFrom<WireDemandReport> for DemandReport {
    type Error = WireError;

    fn try_from(wire: WireDemandReport) -> Result<Self, WireError> {
        let (demands, _) = wire.demand_milli.as_chunks::<KINDS>();
        let mut demands = demands.iter().map(|&[in_flight, queued, rejected]| ReportedDemand {
            in_flight,
            queued,
            rejected,
        });
        let present = demands.next().ok_or(WireError::Absurd)?;
        let mut averages = [ReportedDemand::default(); REPORTED_WINDOWS.len()];
        for average in &mut averages {
            *average = demands.next().ok_or(WireError::Absurd)?;
        }
        let rates = rates(&wire.rates_milli);
        Ok(Self { backend: BackendHash(wire.backend), present, averages, rates })
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireRefusalMessage {
    #[prost(message, repeated, tag = "1")]
    reports: Vec<WireRefusalReport>,
}

#[derive(Clone, PartialEq, Message)]
struct WireRefusalReport {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<WireAddress>,
    #[prost(uint32, tag = "2")]
    limit: u32,
    #[prost(uint64, tag = "3")]
    remaining_millis: u64,
}

impl From<&RefusalMessage> for WireRefusalMessage {
    fn from(message: &RefusalMessage) -> Self {
        let report = |report: &RefusalReport| {
            let millis = report.remaining.as_millis();
            WireRefusalReport {
                endpoint: Some(report.endpoint.into()),
                limit: report.limit,
                remaining_millis: u64::try_from(millis).unwrap_or(u64::MAX),
            }
        };
        Self { reports: message.reports.iter().map(report).collect() }
    }
}

impl TryFrom<WireRefusalMessage> for RefusalMessage {
    type Error = WireError;

    /// Returns the message. The receiver judges the numbers.
    fn try_from(wire: WireRefusalMessage) -> Result<Self, WireError> {
        if wire.reports.len() > MAX_REFUSAL_REPORTS {
            return Err(WireError::Absurd);
        }
        let report = |wire: WireRefusalReport| {
            Ok(RefusalReport {
                endpoint: address(wire.endpoint)?,
                limit: wire.limit,
                remaining: Duration::from_millis(wire.remaining_millis),
            })
        };
        Ok(Self { reports: wire.reports.into_iter().map(report).collect::<Result<_, _>>()? })
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireOutageMessage {
    /// Endpoints; a later version may say more about each.
    #[prost(message, repeated, tag = "1")]
    outages: Vec<WireOutage>,
    /// Endpoints that are ejected.
    #[prost(message, repeated, tag = "2")]
    ejected: Vec<WireOutage>,
}

#[derive(Clone, PartialEq, Message)]
struct WireOutage {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<WireAddress>,
}

impl From<&OutageMessage> for WireOutageMessage {
    fn from(message: &OutageMessage) -> Self {
        let outage = |&endpoint: &SocketAddr| WireOutage { endpoint: Some(endpoint.into()) };
        Self {
            outages: message.endpoints.iter().map(outage).collect(),
            ejected: message.ejected.iter().map(outage).collect(),
        }
    }
}

impl TryFrom<WireOutageMessage> for OutageMessage {
    type Error = WireError;

    fn try_from(wire: WireOutageMessage) -> Result<Self, WireError> {
        let addresses = |list: Vec<WireOutage>| match list.len() <= MAX_OUTAGE_REPORTS {
            true => list.into_iter().map(|outage| address(outage.endpoint)).collect(),
            false => Err(WireError::Absurd),
        };
        Ok(Self { endpoints: addresses(wire.outages)?, ejected: addresses(wire.ejected)? })
    }
}
