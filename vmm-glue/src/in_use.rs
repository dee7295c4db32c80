//! Whether the host uses a block device.
//!
//! The kernel guards itself: an exclusive open fails while a file system, swap, md, LVM or dm holds the device or a part of
//! it. This module finds out who that is, for the error.

use std::fs;
use std::path::Path;

/// Who uses the block device `major:minor` or one of its partitions; None when nobody is found.
pub(crate) fn user(major: u32, minor: u32) -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo");
    let swaps = read("/proc/swaps");
    let system = format!("/sys/dev/block/{major}:{minor}");
    let system = Path::new(&system);
    let name = |path: &Path| {
        let real = fs::canonicalize(path).ok()?;
        Some(real.file_name()?.to_string_lossy().into_owned())
    };
    // The device itself, and its partitions: directories of /sys/dev/block/M:N that have a `partition` file.
    let mut parts = vec![(format!("{major}:{minor}"), name(system), system.to_path_buf())];
    for entry in fs::read_dir(system).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.join("partition").exists()
            && let Ok(number) = fs::read_to_string(path.join("dev"))
        {
            parts.push((number.trim().to_string(), name(&path), path));
        }
    }
    parts.iter().find_map(|(number, name, path)| {
        mounted(&mounts, number)
            .map(|at| format!("mounted on {at}"))
            .or_else(|| {
                name.as_ref()
                    .filter(|name| swapped(&swaps, name))
                    .map(|_| "used as swap space".to_string())
            })
            .or_else(|| {
                let holder = fs::read_dir(path.join("holders")).ok()?.flatten().next()?;
                Some(format!("held by {}", holder.file_name().to_string_lossy()))
            })
    })
}

/// Where the device `number` (`major:minor`) is mounted. Fields of a line: mount id, parent id, device, root, mount point.
fn mounted<'a>(mounts: &'a str, number: &str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next()? == number).then(|| fields.nth(1))?
    })
}

/// Whether `/dev/<name>` is in the list of swap areas.
fn swapped(swaps: &str, name: &str) -> bool {
    let device = format!("/dev/{name}");
    swaps
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().next() == Some(&device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_swaps_are_found() {
        let mounts = "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw\n30 22 259:12 / /srv/a\\040b rw - xfs /dev/x rw\n";
        assert_eq!(mounted(mounts, "259:1"), Some("/"));
        assert_eq!(mounted(mounts, "259:12"), Some("/srv/a\\040b"));
        assert_eq!(mounted(mounts, "9:1"), None);
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2   partition\t8388604\t0\t-2\n";
        assert!(swapped(swaps, "sda2") && !swapped(swaps, "sda"));
    }

    #[test]
    fn nobody_uses_a_device_that_does_not_exist() {
        assert_eq!(user(4095, 1_048_575), None);
    }
}
