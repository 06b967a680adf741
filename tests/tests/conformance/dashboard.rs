//! The dashboard in Chromium: every view with traffic, without anything, without an answer, with hostile names, behind a
//! path prefix; accessible by axe-core's rules in light and dark. The scenarios are in `dashboard/tests/browser.mjs`.

use std::path::Path;

use anyhow::ensure;
use tests::{Result, sheave};

use crate::tools;

/// Runs a scenario, and fails with what it found.
async fn check(scenario: &str) -> Result {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboard"));
    // `scripts/setup conformance` installs it, where Node.js is there.
    let driver = folder.join("node_modules/playwright-core");
    if !tools::is_installed("browser")? || !tools::is_installed("node")? {
        return Ok(());
    }
    ensure!(driver.is_dir(), "{driver:?} does not exist: run `scripts/dashboard target/dashboard`");
    let mut command = tools::program("node")?;
    command.current_dir(folder).arg("tests/browser.mjs").arg(sheave::binary()?);
    command.arg(tools::path("browser")?).arg(scenario);
    let output = tools::output_of(command).await?;
    let found = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{scenario}:\n{found}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a browser: make conformance"]
async fn every_view_is_right_and_accessible_with_traffic() -> Result {
    check("views").await
}

#[tokio::test]
#[ignore = "needs a browser: make conformance"]
async fn empty_views_say_so_and_a_restart_is_survived_behind_a_prefix() -> Result {
    check("reconnect").await
}

#[tokio::test]
#[ignore = "needs a browser: make conformance"]
async fn hostile_names_are_shown_as_text() -> Result {
    check("hostile").await
}
