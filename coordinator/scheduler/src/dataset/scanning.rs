//! Claims and reports of listings and scans.

use super::{Dataset, Phase, bounded, is_failed_by};
use crate::dataset::scan::{PartState, Progress, Scan, ScanLease, check_listing, check_total};
use crate::log::{
    Answer, Cordon, EventKind, FailScan, Failure, Fencing, MAPS_MAX, Part, Refusal, ReportListing,
    ReportScan, Result, SCANS_TAKEN_MAX, ScanRef, SessionId,
};
use crate::session::Session;
use crate::state::{Moment, State};

impl State {
    pub(crate) fn claim_scans(
        &mut self,
        Moment { index, now_ms }: Moment,
        session: SessionId,
        most: u32,
    ) -> Result<Answer> {
        self.sessions.live(session)?;
        if self.sessions.cordon(session) != Cordon::Open {
            return Ok(Answer::Scans(vec![]));
        }
        let lease = ScanLease { fencing: index, session, granted_ms: now_ms };
        let mut tasks = vec![];
        let mut fair = self.fair_share(session);
        while tasks.len() < most.min(SCANS_TAKEN_MAX) as usize {
            let Some(name) = fair.next(&self.datasets) else {
                break;
            };
            let task = self.datasets.get_mut(&name)?.take(&lease);
            self.datasets.file(&name);
            if let Some((task, part)) = task {
                tasks.push(task);
                self.sessions.file_scan(session, ScanRef { dataset: name, part });
            }
        }
        Ok(Answer::Scans(tasks))
    }

    pub(crate) fn report_listing(
        &mut self,
        moment: Moment,
        report: &ReportListing,
    ) -> Result<Answer> {
        let ReportListing { session, dataset: name, fencing, root, parts } = report;
        self.sessions.live(*session)?;
        let dataset = self.datasets.get(name)?;
        match &dataset.phase {
            Phase::Listing { lease } if holds(lease.as_ref(), *session, *fencing) => {}
            _ if was_listed(dataset, root, parts) => return Ok(Answer::Done),
            _ => return Err(fenced(*fencing, &dataset.phase)),
        }
        if parts.is_empty() {
            let failure = nothing_found(dataset);
            self.fail(moment, name, failure);
            return Ok(Answer::Done);
        }
        check_listing(root, parts)?;
        check_total(self.datasets.parts(), parts.len())?;
        if !dataset.scope.is_empty() {
            self.datasets.check_parts(dataset.principal(), parts.len())?;
        }
        let dataset = self.datasets.get_mut(name)?;
        let scan = Scan::new(root, parts);
        let Progress { files, bytes, .. } = scan.progress;
        self.events.tell(EventKind::DatasetListed { dataset: name.clone(), files, bytes });
        dataset.phase = Phase::Scanning(scan);
        self.datasets.file(name);
        self.sessions.drop_scan(*session, &ScanRef { dataset: name.clone(), part: None });
        Ok(Answer::Done)
    }

    pub(crate) fn report_scan(&mut self, report: &ReportScan) -> Result<Answer> {
        let ReportScan { session, dataset: name, part: number, fencing, chunk, records, maps } =
            report;
        self.sessions.live(*session)?;
        let dataset = self.datasets.get(name)?;
        let reported = PartState::Done { chunk: *chunk, records: *records, maps: maps.clone() };
        let known = dataset.scan().and_then(|scan| scan.parts.get(usize::try_from(*number).ok()?));
        match known.map(|part| &part.state) {
            Some(PartState::Leased(lease)) if holds(Some(lease), *session, *fencing) => {}
            Some(known) if *known == reported => return Ok(Answer::Done),
            _ => return Err(fenced(*fencing, &dataset.phase)),
        }
        if !maps.is_empty() {
            let Progress { parts, maps: known, .. } = dataset.progress();
            // The last chunk of a part is as small as its maps.
            if maps.len() as u64 > (MAPS_MAX + parts).saturating_sub(known) {
                let what = "MiB of sample maps of a dataset".to_owned();
                let hint =
                    "start all workers with --index, where these maps are then kept, or use fewer \
                            files at once"
                        .to_owned();
                return Err(Refusal::Full { what, most: MAPS_MAX, hint });
            }
            check_total(self.datasets.parts(), maps.len())?;
            if !dataset.scope.is_empty() {
                self.datasets.check_parts(dataset.principal(), maps.len())?;
            }
        }
        let dataset = self.datasets.get_mut(name)?;
        let Phase::Scanning(scan) = &mut dataset.phase else {
            return Err(fenced(*fencing, &dataset.phase));
        };
        if scan.progress.records.checked_add(*records).is_none() {
            let reason = format!("{records} records cannot be counted");
            return Err(Refusal::Invalid(reason));
        }
        let Some(part) = scan.part_mut(*number) else {
            return Err(fenced(*fencing, &dataset.phase));
        };
        part.state = reported;
        let listed = part.listed.clone();
        scan.progress.count(&listed, *records, maps.len());
        if scan.progress.parts_done == scan.progress.parts {
            dataset.phase = Phase::Assembling(scan.clone());
        }
        self.datasets.file(name);
        self.sessions.drop_scan(*session, &ScanRef { dataset: name.clone(), part: Some(*number) });
        Ok(Answer::Done)
    }

    pub(crate) fn fail_scan(&mut self, moment: Moment, fail: &FailScan) -> Result<Answer> {
        let FailScan { session, dataset: name, fencing, failure } = fail;
        let Session { scans: held, join, owner, .. } = self.sessions.live(*session)?;
        let dataset = self.datasets.get(name)?;
        let reported_by = match join.worker == *owner || owner.is_empty() {
            true => join.worker.clone(),
            false => format!("{} of {owner}", join.worker),
        };
        let failure = bounded(&Failure { reported_by, ..failure.clone() });
        if is_failed_by(dataset, &failure) {
            return Ok(Answer::Done);
        }
        let first = ScanRef { dataset: name.clone(), part: None };
        let mut held = held.range(first..).take_while(|scan| scan.dataset == *name);
        if !held.any(|scan| dataset.fencing_of(scan.part) == Some(*fencing)) {
            return Err(fenced(*fencing, &dataset.phase));
        }
        self.fail(moment, name, failure);
        Ok(Answer::Done)
    }
}

fn holds(lease: Option<&ScanLease>, session: SessionId, fencing: Fencing) -> bool {
    lease.is_some_and(|lease| lease.session == session && lease.fencing == fencing)
}

fn fenced(fencing: Fencing, phase: &Phase) -> Refusal {
    let phase = phase.in_words();
    let reason = format!("the dataset is {phase}, and this session does not have that part of it");
    Refusal::Fenced { what: "scan".to_owned(), fencing, reason }
}

/// True if the dataset's scan came from exactly this listing.
fn was_listed(dataset: &Dataset, root: &str, parts: &[Part]) -> bool {
    match dataset.scan() {
        Some(scan) => scan.root == root && scan.parts.iter().map(|part| &part.listed).eq(parts),
        None => parts.is_empty() && is_failed_by(dataset, &nothing_found(dataset)),
    }
}

fn nothing_found(dataset: &Dataset) -> Failure {
    let patterns = dataset.patterns.join(", ");
    let message = format!("no file matches {patterns}; check the patterns, or add the files first");
    let kind = "ERROR_KIND_NOT_FOUND".to_owned();
    bounded(&Failure { kind, message, ..Failure::default() })
}

#[cfg(test)]
mod tests;
