//! Committed files that tests keep fresh: `UPDATE_EXPECT=1` rewrites them.

use std::path::Path;
use std::{env, fs};

/// Asserts that a file of the repository has this text.
pub(crate) fn expect_file(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        return;
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == text, "{path} is out of date: run `make gen`\n--- it would be:\n{text}");
}
