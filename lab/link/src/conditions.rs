//! The command line: the conditions of each direction.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};

const USAGE: &str = "usage: link [--seed N] [--there CONDITIONS] [--back CONDITIONS] <>NEAR >&FAR

Forwards packets between two TUN devices, its standard input and output, until it is stopped.
CONDITIONS of each direction (--there from NEAR to FAR, --back from FAR to NEAR) are
delay-us=N,kbit=N,queue-bytes=N,loss=SHARE [no delay, no rate limit, 1 MiB, no loss].";

/// Queue size of a direction by default.
const QUEUE_BYTES: u64 = 1 << 20;

/// Conditions of one direction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LinkConditions {
    /// Time from the end of a packet's transmission to its arrival.
    pub(crate) delay: Duration,
    pub(crate) bits_per_second: Option<NonZeroU64>,
    /// Size of the queue in front of the bottleneck; without a rate nothing is queued.
    pub(crate) queue_bytes: u64,
    /// Share of packets that are lost, each independently.
    pub(crate) loss: f64,
}

impl Default for LinkConditions {
    fn default() -> Self {
        Self { delay: Duration::ZERO, bits_per_second: None, queue_bytes: QUEUE_BYTES, loss: 0.0 }
    }
}

impl FromStr for LinkConditions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut conditions = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').with_context(|| format!("{part}: not NAME=VALUE"))?;
            match name {
                "delay-us" => conditions.delay = Duration::from_micros(number(part, value)?),
                "kbit" => conditions.bits_per_second = Some(rate(part, value)?),
                "queue-bytes" => conditions.queue_bytes = number(part, value)?,
                "loss" => conditions.loss = share(part, value)?,
                _ => bail!("{part}: unknown, use delay-us, kbit, queue-bytes or loss"),
            }
        }
        Ok(conditions)
    }
}

fn number<N: FromStr>(part: &str, value: &str) -> Result<N> {
    value.parse().map_err(|_number| anyhow!("{part}: not a number in range"))
}

fn rate(part: &str, value: &str) -> Result<NonZeroU64> {
    let kbit: u64 = number(part, value)?;
    let rate = kbit.checked_mul(1000).and_then(NonZeroU64::new);
    rate.with_context(|| format!("{part}: the rate must be above 0 and in range"))
}

fn share(part: &str, value: &str) -> Result<f64> {
    let share = number(part, value)?;
    ensure!((0.0..=1.0).contains(&share), "{part}: a share must be from 0 to 1");
    Ok(share)
}

pub(crate) struct LinkArguments {
    pub(crate) seed: u64,
    pub(crate) there: LinkConditions,
    pub(crate) back: LinkConditions,
}

impl LinkArguments {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed =
            Self { seed: 0, there: LinkConditions::default(), back: LinkConditions::default() };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--seed" => parsed.seed = number(&word, &value()?)?,
                "--there" => parsed.there = value()?.parse()?,
                "--back" => parsed.back = value()?.parse()?,
                _ => bail!("{USAGE}"),
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_conditions_are_parsed_in_any_order_and_number() {
        let read: LinkConditions = "loss=0.01,delay-us=50000,kbit=20000".parse().unwrap();
        let rate = NonZeroU64::new(20_000_000);
        assert_eq!(read.delay, Duration::from_millis(50));
        assert_eq!((read.bits_per_second, read.queue_bytes, read.loss), (rate, QUEUE_BYTES, 0.01));
        assert_eq!("".parse::<LinkConditions>().unwrap(), LinkConditions::default());
    }

    #[test]
    fn invalid_condition_gives_a_one_line_error() {
        for (text, sentence) in [
            ("loss=1.5", "loss=1.5: a share must be from 0 to 1"),
            ("loss=NaN", "loss=NaN: a share must be from 0 to 1"),
            ("kbit=0", "kbit=0: the rate must be above 0 and in range"),
            ("kbit=99999999999999999999", "kbit=99999999999999999999: not a number in range"),
            ("delay-us=-1", "delay-us=-1: not a number in range"),
            ("delay", "delay: not NAME=VALUE"),
            ("jitter=1", "jitter=1: unknown, use delay-us, kbit, queue-bytes or loss"),
        ] {
            assert_eq!(text.parse::<LinkConditions>().unwrap_err().to_string(), sentence);
        }
    }
}
