//! Generator of the command-line reference page, from the flags themselves.

use std::fmt::Write;

use clap::builder::StyledStr;
use clap::{Arg, CommandFactory};

use super::CommandLine;
use crate::expect::expect_file;

#[test]
fn cli_reference_page_is_fresh() {
    expect_file("docs/reference/cli.md", &page());
}

fn page() -> String {
    let mut command = CommandLine::command();
    command.build();
    let mut page = String::from("# Command line\n");
    let about = command.get_about().map(StyledStr::to_string).unwrap_or_default();
    write!(page, "\n<!-- Made from crates/sheave/src/flags.rs by `make gen`. -->\n\n{about}\n")
        .unwrap();
    for subcommand in command.get_subcommands().filter(|it| it.get_name() != "help") {
        let name = subcommand.get_name();
        match subcommand.has_subcommands() {
            false => section(&mut page, name, subcommand),
            true => {
                for nested in subcommand.get_subcommands().filter(|it| it.get_name() != "help") {
                    section(&mut page, &format!("{name} {}", nested.get_name()), nested);
                }
            }
        }
    }
    page
}

fn section(page: &mut String, name: &str, command: &clap::Command) {
    let about = command.get_long_about().or_else(|| command.get_about()).unwrap();
    write!(page, "\n## `sheave {}`\n\n{}\n", name, wrap(&about.to_string())).unwrap();
    let mut sections: Vec<(&str, Vec<&Arg>)> = Vec::new();
    for argument in
        command.get_arguments().filter(|it| it.get_id() != "help" && it.get_id() != "version")
    {
        let heading = argument.get_help_heading().unwrap_or("Arguments");
        match sections.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, arguments)) => arguments.push(argument),
            None => sections.push((heading, vec![argument])),
        }
    }
    for (heading, arguments) in sections {
        write!(page, "\n### {heading}\n\n| flag | meaning | default |\n| --- | --- | --- |\n")
            .unwrap();
        for argument in arguments {
            row(page, argument);
        }
    }
    let examples = command.get_after_help().unwrap().to_string();
    let (examples, rest) = examples.split_once("\n\n").unwrap();
    let examples = examples.strip_prefix("Examples:\n").unwrap();
    write!(page, "\n### Examples\n\n```text\n{examples}\n```\n\n{}\n", wrap(rest)).unwrap();
}

fn row(page: &mut String, argument: &Arg) {
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    let takes_values = argument.get_action().takes_values();
    let repeats = argument.get_num_args().is_some_and(|count| count.max_values() > 1);
    let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let flag = match argument.get_long() {
        Some(long) if takes_values => format!("`{short}--{long} {value}`"),
        Some(long) => format!("`{short}--{long}`"),
        None if repeats => format!("`{value}...`"),
        None => format!("`{value}`"),
    };
    let help = argument.get_long_help().or_else(|| argument.get_help()).unwrap().to_string();
    let (help, written) = match help.split_once(" [default: ") {
        Some((help, rest)) => (help.to_owned(), rest.trim_end_matches(['.', ']']).to_owned()),
        None => (help, String::new()),
    };
    let default = argument.get_default_values().first().filter(|_| takes_values);
    let default = default.map(|it| format!("`{}`", it.to_string_lossy()));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = help.trim_end_matches('.');
    let (flag, default) = (flag.replace('|', "\\|"), default.unwrap_or(written));
    writeln!(page, "| {flag} | {help} | {default} |").unwrap();
}

/// Wraps paragraphs at 120 columns and keeps line breaks.
fn wrap(text: &str) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let mut width = 0;
        for word in line.split_whitespace() {
            if width > 0 && width + 1 + word.len() > 120 {
                wrapped.push('\n');
                width = 0;
            } else if width > 0 {
                wrapped.push(' ');
                width += 1;
            }
            wrapped.push_str(word);
            width += word.len();
        }
        wrapped.push('\n');
    }
    wrapped.trim_end().to_owned()
}
