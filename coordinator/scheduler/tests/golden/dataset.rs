//! Commands about datasets and their scans.

use shardfeed_plan::{Corrupt, Digest};
use shardfeed_scheduler::{
    AddDataset, Answer, Change, FailDataset, FailScan, Failure, FinishDataset, LeasedScan, Listing,
    Part, Phase, ReportListing, ReportScan, ScanTask, ScanWork,
};

use super::args::{Args, Failed, number};
use super::{Output, Script};

pub(super) fn digest(byte: u8) -> Digest {
    Digest::from_bytes([byte; 32])
}

/// Parts of 10 files and 1,000 bytes.
fn parts(count: u8) -> Vec<Part> {
    (0..count).map(|part| Part { chunk: digest(part), files: 10, bytes: 1_000 }).collect()
}

fn task_line(task: &ScanTask) -> String {
    let ScanTask { dataset, fencing, .. } = task;
    let work = match &task.work {
        ScanWork::List { patterns } => format!("list {}", patterns.join(", ")),
        ScanWork::Scan { root, part, .. } => format!("scan part {part} below {root}"),
    };
    format!("lease {fencing} on {dataset}: {work}")
}

impl Script {
    pub(super) fn dispatch_dataset(&mut self, name: &str, args: &mut Args) -> Output {
        match name {
            "add-dataset" => self.add_dataset(args),
            "claim-scans" => self.claim_scans(args),
            "report-listing" => self.report_listing(args),
            "report-scan" => self.report_scan(args),
            "fail-scan" => self.fail_scan(args),
            "release-scan" => self.release_scan(args),
            "finish-dataset" => self.finish_dataset(args),
            "fail-dataset" => self.fail_dataset(args),
            "remove-dataset" => self.remove_dataset(args),
            _ => self.dispatch_job(name, args),
        }
    }

    /// `add-dataset NAME [patterns="/data/*"] [compression=auto] [listed=PARTS] [program=BYTE]`
    fn add_dataset(&mut self, args: &mut Args) -> Output {
        let name = args.word("a dataset")?.to_owned();
        let listed = args.key("listed")?.map(|count| {
            let (root, parts) = ("/data".to_owned(), parts(count));
            Listing { root, parts }
        });
        let mut patterns = args.list("patterns")?;
        if patterns.is_empty() && listed.is_none() {
            patterns.push("/data/*.tfrecord".to_owned());
        }
        let compression = args.or("compression", "auto".to_owned())?;
        let (corrupt, listing) = (Corrupt::Error, listed);
        let program = args.key("program")?.map(digest);
        let name_of = name.clone();
        let add = AddDataset { name: name_of, patterns, compression, corrupt, listing, program };
        let done = self.apply(Change::AddDataset(add))?;
        let phase = self.state.dataset(&name).map_or("gone", |dataset| phase_name(&dataset.phase));
        done.say(format!("dataset {name} is {phase}"))
    }

    /// `claim-scans WORKER [most=1]`
    fn claim_scans(&mut self, args: &mut Args) -> Output {
        let worker = args.word("a worker")?.to_owned();
        let session = self.session(&worker, args)?;
        let most = args.or("most", 1)?;
        let done = self.apply(Change::ClaimScans { session, most })?;
        let Answer::Scans(tasks) = &done.answer else { return Err("no tasks".into()) };
        for task in tasks {
            self.scans.insert((worker.clone(), task.dataset.clone()), task.fencing);
        }
        let mut lines: Vec<String> = tasks.iter().map(task_line).collect();
        if lines.is_empty() {
            lines.push("no work".to_owned());
        }
        let lines = lines.iter().map(|line| format!("worker {worker}: {line}"));
        done.say(lines.collect::<Vec<_>>().join("\n"))
    }

    /// `report-listing WORKER DATASET [parts=1] [fencing=N]`
    fn report_listing(&mut self, args: &mut Args) -> Output {
        let (session, dataset, fencing) = self.scan_of(args)?;
        let (root, parts) = ("/data".to_owned(), parts(args.or("parts", 1)?));
        let count = parts.len();
        let report = ReportListing { session, dataset: dataset.clone(), fencing, root, parts };
        let done = self.apply(Change::ReportListing(report))?;
        let phase =
            self.state.dataset(&dataset).map_or("gone", |dataset| phase_name(&dataset.phase));
        done.say(format!("dataset {dataset} is {phase}: {count} parts"))
    }

