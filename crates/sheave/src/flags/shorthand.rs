//! Kubernetes objects built from `--listen` and `--to`, with names resolved.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use gateway::objects::ListenFlagProtocol;
use gateway::{ApiObject, objects};

use super::{ListenFlags, ToAddress};
use crate::failure::Failure;
use crate::files::CertificateKeyPair;

impl ListenFlags {
    /// Returns the certificate and key file of each `--cert`.
    pub(crate) fn pairs(&self) -> Vec<CertificateKeyPair> {
        let pair = |(certificate, key): (&PathBuf, &PathBuf)| CertificateKeyPair {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        self.cert.iter().zip(&self.key).map(pair).collect()
    }

    /// True if a listener needs a certificate and `--cert` gives none.
    pub(crate) fn needs_certificate(&self) -> bool {
        self.cert.is_empty() && self.listens_to_https()
    }

    pub(crate) fn listens_to_https(&self) -> bool {
        self.listen.iter().any(|url| url.0.protocol == ListenFlagProtocol::Https)
    }

    /// Returns the objects except the Secrets of certificates; empty without `--listen`.
    pub(crate) fn objects(&self) -> Result<Vec<ApiObject>, Failure> {
        if self.listen.is_empty() {
            return Ok(Vec::new());
        }
        let mut to = Vec::new();
        for address in &self.to {
            to.extend(resolve(address)?);
        }
        to.sort_unstable();
        to.dedup();
        Ok(objects::shorthand(&objects::ShorthandFlags {
            listen: self.listen.iter().map(|url| url.0).collect(),
            // Without `--cert` there is one self-signed certificate.
            certificates: self.cert.len().max(1),
            http3: !self.no_http3,
            to,
            max_in_flight: self.max_in_flight,
            queue: self.queue,
            queue_timeout: self.queue_timeout.map(objects::Duration),
        }))
    }
}

fn resolve(address: &ToAddress) -> Result<Vec<SocketAddr>, Failure> {
    let (name, port) = match address {
        ToAddress::Address(address) => return Ok(vec![*address]),
        ToAddress::Name(name, port) => (name.as_str(), *port),
    };
    match (name, port).to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(Failure::input(format_args!(
            "cannot resolve {name} of --to: {error}: correct the name, or give an address"
        ))),
    }
}
