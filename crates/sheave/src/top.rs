//! `sheave top`: live statistics of a running Sheave, as a table refreshed in a terminal, or as plain tables without
//! one.

/// Builds the table from two API responses.
mod table;
/// The terminal.
mod screen;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::admin::{self, BackendsResponse, ReplicasResponse};
use crate::check::print;
use crate::failure::Failure;
use crate::flags::TopFlags;
use screen::{KeyCommand, TerminalScreen};
use table::BackendTable;
pub(crate) use table::SortOrder;

/// Width of a table without a terminal.
const PLAIN_WIDTH: usize = 80;
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows tables until it is stopped, or the requested number of tables.
pub(crate) fn run(flags: &TopFlags) -> Result<(), Failure> {
    let interval = flags.interval.unwrap_or(INTERVAL);
    let first = backends(flags.admin).map_err(|reason| unreachable(flags.admin, &reason))?;
    let watch = TopSession { admin: flags.admin, before: first, order: flags.sort };
    if flags.count.is_none() && io::stdout().is_terminal() && io::stdin().is_terminal() {
        return watch.live(interval).context("the terminal").map_err(Failure::from);
    }
    // An explicit interval means a table per interval, without end.
    let endless = flags.count.is_none() && flags.interval.is_some();
    let count = if endless { None } else { Some(flags.count.map_or(1, Into::into)) };
    watch.plain(interval, count)
}

fn backends(admin: SocketAddr) -> Result<BackendsResponse, String> {
    admin::query(admin, "/api/v1/backends")
}

/// Returns a line about slots and other replicas; `None`: this process leases no slots.
fn replicas(admin: SocketAddr) -> Option<String> {
    admin::query::<ReplicasResponse>(admin, "/api/v1/replicas").ok().map(|it| it.summary())
}

fn unreachable(admin: SocketAddr, reason: &str) -> Failure {
    Failure::input(format_args!(
        "cannot query {admin}: {reason}: is `sheave serve` running, with this address as --admin?"
    ))
}

/// Session of successive API queries: rates are differences between two of them.
struct TopSession {
    admin: SocketAddr,
    before: BackendsResponse,
    order: SortOrder,
}

impl TopSession {
    /// Prints the given number of tables, or tables forever, one below the other.
    fn plain(mut self, interval: Duration, count: Option<u32>) -> Result<(), Failure> {
        let mut left = count;
        while left != Some(0) {
            left = left.map(|left| left - 1);
            let since = proxy::clock::now();
            thread::sleep(interval);
            let now = backends(self.admin).map_err(|reason| unreachable(self.admin, &reason))?;
            let passed = proxy::clock::now().saturating_since(since);
            let table = BackendTable::of(&self.before, &now, passed);
            let lines = table.lines(self.order, PLAIN_WIDTH).into_iter().map(|line| line.text);
            print(&replicas(self.admin).into_iter().chain(lines).collect::<Vec<_>>())?;
            self.before = now;
        }
        Ok(())
    }

    /// Refreshes the table in place until `q`.
    fn live(mut self, interval: Duration) -> io::Result<()> {
        let mut screen = TerminalScreen::enter()?;
        let mut table = BackendTable::of(&self.before, &self.before, interval);
        let mut trouble = None;
        let mut replicas_line = replicas(self.admin);
        let mut since = proxy::clock::now();
        loop {
            let title = self.title(&table, replicas_line.as_deref(), trouble.as_deref());
            screen.draw(&title, |width| table.lines(self.order, width))?;
            let passed = proxy::clock::now().saturating_since(since);
            match screen.key(interval.saturating_sub(passed))? {
                Some(KeyCommand::Quit) => return Ok(()),
                Some(KeyCommand::Sort(order)) => self.order = order,
                Some(KeyCommand::Other) => {}
                None => {
                    let passed = proxy::clock::now().saturating_since(since);
                    since = proxy::clock::now();
                    replicas_line = replicas(self.admin);
                    match backends(self.admin) {
                        Ok(now) => {
                            table = BackendTable::of(&self.before, &now, passed);
                            self.before = now;
                            trouble = None;
                        }
                        Err(reason) => trouble = Some(reason),
                    }
                }
            }
        }
    }

    fn title(&self, table: &BackendTable, replicas: Option<&str>, trouble: Option<&str>) -> String {
        match trouble {
            Some(trouble) => format!("sheave {}: {trouble}", self.admin),
            None => {
                let (size, order) = (table.size(), format!("by {}", self.order.label()));
                let facts = [Some(size.as_str()), replicas, Some(&order)];
                let facts: Vec<_> = facts.into_iter().flatten().collect();
                format!(
                    "sheave {}  {}  (q: quit, {})",
                    self.admin,
                    facts.join("  "),
                    SortOrder::KEYS
                )
            }
        }
    }
}
