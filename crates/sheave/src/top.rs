//! `sheave top`: live statistics of a running Sheave, as a table refreshed in a terminal, or as plain tables without
//! one.

/// Sort order, lines, and the format of numbers.
mod table;
/// Backends of the proxy.
mod backend_table;
/// Services of the layer-4 data path.
mod l4_table;
/// The terminal.
mod screen;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use crate::admin::{self, ReplicasResponse};
use crate::check::print;
use crate::failure::Failure;
use crate::flags::TopFlags;
use backend_table::BackendTable;
use l4_table::L4TrafficTable;
use screen::{KeyCommand, TerminalScreen};
pub(crate) use table::SortOrder;
use table::StatisticsTable;

/// Width of a table without a terminal.
const PLAIN_WIDTH: usize = 80;
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows tables until it is stopped, or the requested number of tables.
pub(crate) fn run(flags: &TopFlags) -> Result<(), Failure> {
    match query::<BackendTable>(flags.admin) {
        Ok(first) => TopSession::<BackendTable>::new(flags, first).run(flags),
        Err(reason) => match query::<L4TrafficTable>(flags.admin) {
            Ok(first) => TopSession::<L4TrafficTable>::new(flags, first).run(flags),
            Err(_) => Err(unreachable(flags.admin, &reason)),
        },
    }
}

fn query<T: StatisticsTable>(admin: SocketAddr) -> Result<T::Response, String> {
    admin::query(admin, T::PATH)
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
struct TopSession<T: StatisticsTable> {
    admin: SocketAddr,
    before: T::Response,
    order: SortOrder,
}

impl<T: StatisticsTable> TopSession<T> {
    fn new(flags: &TopFlags, first: T::Response) -> Self {
        Self { admin: flags.admin, before: first, order: flags.sort }
    }

    fn run(self, flags: &TopFlags) -> Result<(), Failure> {
        let interval = flags.interval.unwrap_or(INTERVAL);
        if flags.count.is_none() && io::stdout().is_terminal() && io::stdin().is_terminal() {
            return self.live(interval).context("the terminal").map_err(Failure::from);
        }
        // An explicit interval means a table per interval, without end.
        let endless = flags.count.is_none() && flags.interval.is_some();
        let count = if endless { None } else { Some(flags.count.map_or(1, Into::into)) };
        self.plain(interval, count)
    }

    /// Prints the given number of tables, or tables forever, one below the other.
    fn plain(mut self, interval: Duration, count: Option<u32>) -> Result<(), Failure> {
        let mut left = count;
        while left != Some(0) {
            left = left.map(|left| left - 1);
            let since = proxy::clock::now();
            thread::sleep(interval);
            let now = query::<T>(self.admin).map_err(|reason| unreachable(self.admin, &reason))?;
            let passed = proxy::clock::now().saturating_since(since);
            let table = T::of(&self.before, &now, passed);
            let lines = table.lines(self.order, PLAIN_WIDTH).into_iter().map(|line| line.text);
            print(&replicas(self.admin).into_iter().chain(lines).collect::<Vec<_>>())?;
            self.before = now;
        }
        Ok(())
    }

    /// Refreshes the table in place until `q`.
    fn live(mut self, interval: Duration) -> io::Result<()> {
        let mut screen = TerminalScreen::enter()?;
        let mut table = T::of(&self.before, &self.before, interval);
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
                    match query::<T>(self.admin) {
                        Ok(now) => {
                            table = T::of(&self.before, &now, passed);
                            self.before = now;
                            trouble = None;
                        }
                        Err(reason) => trouble = Some(reason),
                    }
                }
            }
        }
    }

    fn title(&self, table: &T, replicas: Option<&str>, trouble: Option<&str>) -> String {
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
