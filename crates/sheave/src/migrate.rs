//! `sheave migrate`: prints the objects of Gateway API that mean the same as Ingresses, or compares two servers.
//!
//! The objects go to standard output, the report to standard error, so that a file gets the objects alone.

/// Requests in access logs.
mod access_log;
/// Comparison of two servers.
mod compare;

use anyhow::Context;
use gateway::ObjectProblem;
use gateway::migrate::{MigratedIngress, MigrationOutcome, MigrationSettings, migrate};

use crate::check::print;
use crate::failure::Failure;
use crate::files;
use crate::files::SourceContents;
use crate::flags::{MigrateFlags, MigrationTargetFlags};
use crate::live_cluster::LiveCluster;
use crate::terminal_text::escaped;

/// Kinds that a migration reads. Files may have others, as the output of `kubectl get` has.
const KINDS: [&str; 3] = ["Ingress ", "IngressClass ", "Service "];

/// Prints the objects and the report.
///
/// # Errors
/// As [`print_migration`], or if answers differ.
pub(crate) fn run(flags: &MigrateFlags) -> Result<(), Failure> {
    if !flags.comparison.compare.is_empty() {
        return compare::run(&flags.comparison);
    }
    if let Some(conflict) = flags.live.conflict(&flags.paths) {
        return Err(Failure::input(conflict));
    }
    match flags.live.cluster {
        true => {
            let contents = LiveCluster::connect(&flags.live.access)?.ingresses()?;
            print_migration(contents, &flags.target, "the cluster")
        }
        false => print_migration(files::read(&flags.paths), &flags.target, "the files"),
    }
}

/// Prints the objects and the report for the Ingresses of a source.
///
/// # Errors
/// If an object cannot be read, there is no Ingress, requests of one are answered with 500, or a cluster does not accept
/// an object.
pub(crate) fn print_migration(
    contents: SourceContents,
    flags: &MigrationTargetFlags,
    source: &str,
) -> Result<(), Failure> {
    let is_read = |problem: &ObjectProblem| {
        problem.object.is_empty() || KINDS.iter().any(|kind| problem.object.starts_with(kind))
    };
    let problems: Vec<_> = contents.problems.into_iter().filter(is_read).collect();
    if !problems.is_empty() {
        return Err(Failure::Input(problems.iter().map(|it| escaped(&it.to_string())).collect()));
    }
    let settings = MigrationSettings {
        ingress_class: flags.ingress_class.clone(),
        gateway_class: flags.gateway_class.clone(),
        gateway_namespace: flags.gateway_namespace.clone(),
    };
    let migration = migrate(&contents.objects, &settings);
    if migration.ingresses.is_empty() {
        let class = flags.ingress_class.as_ref().map(|name| format!(" of class {name}"));
        return Err(Failure::Input(vec![format!(
            "there is no Ingress{} in {source}",
            class.unwrap_or_default()
        )]));
    }
    let mut documents = Vec::new();
    for object in &migration.objects {
        let document = serde_saphyr::to_string(object).context("cannot write an object as YAML")?;
        documents.push(format!("---\n{}", document.trim_end()));
    }
    print(&documents)?;
    report(&migration.ingresses);
    if !migration.unacceptable.is_empty() {
        return Err(Failure::Input(migration.unacceptable));
    }
    let is_refused = |it: &MigratedIngress| it.outcome == MigrationOutcome::Refused;
    match migration.ingresses.iter().any(is_refused) {
        true => Err(Failure::Input(Vec::new())),
        false => Ok(()),
    }
}

/// Prints one line for each Ingress, and one for each difference.
#[expect(clippy::print_stderr, reason = "standard output has the objects")]
fn report(ingresses: &[MigratedIngress]) {
    for ingress in ingresses {
        let outcome = match ingress.outcome {
            MigrationOutcome::Same => "served as before",
            MigrationOutcome::Different => "served with differences",
            MigrationOutcome::Refused => "refused",
        };
        let (namespace, name) = (escaped(&ingress.namespace), escaped(&ingress.name));
        eprintln!("Ingress {namespace}/{name}: {outcome}");
        ingress.notes.iter().for_each(|note| eprintln!("  {}", escaped(note)));
    }
    let count = |outcome| ingresses.iter().filter(|it| it.outcome == outcome).count();
    eprintln!(
        "{}: {} as before, {} with differences, {} refused",
        match ingresses.len() {
            1 => "1 Ingress".to_owned(),
            many => format!("{many} Ingresses"),
        },
        count(MigrationOutcome::Same),
        count(MigrationOutcome::Different),
        count(MigrationOutcome::Refused),
    );
}
