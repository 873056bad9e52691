//! What files beside shards say of them, as results tell it.

use std::io::{self, Write};

use serde::Serialize;
use shardfeed_agent::{Fault, Sidecars};

use crate::output;

/// What a file beside shards says that is not so, or that is wrong with it.
#[derive(Debug, Serialize)]
pub(super) struct FaultReport {
    /// Absolute path of that file.
    file: String,
    what: String,
}

impl From<Fault> for FaultReport {
    fn from(Fault { file, what }: Fault) -> Self {
        Self { file: file.display().to_string(), what }
    }
}

/// All faults: of the files themselves, and where they differ from what was counted.
/// - `records`: of each shard; `None` where nobody could count.
pub(super) fn faults(
    sidecars: &Sidecars,
    paths: &[String],
    records: &[Option<u64>],
) -> Vec<FaultReport> {
    let counted = paths.iter().zip(records).enumerate();
    let disagreements = counted.flat_map(|(shard, (path, records))| match records {
        Some(records) => sidecars.disagreements(shard, path, *records),
        None => Vec::new(),
    });
    sidecars.faults().iter().cloned().chain(disagreements).map(FaultReport::from).collect()
}

/// Writes them, if there are any.
pub(super) fn write_faults(out: &mut dyn Write, faults: &[FaultReport]) -> io::Result<()> {
    if !faults.is_empty() {
        writeln!(out)?;
    }
    for FaultReport { file, what } in faults {
        writeln!(out, "note: {} {}", output::printable(file), output::printable(what))?;
    }
    Ok(())
}
