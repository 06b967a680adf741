//! The memory that this process may have: the limits of its control group (cgroup), of each version, and of its
//! parents, or the memory of the machine.

use std::fs;
use std::path::Path;

/// Mount point of control groups.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Limits from here on mean that there is none: version 1 has no word for that.
const UNLIMITED_FROM: u64 = 1 << 60;

/// Returns the limit in bytes; `None` if the kernel does not tell.
pub(crate) fn detect() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let machine = read("/proc/meminfo").and_then(|text| machine_memory(&text));
    group_limit(&groups, read).into_iter().chain(machine).min()
}

/// Parses the text of `/proc/meminfo`.
fn machine_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns the least limit of the groups in the text of `/proc/self/cgroup`, and of their parents. `read` returns the
/// content of a file.
fn group_limit(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let (root, file) = match controllers {
            "" => (CGROUP_ROOT.to_owned(), "memory.max"),
            list if list.split(',').any(|controller| controller == "memory") => {
                (format!("{CGROUP_ROOT}/memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        // In a container the path may be that of the host, which is not visible; the root is then the container's.
        let parents = Path::new(group).ancestors().filter_map(Path::to_str);
        let paths = parents.map(|parent| format!("{root}/{}/{file}", parent.trim_matches('/')));
        paths.filter_map(|path| read(&path)?.trim().parse().ok()).collect()
    });
    limits.filter(|limit: &u64| *limit < UNLIMITED_FROM).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the limit for this text of `/proc/self/cgroup`, with these files.
    fn check(groups: &str, files: &[(&str, &str)], expected: Option<u64>) {
        let read = |path: &str| {
            let same = |name: &str| Path::new(name) == Path::new(path);
            let file = files.iter().find(|(name, _)| same(name))?;
            Some(file.1.to_owned())
        };
        assert_eq!(group_limit(groups, read), expected, "{groups}");
    }

    #[test]
    fn limit_of_a_group_of_version_2_or_of_its_parent_is_found() {
        let own = ("/sys/fs/cgroup/pod/app/memory.max", "max\n");
        let parent = ("/sys/fs/cgroup/pod/memory.max", "1073741824\n");
        check("0::/pod/app\n", &[own, parent], Some(1 << 30));
        check("0::/pod/app\n", &[own], None);
    }

    #[test]
    fn limit_of_a_group_of_version_1_is_found() {
        let groups = "5:cpu,cpuacct:/a\n4:memory:/a/b\n";
        let own = ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "2000000\n");
        let root = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        check(groups, &[own, root], Some(2_000_000));
        check(groups, &[root], None);
    }

    #[test]
    fn root_is_read_where_the_path_of_the_host_is_not_visible() {
        check("0::/kubepods/x\n", &[("/sys/fs/cgroup/memory.max", "4096\n")], Some(4096));
    }

    #[test]
    fn memory_of_the_machine_is_an_upper_bound() {
        assert_eq!(machine_memory("MemTotal:       16 kB\nMemFree: 1 kB\n"), Some(16_384));
        assert!(detect().is_some_and(|bytes| bytes > 0));
    }
}
