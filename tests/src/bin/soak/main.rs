//! Soak test: Sheave under mixed load for an hour, while endpoints fail and the configuration
//! changes. Afterwards memory, descriptors and counts must be where they were before.
//!
//! A first phase of the same load warms up caches and pools; then everything rests, and the state
//! is the baseline. After the soak it rests again, and the state is compared.
#![expect(clippy::print_stdout, reason = "a command that reports what it finds")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tests::random::SeededRandom;
use tokio::time::{Instant, sleep};

use crate::faults::FaultInjector;
use crate::load::MixedLoad;
use crate::resources::ResourceUsage;
use crate::results::RequestResults;
use crate::site::SoakSite;

/// Faults that are injected while the load runs.
mod faults;
/// Clients of all protocols.
mod load;
/// Resources that the process holds.
mod resources;
/// Results of the requests.
mod results;
/// Sheave, its configuration and its endpoints.
mod site;

const USAGE: &str = "usage: soak [--minutes N] [--seed N] [--summary FILE]

Runs mixed load for N minutes (60) while endpoints die, hang, flap and answer garbage, and while the
configuration and the certificate change. Prints a line every 10 seconds. Exit code 0: no request to a
healthy Service failed, and memory, descriptors and counts are where they began; 1: something is not.";

/// Time between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Part of the time for which the load runs before the baseline is taken.
const WARMUP_SHARE: f64 = 0.1;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let options = match SoakOptions::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            println!("soak: {error}\n\n{USAGE}");
            return Ok(ExitCode::from(2));
        }
    };
    let report = run(&options).await?;
    println!("{}", report.text);
    if let Some(file) = &options.summary {
        std::fs::write(file, &report.text).with_context(|| format!("{}", file.display()))?;
    }
    Ok(if report.problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct SoakOptions {
    duration: Duration,
    seed: u64,
    summary: Option<PathBuf>,
}

impl SoakOptions {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { duration: Duration::from_secs(3600), seed: 1, summary: None };
        while let Some(name) = arguments.next() {
            let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--minutes" => options.duration = minutes(&value)?,
                "--seed" => options.seed = value.parse().context("--seed takes a whole number")?,
                "--summary" => options.summary = Some(value.into()),
                _ => bail!("unknown option {name}"),
            }
        }
        Ok(options)
    }
}

fn minutes(value: &str) -> Result<Duration> {
    let minutes: f64 = value.parse().context("--minutes takes a number")?;
    ensure!(minutes > 0.0 && minutes <= 24.0 * 60.0, "--minutes takes more than 0 and up to 1440");
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// What was found, for people.
struct SoakReport {
    text: String,
    problems: usize,
}

async fn run(options: &SoakOptions) -> Result<SoakReport> {
    let mut random = SeededRandom::new(options.seed);
    let mut site = SoakSite::start().await?;
    println!("warm-up, then the baseline at rest");
    let warmup = options.duration.mul_f64(WARMUP_SHARE);
    load_with_faults(&mut site, &mut random, warmup).await?;
    let before = site.rest().await?;
    println!("baseline: {before}");
    let begun = Instant::now();
    let results = load_with_faults(&mut site, &mut random, options.duration).await?;
    let lasted = begun.elapsed();
    let after = site.rest().await?;
    println!("afterwards: {after}");
    site.check_exit().await?;
    Ok(report(&results, &before, &after, lasted, options.seed))
}

/// Runs load and faults for this time; ends them, and returns the results of the requests.
async fn load_with_faults(
    site: &mut SoakSite,
    random: &mut SeededRandom,
    duration: Duration,
) -> Result<RequestResults> {
    let load = MixedLoad::start(site, random)?;
    let mut faults = FaultInjector::new(random);
    let begun = Instant::now();
    let mut next_line = begun + PROGRESS_INTERVAL;
    while begun.elapsed() < duration {
        faults.inject_next(site).await?;
        // Faults come at random times.
        sleep(random.between(Duration::from_millis(200), Duration::from_secs(2))).await;
        if Instant::now() >= next_line {
            next_line = Instant::now() + PROGRESS_INTERVAL;
            let usage = site.usage().await?;
            let seconds = begun.elapsed().as_secs();
            println!("{seconds:>5} s  {usage}; {}; {faults}", load.results());
        }
    }
    faults.finish(site).await?;
    load.stop().await
}

fn report(
    results: &RequestResults,
    before: &ResourceUsage,
    after: &ResourceUsage,
    lasted: Duration,
    seed: u64,
) -> SoakReport {
    let problems: Vec<String> = results.problems().chain(after.compare(before)).collect();
    let minutes = lasted.as_secs_f64() / 60.0;
    let mut text = format!("# Soak of {minutes:.0} minutes, seed {seed}\n\n");
    text += &format!("- before: {before}\n- after: {after}\n\n{}\n", results.table());
    for problem in &problems {
        text += &format!("PROBLEM: {problem}\n");
    }
    if problems.is_empty() {
        text += "No problem was found.\n";
    }
    SoakReport { text, problems: problems.len() }
}
