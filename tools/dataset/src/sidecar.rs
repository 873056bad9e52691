//! Reports of the files beside shards.

use std::io::{self, Write};

use serde::Serialize;
use shardfeed_source::{Fault, Sidecars};

use crate::output;

/// A fault of a file beside shards: wrong information, or damage.
#[derive(Debug, Serialize)]
pub(crate) struct FaultReport {
    /// Absolute path of that file.
    file: String,
    /// Description of the fault.
    what: String,
}

impl From<Fault> for FaultReport {
    fn from(Fault { file, what }: Fault) -> Self {
        Self { file: file.display().to_string(), what }
    }
}

/// Returns all faults: damage of the files, and differences from the counted records.
/// - `records`: number of records of each shard; `None` if it is unknown.
pub(crate) fn faults(
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

pub(crate) fn write_faults(out: &mut dyn Write, faults: &[FaultReport]) -> io::Result<()> {
    if !faults.is_empty() {
        writeln!(out)?;
    }
    for FaultReport { file, what } in faults {
        writeln!(out, "note: {} {}", output::printable(file), output::printable(what))?;
    }
    Ok(())
}
