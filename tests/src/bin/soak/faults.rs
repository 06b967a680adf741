//! Faults that are injected while the load runs: of endpoints and of the configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use tests::random::SeededRandom;
use tests::{ConnectionReuse, Endpoint, EndpointBehaviour, ServeStep};

use crate::site::{FAULTY, SoakSite, addresses, healthy};

/// Chooses faults, injects them and counts them.
pub(crate) struct FaultInjector {
    random: SeededRandom,
    injected: BTreeMap<&'static str, u64>,
}

impl FaultInjector {
    pub(crate) fn new(random: &mut SeededRandom) -> Self {
        Self { random: SeededRandom::new(random.next_u64()), injected: BTreeMap::new() }
    }

    /// Injects a fault, or makes a change, drawn at random.
    pub(crate) async fn inject_next(&mut self, site: &mut SoakSite) -> Result<()> {
        let kind = match self.random.below(12) {
            0..=4 => self.replace_faulty(site).await?,
            5 => self.hide_faulty(site)?,
            6 | 7 => {
                let index = self.random.below(site.steady.len() as u64) as usize;
                site.replace_steady(index).await?;
                "endpoint replaced"
            }
            8 => {
                site.set_cap(4 + self.random.below(12))?;
                "policy changed"
            }
            9 => {
                site.renew_certificate()?;
                "certificate renewed"
            }
            10 => {
                site.configuration.write_text("broken.yaml", "kind: [")?;
                site.sheave.wait_for_log(0, "broken.yaml").await?;
                site.configuration.remove("broken.yaml")?;
                "broken file"
            }
            _ => {
                site.sheave.signal(Signal::HUP)?;
                "SIGHUP"
            }
        };
        *self.injected.entry(kind).or_default() += 1;
        Ok(())
    }

    /// Brings everything back to health.
    pub(crate) async fn finish(&mut self, site: &mut SoakSite) -> Result<()> {
        for index in 0..site.faulty.len() {
            site.faulty[index] = Endpoint::start(healthy()).await?;
        }
        site.set_endpoints(FAULTY, &addresses(&site.faulty))
    }

    /// Kills a faulty endpoint and starts another at its address or at a new one.
    async fn replace_faulty(&mut self, site: &mut SoakSite) -> Result<&'static str> {
        let index = self.random.below(site.faulty.len() as u64) as usize;
        let (kind, behaviour) = self.behaviour();
        let address = site.faulty[index].address;
        let placeholder = Endpoint::start(healthy()).await?;
        std::mem::replace(&mut site.faulty[index], placeholder).kill().await?;
        let again = match self.random.chance(50) {
            // Fails if another socket has got the port meanwhile.
            true => Endpoint::start_at(address, behaviour.clone()).await.ok(),
            false => None,
        };
        site.faulty[index] = match again {
            Some(endpoint) => endpoint,
            None => Endpoint::start(behaviour).await?,
        };
        site.set_endpoints(FAULTY, &addresses(&site.faulty))?;
        Ok(kind)
    }

    /// Removes some faulty endpoints from the configuration, perhaps all; they keep running.
    fn hide_faulty(&mut self, site: &SoakSite) -> Result<&'static str> {
        let mut shown = addresses(&site.faulty);
        shown.truncate(self.random.below(shown.len() as u64) as usize);
        site.set_endpoints(FAULTY, &shown)?;
        Ok("endpoints hidden")
    }

    fn behaviour(&mut self) -> (&'static str, EndpointBehaviour) {
        let (kind, steps) = match self.random.below(10) {
            0 => ("hanging", vec![ServeStep::WaitForever]),
            1 => ("closing", vec![ServeStep::Close]),
            2 => ("resetting", vec![ServeStep::ReadBody, ServeStep::Reset]),
            3 => (
                "garbage",
                vec![ServeStep::send("\x00\x01\x02 what is this\r\n\r\n"), ServeStep::Close],
            ),
            4 => ("half a response", half_response()),
            5 => ("errors", vec![ServeStep::ReadBody, ServeStep::send(ERROR)]),
            6 => ("overload", vec![ServeStep::ReadBody, ServeStep::send(OVERLOAD)]),
            7 => ("slow", vec![ServeStep::Wait(Duration::from_secs(1)), ServeStep::Echo]),
            _ => ("healthy", vec![ServeStep::Echo]),
        };
        let reuse = match self.random.below(4) {
            0 => ConnectionReuse::CloseSilently,
            1 => ConnectionReuse::CloseAnnounced,
            _ => ConnectionReuse::KeepAlive,
        };
        (kind, EndpointBehaviour::from(steps).with_connection_reuse(reuse))
    }
}

const ERROR: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
const OVERLOAD: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";

fn half_response() -> Vec<ServeStep> {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf of it";
    vec![ServeStep::ReadBody, ServeStep::send(head), ServeStep::Close]
}

impl fmt::Display for FaultInjector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.injected.values().sum();
        write!(formatter, "{total} faults and changes")
    }
}
