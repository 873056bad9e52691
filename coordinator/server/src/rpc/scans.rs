//! Reports of workers about datasets. The chunks of a report are read and checked before it is
//! proposed: a missing, damaged or wrong chunk never becomes part of a dataset.

use std::sync::Arc;

use shardfeed_plan::Digest;
use shardfeed_proto::chunk::{EntriesChunk, ListingChunk};
use shardfeed_proto::coordinator::v1::{self as wire, report_listing_request, scan_task};
use shardfeed_proto::{WireError, digest_from};
use shardfeed_scheduler::{
    Answer, Change, FailScan, Listing, MAPS_MAX, PARTS_MAX, Part, ReportListing, ReportScan,
    SCANS_TAKEN_MAX, ScanTask, ScanWork, TEXT_BYTES_MAX,
};

use super::checks::{check_len, unexpected};
use super::context::Caller;
use super::files::Matcher;
use super::serve::Call;
use crate::error::{self, Result, invalid};
use crate::leader::core::{Core, blocking};
use crate::storage::copies;
use crate::storage::manifests::{entries_of, listing_of};

pub(super) async fn claim_scans(
    call: Call<wire::ClaimScansRequest>,
) -> Result<wire::ClaimScansResponse> {
    let Call { core, caller, request } = call;
    let wire::ClaimScansRequest { session, most, .. } = request;
    if most == 0 || most > SCANS_TAKEN_MAX {
        return Err(invalid(format!("`most` is {most}; 1 to {SCANS_TAKEN_MAX} are allowed")));
    }
    match core.propose(caller, Change::ClaimScans { session, most }).await? {
        Answer::Scans(tasks) => {
            Ok(wire::ClaimScansResponse { tasks: tasks.into_iter().map(task_to).collect() })
        }
        other => Err(unexpected(&other)),
    }
}

pub(super) async fn report_listing(
    call: Call<wire::ReportListingRequest>,
) -> Result<wire::ReportListingResponse> {
    let Call { core, caller, request } = call;
    let wire::ReportListingRequest { session, dataset, fencing, root, parts, .. } = request;
    let parts = parts_from(parts)?;
    let referred: Vec<Digest> = parts.iter().map(|part| part.chunk).collect();
    let known = core.read(|state| Some(Matcher::new(&state.dataset(&dataset)?.patterns)));
    let check = checked(&core, known, Listing { root: root.clone(), parts: parts.clone() });
    let report = ReportListing { session, dataset, fencing, root, parts };
    propose_referring(&core, caller, Change::ReportListing(report), referred, check).await?;
    Ok(wire::ReportListingResponse {})
}

pub(super) fn parts_from(parts: Vec<report_listing_request::Part>) -> Result<Vec<Part>> {
    check_len("parts", parts.len(), PARTS_MAX)?;
    let part = |part: report_listing_request::Part| {
        let chunk = digest_from("chunk", &part.chunk)?;
        Ok(Part { chunk, files: part.files, bytes: part.bytes })
    };
    parts.into_iter().map(part).collect()
}

/// Rejects a listing whose chunks are missing, or do not match its parts.
/// - `matcher`: pattern that its files must match; `None`: any file.
pub(super) async fn checked(
    core: &Arc<Core>,
    matcher: Option<Matcher>,
    listing: Listing,
) -> Result<()> {
    let chunks: Vec<Digest> = listing.parts.iter().map(|part| part.chunk).collect();
    copies::bring(core, &chunks).await?;
    let check = move |core: &Core| check_listing(core, matcher.as_ref(), &listing);
    blocking(core, "checking a listing", check).await
}

pub(super) async fn report_scan(
    call: Call<wire::ReportScanRequest>,
) -> Result<wire::ReportScanResponse> {
    let Call { core, caller, request } = call;
    let wire::ReportScanRequest { session, dataset, fencing, part, chunk, records, maps, .. } =
        request;
    let chunk = digest_from("chunk", &chunk)?;
    check_len("maps", maps.len(), MAPS_MAX as usize)?;
    let maps =
        maps.iter().map(|map| digest_from("maps", map)).collect::<Result<Vec<Digest>, _>>()?;
    // Without a listing the state rejects the report, with a reason.
    let listed = core.read(|state| {
        let dataset = state.dataset(&dataset)?;
        let part = dataset.scan()?.parts.get(usize::try_from(part).ok()?)?;
        Some((part.listed.chunk, dataset.program.is_some()))
    });
    let (referred, said) = ([&[chunk], &maps[..]].concat(), (records, maps.clone()));
    let check = async {
        copies::bring(&core, &listed.map(|(listed, _)| vec![listed]).unwrap_or_default()).await?;
        copies::bring(&core, &referred).await?;
        let check = move |core: &Core| check_scan(core, &chunk, listed, &said);
        blocking(&core, "checking a scan", check).await
    };
    let report = ReportScan { session, dataset, part, fencing, chunk, records, maps };
    propose_referring(&core, caller, Change::ReportScan(report), referred.clone(), check).await?;
    Ok(wire::ReportScanResponse {})
}

