//! Resource use of this process, under the metric names that all Prometheus client libraries use.
//!
//! The values come from Linux's /proc; unavailable ones have no line.

use std::fs;

/// Clock ticks per second in /proc: as Linux reports it to programs, independent of its timer.
const TICKS: f64 = 100.0;

/// Reads a file below /proc; replaced in tests.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the metrics in OpenMetrics format, without the end marker. Empty without /proc.
pub fn page() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).ok();
    let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    text(&read, open)
}

fn text(read: Read<'_>, open_files: Option<f64>) -> String {
    let (stat, status) = (read("self/stat"), read("self/status"));
    let stat = stat.as_deref();
    let cpu = field(stat, 14).zip(field(stat, 15)).map(|(user, system)| (user + system) / TICKS);
    let booted = read("stat").as_deref().and_then(|text| number_after(text, "btime"));
    let started = field(stat, 22).zip(booted).map(|(ticks, booted)| booted + ticks / TICKS);
    let in_status = |name| number_after(status.as_deref()?, name);
    let bytes = |name| in_status(name).map(|kibibytes| kibibytes * 1024.0);
    let files_max = read("self/limits").as_deref().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    let gauge = "gauge";
    let lines = [
        ("cpu_seconds", "counter", "Processor time that it used", cpu),
        ("resident_memory_bytes", gauge, "Memory that it has in use", bytes("VmRSS:")),
        ("virtual_memory_bytes", gauge, "Addresses that it has", bytes("VmSize:")),
        ("start_time_seconds", gauge, "When it began, Unix time", started),
        ("open_fds", gauge, "Files and connections that it has open", open_files),
        ("max_fds", gauge, "Files and connections that it may have open", files_max),
        ("threads", gauge, "Threads", in_status("Threads:")),
    ];
    let known = lines.into_iter().filter_map(|(name, kind, is, value)| {
        let unit = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit));
        let unit = unit.map(|unit| format!("# UNIT process_{name} {unit}\n")).unwrap_or_default();
        let total = if kind == "counter" { "_total" } else { "" };
        Some(format!(
            "# HELP process_{name} {is}.\n# TYPE process_{name} {kind}\n{unit}process_{name}{total} {}\n",
            value?
        ))
    });
    known.collect()
}

/// Returns a field of /proc/self/stat, counted from 1 as in proc(5).
///
/// The second field is a name that may contain spaces.
fn field(stat: Option<&str>, number: usize) -> Option<f64> {
    let (_, rest) = stat?.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn number_after(text: &str, word: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(word))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_proc_says() {
        let read = |name: &str| {
            let text = match name {
                "self/stat" => {
                    "7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 9 0 1000 4096 12"
                }
                "self/status" => {
                    "Name:\ta\nVmSize:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t9\n"
                }
                "stat" => "cpu  1 2 3\nbtime 1900000000\nprocesses 4\n",
                "self/limits" => {
                    "Limit   Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n"
                }
                _ => return None,
            };
            Some(text.to_owned())
        };
        let text = text(&read, Some(12.0));
        for line in [
            "# TYPE process_cpu_seconds counter",
            "# UNIT process_cpu_seconds seconds",
            "process_cpu_seconds_total 2",
            "process_resident_memory_bytes 1048576",
            "process_virtual_memory_bytes 2097152",
            "process_start_time_seconds 1900000010",
            "process_open_fds 12",
            "process_max_fds 1024",
            "process_threads 9",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_is_not_known_has_no_line() {
        assert_eq!(text(&|_| None, None), "");
        let unlimited = |name: &str| {
            (name == "self/limits").then(|| "Max open files unlimited unlimited files".to_owned())
        };
        assert_eq!(text(&unlimited, None), "");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_all_of_them() {
        let text = page();
        assert_eq!(text.lines().filter(|line| line.starts_with("process_")).count(), 7, "{text}");
    }
}