    /// `report-scan WORKER DATASET PART [records=50] [chunk=BYTE] [maps=COUNT] [fencing=N]`
    fn report_scan(&mut self, args: &mut Args) -> Output {
        let (session, dataset, fencing) = self.scan_of(args)?;
        let part = number(args.word("a part")?)?;
        let (chunk, records) = (digest(args.or("chunk", 100)?), args.or("records", 50)?);
        let maps = vec![digest(101); args.or("maps", 0)?];
        let of = dataset.clone();
        let report = ReportScan { session, dataset: of, part, fencing, chunk, records, maps };
        let done = self.apply(Change::ReportScan(report))?;
        let known = self.state.dataset(&dataset);
        let (phase, progress) =
            known.map(|known| (phase_name(&known.phase), known.progress())).unwrap_or_default();
        let of = format!("{} of {} parts", progress.parts_done, progress.parts);
        done.say(format!("dataset {dataset} is {phase}: {of}, {} records", progress.records))
    }

    /// `fail-scan WORKER DATASET message=TEXT [file=F] [fencing=N]`
    fn fail_scan(&mut self, args: &mut Args) -> Output {
        let (session, dataset, fencing) = self.scan_of(args)?;
        let failure = failure(args)?;
        let fail = FailScan { session, dataset: dataset.clone(), fencing, failure };
        self.apply(Change::FailScan(fail))?.say(format!("dataset {dataset} has failed"))
    }

    /// `release-scan WORKER DATASET [PART]`: the leader saw no progress of this scan.
    fn release_scan(&mut self, args: &mut Args) -> Output {
        let (_, dataset, fencing) = self.scan_of(args)?;
        let part = args.words().first().map(|part| number(part)).transpose()?;
        let scans = vec![LeasedScan { dataset: dataset.clone(), part, fencing }];
        let done = self.apply(Change::ReleaseScans { scans })?;
        done.say(format!("lease {fencing} on {dataset} was released"))
    }

    /// `finish-dataset NAME [content=7] [attempt=1] [shards=N] [records=N]`
    fn finish_dataset(&mut self, args: &mut Args) -> Output {
        let dataset = args.word("a dataset")?.to_owned();
        let progress = self.state.dataset(&dataset).map(|known| known.progress());
        let progress = progress.unwrap_or_default();
        let finish = FinishDataset {
            dataset: dataset.clone(),
            attempt: args.or("attempt", 1)?,
            content: digest(args.or("content", 7)?),
            shards: args.or("shards", progress.files)?,
            records: args.or("records", progress.records)?,
        };
        self.apply(Change::FinishDataset(finish))?.say(format!("dataset {dataset} is finished"))
    }

    /// `fail-dataset NAME message=TEXT [attempt=1]`
    fn fail_dataset(&mut self, args: &mut Args) -> Output {
        let dataset = args.word("a dataset")?.to_owned();
        let (attempt, failure) = (args.or("attempt", 1)?, failure(args)?);
        let fail = FailDataset { dataset: dataset.clone(), attempt, failure };
        self.apply(Change::FailDataset(fail))?.say(format!("dataset {dataset} has failed"))
    }

    /// `remove-dataset NAME`
    fn remove_dataset(&mut self, args: &mut Args) -> Output {
        let name = args.word("a dataset")?.to_owned();
        let done = self.apply(Change::RemoveDataset { name: name.clone() })?;
        done.say(format!("dataset {name} is removed"))
    }

    /// Session, dataset and fencing token of a worker's scan: `fencing=`, or its last one.
    fn scan_of(&self, args: &mut Args) -> Result<(u64, String, u64), Failed> {
        let worker = args.word("a worker")?.to_owned();
        let dataset = args.word("a dataset")?.to_owned();
        let known = self.scans.get(&(worker.clone(), dataset.clone())).copied();
        let fencing = args.key("fencing")?.or(known).unwrap_or(0);
        Ok((self.session(&worker, args)?, dataset, fencing))
    }
}

fn failure(args: &mut Args) -> Result<Failure, Failed> {
    let (kind, message) = ("ERROR_KIND_CORRUPT".to_owned(), args.or("message", String::new())?);
    Ok(Failure { kind, message, file: args.key("file")?, ..Failure::default() })
}

pub(super) fn phase_name(phase: &Phase) -> &'static str {
    match phase {
        Phase::Listing { .. } => "listing",
        Phase::Scanning(_) => "scanning",
        Phase::Assembling(_) => "assembling",
        Phase::Ready(_) => "ready",
        Phase::Failed { .. } => "failed",
    }
}
