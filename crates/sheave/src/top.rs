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

use crate::admin::{self, BackendsResponse, ReplicasResponse};
use crate::check::print;
use crate::failure::Failure;
use crate::flags::{TableFlags, TopFlags};
use backend_table::BackendTable;
use l4_table::L4TrafficTable;
use screen::{KeyCommand, TerminalScreen};
use table::StatisticsTable;
pub(crate) use table::{SortOrder, shortened};

/// Width of a table without a terminal.
const PLAIN_WIDTH: usize = 80;
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows tables until it is stopped, or the requested number of tables.
pub(crate) fn run(flags: &TopFlags) -> Result<(), Failure> {
    match query::<BackendTable>(flags.admin) {
        Ok(first) => TopSession::<BackendTable>::of_address(flags.admin, first).run(&flags.tables),
        Err(reason) => match query::<L4TrafficTable>(flags.admin) {
            Ok(first) => {
                TopSession::<L4TrafficTable>::of_address(flags.admin, first).run(&flags.tables)
            }
            Err(_) => Err(unreachable(flags.admin, &reason)),
        },
    }
}

/// Shows tables of backends from another source than one admin API.
pub(crate) fn show_backends(
    source: TopQuery<'_, BackendsResponse>,
    settings: &TableFlags,
) -> Result<(), Failure> {
    let mut source = source;
    let first = (source.query)().map_err(Failure::input)?;
    let unreachable = Box::new(|reason: String| Failure::input(reason));
    TopSession::<BackendTable> { source, before: first, unreachable }.run(settings)
}

/// Source of the answers of which tables are made.
pub(crate) struct TopQuery<'s, R> {
    /// Name in the title.
    pub(crate) name: String,
    pub(crate) query: Box<dyn FnMut() -> Result<R, String> + 's>,
    /// Line about slots and other replicas, if there is something to say.
    pub(crate) summary: Box<dyn FnMut() -> Option<String> + 's>,
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
struct TopSession<'s, T: StatisticsTable> {
    source: TopQuery<'s, T::Response>,
    before: T::Response,
    /// Failure of a plain table whose query fails.
    unreachable: Box<dyn Fn(String) -> Failure + 's>,
}

impl<T: StatisticsTable> TopSession<'_, T> {
    /// Asks one admin API.
    fn of_address(admin: SocketAddr, first: T::Response) -> Self {
        let source = TopQuery {
            name: admin.to_string(),
            query: Box::new(move || query::<T>(admin)),
            summary: Box::new(move || replicas(admin)),
        };
        let unreachable = Box::new(move |reason: String| unreachable(admin, &reason));
        Self { source, before: first, unreachable }
    }

    fn run(self, settings: &TableFlags) -> Result<(), Failure> {
        let TableFlags { interval, count, sort } = *settings;
        let pause = interval.unwrap_or(INTERVAL);
        if count.is_none() && io::stdout().is_terminal() && io::stdin().is_terminal() {
            return self.live(pause, sort).context("the terminal").map_err(Failure::from);
        }
        // An explicit interval means a table per interval, without end.
        let endless = count.is_none() && interval.is_some();
        let count = if endless { None } else { Some(count.map_or(1, Into::into)) };
        self.plain(pause, count, sort)
    }

    /// Prints the given number of tables, or tables forever, one below the other.
    fn plain(
        mut self,
        interval: Duration,
        count: Option<u32>,
        order: SortOrder,
    ) -> Result<(), Failure> {
        let mut left = count;
        while left != Some(0) {
            left = left.map(|left| left - 1);
            let since = proxy::clock::now();
            thread::sleep(interval);
            let now = (self.source.query)().map_err(&self.unreachable)?;
            let passed = proxy::clock::now().saturating_since(since);
            let table = T::of(&self.before, &now, passed);
            let lines = table.lines(order, PLAIN_WIDTH).into_iter().map(|line| line.text);
            print(&(self.source.summary)().into_iter().chain(lines).collect::<Vec<_>>())?;
            self.before = now;
        }
        Ok(())
    }

    /// Refreshes the table in place until `q`.
    fn live(mut self, interval: Duration, mut order: SortOrder) -> io::Result<()> {
        let mut screen = TerminalScreen::enter()?;
        let mut table = T::of(&self.before, &self.before, interval);
        let mut trouble = None;
        let mut replicas_line = (self.source.summary)();
        let mut since = proxy::clock::now();
        loop {
            let title = self.title(&table, order, replicas_line.as_deref(), trouble.as_deref());
            screen.draw(&title, |width| table.lines(order, width))?;
            let passed = proxy::clock::now().saturating_since(since);
            match screen.key(interval.saturating_sub(passed))? {
                Some(KeyCommand::Quit) => return Ok(()),
                Some(KeyCommand::Sort(other)) => order = other,
                Some(KeyCommand::Other) => {}
                None => {
                    let passed = proxy::clock::now().saturating_since(since);
                    since = proxy::clock::now();
                    replicas_line = (self.source.summary)();
                    match (self.source.query)() {
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

    fn title(
        &self,
        table: &T,
        order: SortOrder,
        replicas: Option<&str>,
        trouble: Option<&str>,
    ) -> String {
        match trouble {
            Some(trouble) => format!("sheave {}: {trouble}", self.source.name),
            None => {
                let (size, order) = (table.size(), format!("by {}", order.label()));
                let facts = [Some(size.as_str()), replicas, Some(&order)];
                let facts: Vec<_> = facts.into_iter().flatten().collect();
                format!(
                    "sheave {}  {}  (q: quit, {})",
                    self.source.name,
                    facts.join("  "),
                    SortOrder::KEYS
                )
            }
        }
    }
}
