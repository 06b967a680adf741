//! Defects of endpoints.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use mio::Registry;
use mio::net::TcpListener;

/// Time after which a backlog counts as full, far longer than a connection over loopback takes.
const FULL_AFTER: Duration = Duration::from_millis(50);
/// Connections that may still fit before the backlog is full.
const MAX_FILL: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EndpointDefect {
    /// Service times are this many times as long.
    Slow(f64),
    /// Every request is answered at once, with 500.
    Errors,
    /// Every connection is closed, and attempts to open one get no answer.
    BlackHole,
    /// Every connection is closed and new ones are refused, as the kernel does for a killed process;
    /// after this time it listens again at the same address.
    Dead { back_after: Option<Duration> },
}

impl FromStr for EndpointDefect {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "errors" => Ok(Self::Errors),
            None if text == "black-hole" => Ok(Self::BlackHole),
            None if text == "dead" => Ok(Self::Dead { back_after: None }),
            Some(("dead", milliseconds)) => {
                let milliseconds = milliseconds
                    .parse()
                    .with_context(|| format!("{text}: not a number of milliseconds"))?;
                Ok(Self::Dead { back_after: Some(Duration::from_millis(milliseconds)) })
            }
            Some(("slow", factor)) => {
                let factor: f64 =
                    factor.parse().with_context(|| format!("{text}: not a factor"))?;
                if !(factor.is_finite() && factor > 0.0) {
                    bail!("{text}: the factor must be above 0");
                }
                Ok(Self::Slow(factor))
            }
            Some(_) | None => {
                bail!(
                    "{text}: a defect is slow:FACTOR, errors, black-hole, dead or dead:MILLISECONDS"
                )
            }
        }
    }
}

/// Makes a listener unresponsive: no connection is accepted and its backlog is full, so the kernel drops each SYN. The
/// caller must keep the fillers.
pub(crate) fn fill_backlog(
    listener: &mut TcpListener,
    registry: &Registry,
) -> Result<Vec<TcpStream>> {
    registry.deregister(listener)?;
    rustix::net::listen(&*listener, 0).context("cannot shorten a backlog")?;
    let address = listener.local_addr()?;
    let mut fillers = Vec::new();
    while let Some(filler) = add_filler(address)? {
        fillers.push(filler);
        if fillers.len() > MAX_FILL {
            bail!("the backlog of {address} does not fill");
        }
    }
    Ok(fillers)
}

/// Adds a connection to the backlog; `None` if it is full.
fn add_filler(address: SocketAddr) -> Result<Option<TcpStream>> {
    match TcpStream::connect_timeout(&address, FULL_AFTER) {
        Ok(filler) => Ok(Some(filler)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot fill the backlog of {address}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Interest, Poll, Token};

    #[test]
    fn defects_are_parsed_from_text() {
        assert_eq!("slow:10".parse::<EndpointDefect>().unwrap(), EndpointDefect::Slow(10.0));
        assert_eq!("errors".parse::<EndpointDefect>().unwrap(), EndpointDefect::Errors);
        assert_eq!("black-hole".parse::<EndpointDefect>().unwrap(), EndpointDefect::BlackHole);
        assert_eq!(
            "dead".parse::<EndpointDefect>().unwrap(),
            EndpointDefect::Dead { back_after: None }
        );
        let back_after = Some(Duration::from_millis(1500));
        assert_eq!(
            "dead:1500".parse::<EndpointDefect>().unwrap(),
            EndpointDefect::Dead { back_after }
        );
        for wrong in ["", "slow", "slow:x", "slow:0", "slow:inf", "errors:1", "sloth", "dead:x"] {
            assert!(wrong.parse::<EndpointDefect>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn deaf_listener_answers_no_connection() {
        let poll = Poll::new().unwrap();
        let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        poll.registry().register(&mut listener, Token(0), Interest::READABLE).unwrap();
        let address = listener.local_addr().unwrap();
        let _fillers = fill_backlog(&mut listener, poll.registry()).unwrap();
        let error = TcpStream::connect_timeout(&address, FULL_AFTER).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
