//! The BPF file system that holds the pins.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;
use rustix::mount::{MountFlags, mount};

use crate::L4Error;
use crate::data_path::LinkPin;

/// Type of a BPF file system in `statfs`.
const BPF_MAGIC: u64 = 0xcafe_4a11;

/// Makes the folder, mounts a BPF file system there if there is none, and returns the folder of this version in it.
pub(crate) fn open_bpf_folder(folder: &Path, version: &str) -> Result<PathBuf, L4Error> {
    let failed = |source: io::Error| L4Error::NoBpfFileSystem { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    if !is_bpf(folder).map_err(failed)? {
        mount("bpf", folder, "bpf", MountFlags::empty(), None)
            .map_err(|error| failed(error.into()))?;
    }
    let folder = folder.join(version);
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

fn is_bpf(folder: &Path) -> io::Result<bool> {
    Ok(statfs(folder)?.f_type as u64 == BPF_MAGIC)
}

/// Removes the pins of links that `is_wanted` selects; a link that is pinned nowhere else ends.
pub(crate) fn remove_pins(
    folder: &Path,
    is_wanted: impl Fn(&LinkPin) -> bool,
) -> Result<(), L4Error> {
    let failed = |error| L4Error::pin(folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let pin = entry.file_name().to_str().and_then(LinkPin::parse);
        if pin.is_some_and(|pin| is_wanted(&pin)) {
            fs::remove_file(entry.path()).map_err(|error| L4Error::pin(&entry.path(), error))?;
        }
    }
    Ok(())
}

/// Removes the folders beside this one.
pub(crate) fn remove_other_folders(folder: &Path) -> Result<(), L4Error> {
    let Some(parent) = folder.parent() else { return Ok(()) };
    let failed = |error| L4Error::pin(parent, error);
    for entry in fs::read_dir(parent).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path != folder && path.is_dir() {
            fs::remove_dir_all(&path).map_err(|error| L4Error::pin(&path, error))?;
        }
    }
    Ok(())
}
