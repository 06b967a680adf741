//! Writes what `externalscaler.proto` comes to in Rust: the server's part into the crate `sheave`, the client's into
//! `tests`. Where they end up, each says from which text it was made; a test compares.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..");
    let proto = here.join("externalscaler.proto");
    let text = fs::read_to_string(&proto).expect("the proto file is there");
    let set = protox::compile([&proto], [here]).expect("the proto file is right");
    for (server, target) in [
        (true, "crates/sheave/src/scaler/externalscaler.rs"),
        (false, "tests/src/keda/externalscaler.rs"),
    ] {
        let out = scratch(server);
        tonic_prost_build::configure()
            .build_server(server)
            .build_client(!server)
            .build_transport(!server)
            .out_dir(&out)
            .compile_fds(set.clone())
            .expect("it is written");
        let code = fs::read_to_string(out.join("externalscaler.rs")).expect("it was written");
        let head = "//! Made from `tests/scaler/externalscaler.proto` by `make gen`";
        let made =
            format!("{head}, of {} bytes with the sum {:016x}.\n{code}", text.len(), sum(&text));
        let target = root.join(target);
        fs::write(&target, made).expect("it can be written");
        let formatted = Command::new("rustfmt").args(["--edition", "2024"]).arg(&target).status();
        assert!(formatted.expect("rustfmt is there").success());
        fs::remove_dir_all(out).expect("it is ours");
    }
}

fn scratch(server: bool) -> PathBuf {
    let name = format!("sheave-scaler-{}-{server}", std::process::id());
    let path = env::temp_dir().join(name);
    fs::create_dir_all(&path).expect("there is room");
    path
}

/// FNV-1a, as the test that compares computes it.
fn sum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
