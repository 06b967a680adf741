//! Endpoints of the Services of cases.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tests::certificates::CertificateAuthority;
use tests::endpoint::RecordedRequest;
use tests::tls::TlsFront;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep};
use tokio::net::TcpSocket;

use super::table::{ConformanceCase, EndpointKind};

/// Running endpoints by the name of their Service, of all cases of a group.
#[derive(Default)]
pub(super) struct ServiceEndpoints {
    services: BTreeMap<String, Vec<RunningEndpoint>>,
}

/// An endpoint, if there is one at this address.
struct RunningEndpoint {
    address: SocketAddr,
    endpoint: Option<Endpoint>,
    _front: Option<TlsFront>,
    _bound: Option<TcpSocket>,
}

impl ServiceEndpoints {
    /// Starts the endpoints of a case.
    pub(super) async fn start(
        &mut self,
        case: &ConformanceCase,
        authority: &CertificateAuthority,
    ) -> Result {
        for (service, kinds) in &case.services {
            let name = format!("{}-{service}", case.name);
            let mut running = Vec::new();
            for kind in kinds {
                running.push(RunningEndpoint::start(&name, service, kind, authority).await?);
            }
            self.services.insert(name, running);
        }
        Ok(())
    }

    pub(super) fn addresses(&self, service: &str) -> Vec<SocketAddr> {
        self.services[service].iter().map(|endpoint| endpoint.address).collect()
    }

    /// Returns the requests that each endpoint of a case has received.
    pub(super) fn received(
        &self,
        case: &ConformanceCase,
    ) -> BTreeMap<String, Vec<Vec<RecordedRequest>>> {
        let requests =
            |it: &RunningEndpoint| it.endpoint.as_ref().map_or(Vec::new(), Endpoint::requests);
        let of_service = |service: &String| {
            let endpoints = &self.services[&format!("{}-{service}", case.name)];
            (service.clone(), endpoints.iter().map(requests).collect())
        };
        case.services.keys().map(of_service).collect()
    }
}

impl RunningEndpoint {
    async fn start(
        name: &str,
        service: &str,
        kind: &EndpointKind,
        authority: &CertificateAuthority,
    ) -> Result<Self> {
        let answer = ServeStep::AnswerAsRequested(format!("answer of {service}"));
        let behaviour: EndpointBehaviour = match kind {
            EndpointKind::Refuses => {
                // No other server can take the port of a socket that is bound, and does not listen.
                let bound = TcpSocket::new_v4()?;
                bound.bind("127.0.0.1:0".parse()?)?;
                let address = bound.local_addr()?;
                return Ok(Self { address, endpoint: None, _front: None, _bound: Some(bound) });
            }
            EndpointKind::Closes => vec![ServeStep::ReadBody, ServeStep::Close].into(),
            EndpointKind::Ok | EndpointKind::Tls | EndpointKind::UntrustedTls => {
                vec![ServeStep::ReadBody, answer].into()
            }
            EndpointKind::Answers { status, fields } => {
                let fields: String = fields.iter().map(|line| format!("{line}\r\n")).collect();
                EndpointBehaviour::answering(&format!(
                    "HTTP/1.1 {status} Always\r\nContent-Length: 0\r\n{fields}\r\n"
                ))
            }
        };
        let endpoint = Endpoint::start(behaviour).await?;
        let other = CertificateAuthority::new();
        let authority = match kind {
            EndpointKind::Tls => authority,
            EndpointKind::UntrustedTls => &other,
            EndpointKind::Ok
            | EndpointKind::Refuses
            | EndpointKind::Closes
            | EndpointKind::Answers { .. } => {
                let address = endpoint.address;
                return Ok(Self { address, endpoint: Some(endpoint), _front: None, _bound: None });
            }
        };
        let names = [name, "endpoint.test"];
        let front = TlsFront::of(endpoint.address, &authority.issue(&names), &[]).await?;
        Ok(Self {
            address: front.address,
            endpoint: Some(endpoint),
            _front: Some(front),
            _bound: None,
        })
    }
}
