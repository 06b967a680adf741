//! Configuration directory with atomic file updates: each file is replaced as a whole.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io, process};

use serde_json::Value;

use crate::objects;

/// Name of the Service in a configuration that has only one.
pub const SERVICE: &str = "app";

/// Directory of configuration files, removed when dropped.
pub struct ConfigDirectory {
    directory: TempDirectory,
}

impl ConfigDirectory {
    /// Creates a directory without files.
    pub fn empty() -> io::Result<Self> {
        Ok(Self { directory: TempDirectory::new()? })
    }

    /// Creates one listener that routes every request to these endpoints of the Service `app`.
    pub fn for_endpoints(endpoints: &[SocketAddr]) -> io::Result<Self> {
        Self::for_endpoints_with(endpoints, &[])
    }

    /// Like [`ConfigDirectory::for_endpoints`], with additional objects, usually policies.
    pub fn for_endpoints_with(endpoints: &[SocketAddr], more: &[Value]) -> io::Result<Self> {
        Self::with_gateway(objects::gateway(), endpoints, more)
    }

    /// Like [`ConfigDirectory::for_endpoints_with`], behind this Gateway.
    pub fn with_gateway(
        mut objects: Vec<Value>,
        endpoints: &[SocketAddr],
        more: &[Value],
    ) -> io::Result<Self> {
        let configuration = Self::empty()?;
        objects.extend([objects::route(SERVICE), objects::service(SERVICE)]);
        objects.extend_from_slice(more);
        configuration.write("main.yaml", &objects)?;
        configuration.set_endpoints(endpoints)?;
        Ok(configuration)
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Replaces the ready endpoints of the Service `app`.
    pub fn set_endpoints(&self, endpoints: &[SocketAddr]) -> io::Result<()> {
        self.write("endpoints.yaml", &objects::slices(SERVICE, endpoints))
    }

    /// Creates or replaces the file.
    pub fn write(&self, file: &str, objects: &[Value]) -> io::Result<()> {
        let documents: Vec<String> = objects.iter().map(|object| format!("{object:#}\n")).collect();
        self.write_text(file, &documents.join("---\n"))
    }

    /// Creates or replaces the file.
    pub fn write_text(&self, file: &str, text: &str) -> io::Result<()> {
        let unfinished = self.path().join(format!(".{file}.unfinished"));
        fs::write(&unfinished, text)?;
        fs::rename(unfinished, self.path().join(file))
    }

    pub fn remove(&self, file: &str) -> io::Result<()> {
        fs::remove_file(self.path().join(file))
    }
}

/// Directory for this test alone, removed when dropped.
pub struct TempDirectory(PathBuf);

impl TempDirectory {
    pub fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("sheave-test-{}-{number}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        // A directory that cannot be removed is left to the system's cleanup of temporary files.
        drop(fs::remove_dir_all(&self.0));
    }
}
