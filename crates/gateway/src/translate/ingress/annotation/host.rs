//! Hosts that an Ingress serves besides those of its rules, and TLS that is not terminated.

use super::value::{parse_bool, parse_list};
use crate::matching::HostPattern;

/// Largest number of aliases of each host.
const MAX_ALIASES: usize = 64;

/// An annotation about hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum HostAnnotation {
    /// ingress-nginx: further names of each server, that is, of each host of the Ingress.
    Aliases,
    /// ingress-nginx: the connections of clients are forwarded to the backend of the path `/`, without decryption.
    PassesTls,
    /// ingress-nginx: each host without `www.` is redirected to the same with it, or the other way round.
    RedirectsWww,
}

/// The hosts of an Ingress besides those of its rules.
#[derive(Default)]
pub(in super::super) struct IngressHosts {
    pub(in super::super) aliases: Vec<HostPattern>,
    pub(in super::super) passes_tls: bool,
    pub(in super::super) redirects_www: bool,
}

impl IngressHosts {
    pub(super) fn add(&mut self, setting: HostAnnotation, value: &str) -> Result<(), String> {
        match setting {
            HostAnnotation::Aliases => self.add_aliases(value)?,
            HostAnnotation::PassesTls => self.passes_tls = parse_bool(value)?,
            HostAnnotation::RedirectsWww => self.redirects_www = parse_bool(value)?,
        }
        Ok(())
    }

    /// Adds the aliases that are hosts.
    fn add_aliases(&mut self, value: &str) -> Result<(), String> {
        let mut invalid = Vec::new();
        for alias in parse_list(value, MAX_ALIASES)? {
            match HostPattern::parse(alias) {
                Ok(host) => self.aliases.push(host),
                Err(_) => invalid.push(alias),
            }
        }
        let message = || format!("must be hosts in lower case, without {}", invalid.join(", "));
        if invalid.is_empty() { Ok(()) } else { Err(message()) }
    }
}
