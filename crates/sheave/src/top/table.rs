//! Parts that all tables have: the order of rows, lines with a style, and the format of numbers. It knows nothing of the
//! terminal except its width.

use std::time::Duration;

use clap::ValueEnum;
use serde::de::DeserializeOwned;

/// Table that is built from two responses of the admin API.
pub(super) trait StatisticsTable: Sized {
    type Response: DeserializeOwned;
    /// Path of the responses.
    const PATH: &'static str;

    /// Builds the table from two responses with this time between them.
    fn of(before: &Self::Response, now: &Self::Response, passed: Duration) -> Self;

    /// Returns the number of rows, in words.
    fn size(&self) -> String;

    /// Returns a heading and a line per row, cut at `width`; a smaller `width` than 80 counts as 80.
    fn lines(&self, order: SortOrder, width: usize) -> Vec<TableLine>;
}

/// Sort order; equal rows are ordered by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortOrder {
    /// Most requests per second first.
    Requests,
    /// Most requests in flight first.
    InFlight,
    /// Most queued requests first.
    Queue,
    /// Most failures per second first.
    Failures,
    /// Most retries per second first.
    Retries,
    /// Highest latency first.
    Latency,
    /// By name.
    Name,
}

impl SortOrder {
    pub(super) const KEYS: &str = "sort: r i w f t l n";

    pub(super) fn of_key(key: char) -> Option<Self> {
        Some(match key {
            'r' => Self::Requests,
            'i' => Self::InFlight,
            'w' => Self::Queue,
            'f' => Self::Failures,
            't' => Self::Retries,
            'l' => Self::Latency,
            'n' => Self::Name,
            _ => return None,
        })
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::InFlight => "in flight",
            Self::Queue => "queue",
            Self::Failures => "failures",
            Self::Retries => "retries",
            Self::Latency => "latency",
            Self::Name => "name",
        }
    }
}

/// A line and its style.
#[derive(Debug, PartialEq)]
pub(super) struct TableLine {
    pub(super) text: String,
    pub(super) style: LineStyle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineStyle {
    Heading,
    Plain,
    /// Backend, above its endpoints.
    Backend,
    /// No free slot: a request would be queued.
    Full,
    /// Failures or bad health.
    Bad,
}

/// Converts counters to rates per second, by the seconds between two responses.
pub(super) struct RateCalculator(pub(super) f64);

impl RateCalculator {
    /// Returns the rate of a counter. A counter that has decreased restarted from 0; a new counter
    /// has no rate yet.
    pub(super) fn rate(&self, before: Option<u64>, now: u64) -> f64 {
        let Some(before) = before else { return 0.0 };
        now.checked_sub(before).unwrap_or(now) as f64 / self.0.max(f64::EPSILON)
    }
}

/// Formats a rate in at most five characters, with as many decimals as matter.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        ..100.0 => format!("{rate:.1}"),
        ..10_000.0 => format!("{rate:.0}"),
        ..100_000.0 => format!("{:.1}k", rate / 1e3),
        ..1e6 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.1}M", rate / 1e6),
    }
}

pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} us", seconds * 1e6),
        ..0.01 => format!("{:.1} ms", seconds * 1e3),
        ..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// Shortens a name by its middle, because the beginning and the end distinguish names.
pub(crate) fn shortened(name: &str, width: usize) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= width {
        return name.to_owned();
    }
    let (front, back) = ((width - 1) / 2, width / 2);
    let (start, end) = (&characters[..front], &characters[characters.len() - back..]);
    start.iter().chain(['…'].iter()).chain(end).collect()
}
