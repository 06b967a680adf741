//! Prometheus' promtool: the alerts of the examples, the expressions of the Grafana board, and the metrics themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::TempDirectory;
use tests::{EndpointBehaviour, HttpFixture, Result};
use tokio::io::AsyncWriteExt;

use crate::tools;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples").join(name)
}

/// Returns the groups of the PrometheusRule, as the files of Prometheus have them.
fn rule_groups() -> Result<String> {
    let text = fs::read_to_string(example("prometheus.yaml"))?;
    let (_, rules) = text.split_once("kind: PrometheusRule").context("rules")?;
    let (_, spec) = rules.split_once("\nspec:\n").context("a spec")?;
    Ok(spec.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned() + "\n").collect())
}

#[tokio::test]
#[ignore = "needs promtool: make conformance"]
async fn each_alert_fires_by_its_series_and_not_by_others() -> Result {
    let folder = TempDirectory::new()?;
    let rules = folder.path().join("alerts.yaml");
    fs::write(&rules, rule_groups()?)?;
    let checked = tools::standard_output("promtool", ["check", "rules", path(&rules)?]).await?;
    let count = fs::read_to_string(&rules)?.matches("- alert: ").count();
    ensure!(checked.contains(&format!("{count} rules found")), "{checked}");

    let series = folder.path().join("series.yaml");
    fs::copy(tools::conformance_folder().join("prometheus/alerts.yaml"), &series)?;
    let cases = fs::read_to_string(&series)?;
    for line in fs::read_to_string(&rules)?.lines() {
        let Some(alert) = line.trim().strip_prefix("- alert: ") else { continue };
        for outcome in ["fires", "is silent"] {
            ensure!(cases.contains(&format!("- name: {alert} {outcome}\n")), "{alert} {outcome}");
        }
    }
    tools::standard_output("promtool", ["test", "rules", path(&series)?]).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs promtool: make conformance"]
async fn expressions_of_the_board_are_valid() -> Result {
    let board: Value =
        serde_json::from_str(&fs::read_to_string(example("grafana-dashboard.json"))?)?;
    let panels = board["panels"].as_array().context("panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(number, target)| {
            let expression = target["expr"].as_str().unwrap_or_default();
            let expression = expression.replace("$__rate_interval", "5m").replace("$backend", ".*");
            json!({"record": format!("panel:{number}"), "expr": expression})
        })
        .collect();
    ensure!(rules.len() > 40, "{} expressions", rules.len());
    let folder = TempDirectory::new()?;
    let file = folder.path().join("board.yaml");
    // JSON is YAML.
    fs::write(&file, json!({"groups": [{"name": "board", "rules": rules}]}).to_string())?;
    tools::standard_output("promtool", ["check", "rules", path(&file)?]).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs promtool: make conformance"]
async fn metrics_have_no_lint() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    fixture.client().await?.get("/").await?;
    let metrics = fixture.sheave.admin_get("/metrics").await?.text();
    ensure!(metrics.contains("sheave_endpoint_attempts_total"), "{metrics}");
    let mut command = tools::program("promtool")?;
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut promtool = command.stderr(Stdio::piped()).spawn()?;
    let mut input = promtool.stdin.take().context("a pipe")?;
    input.write_all(metrics.as_bytes()).await?;
    drop(input);
    let output = promtool.wait_with_output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn path(file: &Path) -> Result<&str> {
    file.to_str().context("a path in UTF-8")
}
