//! Waiting until the worker has nothing left to do: its thread sleeps, and neither side has heard anything new.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::task::yield_now;

/// Time in which anything must have happened. A machine that is busy makes nothing fail.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two looks at the worker, which needs the CPU.
pub(super) const PAUSE: Duration = Duration::from_micros(20);
/// Name of the worker's thread.
const THREAD: &str = "worker-0\n";
/// Turns of our own tasks in which they notice what has arrived.
const TURNS: usize = 2;

/// Observer of the worker.
pub(super) struct Quiescence {
    /// `/proc/self/task/ID/stat` of the worker's thread.
    thread: File,
    /// Number of events at the client and at the endpoint.
    events: Cell<u64>,
}

impl Quiescence {
    /// Finds the worker's thread.
    pub(super) fn of_worker() -> Self {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(folder) = worker_folder() {
                let thread = File::open(folder.join("stat")).expect("the thread exists");
                return Self { thread, events: Cell::new(0) };
            }
            assert!(Instant::now() < deadline, "no thread of a worker");
            std::thread::yield_now();
        }
    }

    /// Notes that the client or the endpoint has received something.
    pub(super) fn note_event(&self) {
        self.events.set(self.events.get() + 1);
    }

    /// Waits until nothing more happens.
    pub(super) async fn settle(&self) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let before = self.events.get();
            let was_asleep = self.is_asleep();
            for _ in 0..TURNS {
                yield_now().await;
            }
            if was_asleep && self.is_asleep() && self.events.get() == before {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        panic!("the worker does not come to rest");
    }

    /// True if the kernel shows that the thread waits for an event.
    fn is_asleep(&self) -> bool {
        let mut stat = [0; 64];
        let length = self.thread.read_at(&mut stat, 0).expect("the thread exists");
        let name_end = stat[..length].iter().rposition(|&byte| byte == b')');
        name_end.is_some_and(|end| stat.get(end + 2) == Some(&b'S'))
    }
}

fn worker_folder() -> Option<PathBuf> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    let mut folders = threads.filter_map(|thread| Some(thread.ok()?.path()));
    folders.find(|folder| fs::read_to_string(folder.join("comm")).is_ok_and(|name| name == THREAD))
}
