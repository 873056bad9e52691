//! The default memory budget of a worker.

use std::fs;

/// Divisor of the available memory that gives the default budget.
const SHARE: u64 = 4;

/// Memory that is assumed if the system reports none, in bytes.
const FALLBACK_BYTES: u64 = 1 << 30;

/// Returns a quarter of the memory of this host or container, in bytes.
pub fn default_budget_bytes() -> u64 {
    let limits = [
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of(&text)),
        number_in("/sys/fs/cgroup/memory.max"),
        number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ];
    limits.into_iter().flatten().min().unwrap_or(FALLBACK_BYTES) / SHARE
}

fn number_in(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_systems_own_figure() {
        assert_eq!(
            total_of("MemTotal:       24689012 kB\nMemFree: 1 kB\n"),
            Some(24_689_012 << 10)
        );
        assert_eq!(total_of("nothing"), None);
        assert!(default_budget_bytes() > 0);
    }
}
