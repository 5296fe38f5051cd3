//! How much memory this process may use: its control group, and the machine.

use std::path::Path;

/// Version 1 writes about 2^63 for no limit.
const NONE: u64 = 1 << 60;

/// The least limit of the group and of those around it; None: there is no limit, or none that can be read.
pub fn limit() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_of(&told, Path::new("/sys/fs/cgroup"))
}

/// The machine's memory; None where it is not told.
pub fn machine() -> Option<u64> {
    machine_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn machine_of(told: &str) -> Option<u64> {
    let total = told.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Reads the groups of a process as `/proc/self/cgroup` tells them. Inside a container the path may be that of the host:
/// then its end is not there, and the root has the limit.
fn limit_of(told: &str, root: &Path) -> Option<u64> {
    let group = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (base, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            some if some.split(',').any(|c| c == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return None,
        };
        let group = base.join(path.trim_start_matches('/'));
        let around = group.ancestors().take_while(|folder| folder.starts_with(&base));
        around.filter_map(|folder| read(&folder.join(file))).min()
    };
    told.lines().filter_map(group).min()
}

/// `max` and what cannot be read are no limit.
fn read(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.trim().parse().ok().filter(|&limit| limit < NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(root: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_machine_tells_its_memory_in_kibibytes() {
        assert_eq!(machine_of("MemFree: 7 kB\nMemTotal:       24576 kB\n"), Some(24 << 20));
        assert_eq!(machine_of("MemTotal: much\n"), None);
        assert_eq!(machine_of(""), None);
        assert!(machine().is_none_or(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_least_limit_of_all_groups_around_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        written(root, &[("a/b/memory.max", "max\n"), ("a/memory.max", "4096\n"), ("memory.max", "max\n")]);
        assert_eq!(limit_of("0::/a/b\n", root), Some(4096));
        written(root, &[("a/b/memory.max", "100\n")]);
        assert_eq!(limit_of("0::/a/b\n", root), Some(100));
        assert_eq!(limit_of("0::/a\n", root), Some(4096));
        assert_eq!(limit_of("0::/\n", root), None);
    }

    #[test]
    fn version_1_and_paths_of_the_host() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let unlimited = "9223372036854771712\n";
        written(root, &[("memory/x/memory.limit_in_bytes", unlimited)]);
        let told = "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n";
        assert_eq!(limit_of(told, root), None);
        written(root, &[("memory/memory.limit_in_bytes", "8192\n")]);
        assert_eq!(limit_of(told, root), Some(8192));
        assert_eq!(limit_of("4:hugetlb,memory:/docker/of/the/host\n", root), Some(8192));
        for nonsense in ["", "4:memory\n", "no colons\n", "3:memoryless:/x\n"] {
            assert_eq!(limit_of(nonsense, root), None, "{nonsense:?}");
        }
    }
}