pub(super) async fn fail_scan(call: Call<wire::FailScanRequest>) -> Result<wire::FailScanResponse> {
    let Call { core, caller, request } = call;
    let wire::FailScanRequest { session, dataset, fencing, error, .. } = request;
    let mut failure = error::failure_from(&WireError::from_message(error));
    failure.message = printable(&failure.message);
    failure.file = failure.file.as_deref().map(printable);
    let fail = FailScan { session, dataset, fencing, failure };
    core.propose(caller, Change::FailScan(fail)).await?;
    Ok(wire::FailScanResponse {})
}

/// Escapes control characters of a worker's text, which could affect a terminal.
fn printable(text: &str) -> String {
    let escaped = |character: char| match character.is_control() {
        true => character.escape_debug().to_string(),
        false => character.to_string(),
    };
    text.chars().take(TEXT_BYTES_MAX).map(escaped).collect()
}

/// Proposes a change that refers to chunks, which are kept meanwhile, if `check` succeeds.
pub(super) async fn propose_referring(
    core: &Core,
    caller: Caller,
    change: Change,
    chunks: Vec<Digest>,
    check: impl Future<Output = Result<()>>,
) -> Result<()> {
    core.chunks.touch(&chunks, core.host.now());
    check.await?;
    core.propose(caller, change).await?;
    core.chunks.refer(&chunks);
    Ok(())
}

/// Rejects a listing whose chunks do not match its parts.
fn check_listing(
    core: &Core,
    matcher: Option<&Matcher>,
    Listing { root, parts }: &Listing,
) -> Result<()> {
    let mut last: Option<String> = None;
    for (number, part) in parts.iter().enumerate() {
        let ListingChunk { files, .. } = listing_of(&core.chunks, &part.chunk)?;
        let bytes: u128 = files.iter().map(|file| u128::from(file.size)).sum();
        if (files.len() as u64, bytes) != (part.files, u128::from(part.bytes)) {
            return Err(invalid(format!(
                "part {number} is said to have {} files of {} bytes, but its chunk {} lists {} files \
                 of {bytes} bytes",
                part.files,
                part.bytes,
                part.chunk,
                files.len()
            )));
        }
        if let (Some(last), Some(first)) = (&last, files.first())
            && last.as_bytes() >= first.path.as_bytes()
        {
            let path = &first.path;
            return Err(invalid(format!(
                "part {number} begins with `{path}`, which is not after `{last}`"
            )));
        }
        if let Some(matcher) = matcher {
            files.iter().try_for_each(|file| matcher.check(root, &file.path))?;
        }
        last = files.into_iter().next_back().map(|file| file.path).or(last);
    }
    Ok(())
}

/// Rejects a scan whose chunk does not match the listing.
/// - `listed`: chunk of the listing; true if a program makes samples of the records.
/// - `maps`: said chunks with the sample maps.
fn check_scan(
    core: &Core,
    chunk: &Digest,
    listed: Option<(Digest, bool)>,
    (samples, maps): &(u64, Vec<Digest>),
) -> Result<()> {
    let found: EntriesChunk = entries_of(&core.chunks, chunk)?;
    if found.samples() != *samples {
        let known = found.samples();
        return Err(invalid(format!(
            "`records` is {samples}, but chunk {chunk} holds {known} records"
        )));
    }
    if found.maps != *maps {
        return Err(invalid(format!("`maps` are other chunks than those that {chunk} names")));
    }
    let Some((listed, has_program)) = listed else {
        return Ok(());
    };
    if !found.entries.is_empty() && found.has_samples() != has_program {
        let message = match has_program {
            true => "the worker did not count the samples of the dataset's program; upgrade it",
            false => "the worker counted the samples of a program that the dataset does not have",
        };
        return Err(invalid(message));
    }
    let listing = listing_of(&core.chunks, &listed)?;
    let listed = listing.files.iter().map(|file| &file.path);
    match found.entries.iter().map(|entry| &entry.path).eq(listed) {
        true => Ok(()),
        false => {
            Err(invalid(format!("chunk {chunk} does not hold the files of this part, in order")))
        }
    }
}

fn task_to(task: ScanTask) -> wire::ScanTask {
    let ScanTask { dataset, fencing, compression, corrupt, work, program } = task;
    let work = match work {
        ScanWork::List { patterns } => scan_task::Work::List(scan_task::List { patterns }),
        ScanWork::Scan { root, part, chunk } => {
            let chunk = chunk.as_bytes().to_vec();
            scan_task::Work::Scan(scan_task::Scan { root, part, chunk })
        }
    };
    let corrupt = corrupt.to_string();
    let program = program.map(|program| program.as_bytes().to_vec()).unwrap_or_default();
    wire::ScanTask { dataset, fencing, compression, corrupt, work: Some(work), program }
}
