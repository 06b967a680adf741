//! Compiles the eBPF programs with clang. `src/object.rs` embeds the result.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the compiler, the first that exists is used; `CLANG` in the environment comes before.
const COMPILERS: [&str; 8] =
    ["clang", "clang-21", "clang-20", "clang-19", "clang-18", "clang-16", "clang-15", "clang-14"];

fn main() {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let object = PathBuf::from(variable("OUT_DIR")).join("l4.o");
    let Some(compiler) = compiler() else {
        stop(
            "clang is missing, which compiles the eBPF programs. Run: scripts/setup test (Debian: clang libbpf-dev)",
        )
    };
    let target = if variable("CARGO_CFG_TARGET_ENDIAN") == "big" { "bpfeb" } else { "bpfel" };
    let mut command = Command::new(&compiler);
    command.args(["-O2", "-g", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-target", target]);
    command.args(header_folders().iter().flat_map(|folder| ["-idirafter", folder]));
    let output = command.args(["-c", "bpf/l4.c", "-o"]).arg(object).output();
    let output = output.unwrap_or_else(|error| stop(&format!("cannot run {compiler}: {error}")));
    let messages = String::from_utf8_lossy(&output.stderr);
    if messages.contains("bpf/bpf_helpers.h' file not found") {
        stop("the headers of libbpf are missing. Run: scripts/setup test (Debian: libbpf-dev)");
    }
    if !output.status.success() {
        stop(&format!("{compiler} cannot compile the eBPF programs:\n{messages}"));
    }
}

/// Returns the compiler that the environment names, or the first of the list that exists.
fn compiler() -> Option<String> {
    let runs = |name: &String| Command::new(name).arg("--version").output().is_ok();
    let named = env::var("CLANG").ok();
    named.or_else(|| COMPILERS.iter().map(|&name| name.to_owned()).find(runs))
}

/// Returns the folders with the headers of the kernel's interface that depend on the architecture of this machine.
fn header_folders() -> Vec<String> {
    let host = variable("HOST");
    let architecture = host.split('-').next().unwrap_or_default();
    let folder = format!("/usr/include/{architecture}-linux-gnu");
    let folders = [folder, "/usr/include".to_owned()];
    folders.into_iter().filter(|folder| Path::new(folder).exists()).collect()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| stop(&format!("cargo does not set {name}")))
}

fn stop(message: &str) -> ! {
    eprintln!("l4: {message}");
    std::process::exit(1)
}
