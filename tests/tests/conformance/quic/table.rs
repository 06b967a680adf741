//! The table of docs/internals/quic.md: which client does which case.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use tests::Result;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/internals/quic.md");
/// First cell of the table.
const CASE: &str = "case";

/// Returns for each case whether this client does it.
pub(super) fn column(client: &str) -> Result<BTreeMap<String, bool>> {
    let text = fs::read_to_string(Path::new(PAGE))?;
    let mut rows = text.lines().map(cells).skip_while(|cells| cells.first() != Some(&CASE));
    let head = rows.next().context("no table of cases")?;
    let place = head.iter().position(|cell| *cell == client);
    let place = place.with_context(|| format!("no column for {client}"))?;
    let mut column = BTreeMap::new();
    for row in rows.skip(1).take_while(|row| row.len() == head.len()) {
        let is_supported = match row[place] {
            "passes" => true,
            "unsupported" => false,
            other => bail!("{}: `{other}` is neither passes nor unsupported", row[0]),
        };
        column.insert(row[0].trim_matches('`').to_owned(), is_supported);
    }
    Ok(column)
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    inner.map(|inner| inner.split('|').map(str::trim).collect()).unwrap_or_default()
}
