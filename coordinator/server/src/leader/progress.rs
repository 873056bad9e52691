//! Progress of ranks and scans, as heartbeats reported it to this leader. Cursors become commands
//! once a second; the rest is for display and is lost with the process.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shardfeed_proto::common::v1::Account;
use shardfeed_scheduler::{CursorReport, LeaseRef, LeasedScan, Speeds};
use tokio::time::Instant;

/// Maximum shard ordinals being read that are kept of a rank.
pub(crate) const READING_MAX: usize = 1024;

/// Maximum cursors in one command; further ones go into the next.
pub(crate) const REPORT_BATCH_MAX: usize = 4096;

/// Maximum scans in one command that releases them; further ones go into the next.
const STALLED_BATCH_MAX: usize = 256;

/// Period over which rates are measured.
const RATE_WINDOW: Duration = Duration::from_secs(20);

/// Minimum period of a rate: shorter ones depend more on batches than on speed.
const RATE_TIME_MIN: Duration = Duration::from_secs(2);

/// Minimum period of a rank's speed: a rank moves batch by batch.
const SPEED_TIME_MIN: Duration = Duration::from_millis(500);

/// Maximum jobs whose rate is measured; a job without reports is removed after the window.
const RATE_JOBS_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct LiveProgress {
    ranks: BTreeMap<LeaseRef, RankState>,
    scans: BTreeMap<LeasedScan, ScanState>,
    rates: BTreeMap<String, Rate>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RankState {
    /// Epoch of the first step that is not consumed.
    pub(crate) epoch: u64,
    /// First step of the epoch that is not consumed.
    pub(crate) step: u64,
    /// Batches that are ready and not consumed.
    pub(crate) ready: u64,
    /// Shard ordinals that are being read, at most [`READING_MAX`].
    pub(crate) reading: Vec<u32>,
    /// Time breakdown that its worker reported last, and the time of that report.
    account: Option<(Account, Instant)>,
    /// Time at which its cursor last moved.
    pub(crate) moved: Instant,
    /// Samples consumed since that time, while the period is too short to compute a speed.
    measured: (u64, Instant),
    /// Samples per second; `None` until known.
    speed: Option<f64>,
    /// Cursor that a command has written.
    reported: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanReport {
    /// Files that were found, or scanned of the part.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Counter that changes with progress that files and bytes do not show.
    pub(crate) beat: u64,
}

#[derive(Clone, Copy, Debug)]
struct ScanState {
    report: ScanReport,
    /// Time of the report's last change.
    moved: Instant,
}

/// Samples that a job's ranks consumed, second by second.
#[derive(Debug)]
struct Rate {
    since: Instant,
    seconds: VecDeque<(Instant, u64)>,
}

impl LiveProgress {
    /// Records a heartbeat's report on a rank. A cursor before the known one is ignored: a newer
    /// heartbeat overtook this one.
    /// - `rows`: samples of a step of this rank. `known`: the cursor in the state.
    pub(crate) fn rank(&mut self, report: RankReport, rows: u64, now: Instant) {
        let RankReport { lease, cursor, ready, mut reading, account, known } = report;
        reading.truncate(READING_MAX);
        let (epoch, step) = cursor;
        let before = self.ranks.get(&lease).map(|rank| (rank.epoch, rank.step)).or(known);
        if before.is_some_and(|before| cursor < before) {
            return;
        }
        let steps = match before {
            Some((last_epoch, last)) if last_epoch == epoch => step - last,
            Some(_) => step,
            None => 0,
        };
        self.measure(&lease.job, steps.saturating_mul(rows), now);
        let fresh = RankState {
            epoch,
            step,
            ready,
            reading: vec![],
            account: None,
            moved: now,
            measured: (0, now),
            speed: None,
            reported: known,
        };
        let rank = self.ranks.entry(lease).or_insert(fresh);
        rank.measure(steps.saturating_mul(rows), now);
        if (rank.epoch, rank.step) != cursor {
            rank.moved = now;
        }
        (rank.epoch, rank.step, rank.ready, rank.reading) = (epoch, step, ready, reading);
        rank.account = account.map(|account| (account, now)).or(rank.account.take());
    }

    pub(crate) fn scan(&mut self, scan: LeasedScan, report: ScanReport, now: Instant) {
        let state = self.scans.entry(scan).or_insert(ScanState { report, moved: now });
        if state.report != report {
            *state = ScanState { report, moved: now };
        }
    }

    /// Records that a scan is leased: from now on it must make progress.
    pub(crate) fn expect_scan(&mut self, scan: LeasedScan, now: Instant) {
        let report = ScanReport::default();
        self.scans.entry(scan).or_insert(ScanState { report, moved: now });
    }

    /// Returns scans without progress for `limit`; each is returned once in that time.
    pub(crate) fn stalled(&mut self, limit: Duration, now: Instant) -> Vec<LeasedScan> {
        let late = |state: &ScanState| now.saturating_duration_since(state.moved) >= limit;
        let stalled = self.scans.iter_mut().filter(|(_, state)| late(state));
        let stalled = stalled.take(STALLED_BATCH_MAX).map(|(scan, state)| {
            state.moved = now;
            scan.clone()
        });
        stalled.collect()
    }

    /// Excludes time in which this process did not run from the idle time of scans.
    pub(crate) fn postpone_scans(&mut self, by: Duration) {
        self.scans.values_mut().for_each(|state| state.moved += by);
    }

    /// Returns the time for which a scan has made no progress.
    pub(crate) fn scan_idle(&self, scan: &LeasedScan, now: Instant) -> Duration {
        self.scans
            .get(scan)
            .map_or(Duration::ZERO, |state| now.saturating_duration_since(state.moved))
    }

    /// Removes leases and scans that are no longer alive, and rates without recent reports.
    pub(crate) fn retain(
        &mut self,
        lease: impl Fn(&LeaseRef) -> bool,
        scan: impl Fn(&LeasedScan) -> bool,
        now: Instant,
    ) {
        self.ranks.retain(|key, _| lease(key));
        self.scans.retain(|known, _| scan(known));
        self.rates.retain(|_, rate| {
            rate.forget(now);
            !rate.seconds.is_empty()
        });
    }

    /// Returns at most [`REPORT_BATCH_MAX`] cursors that no command has written yet.
    pub(crate) fn unreported(&self) -> Vec<CursorReport> {
        let unreported = |rank: &RankState| rank.reported != Some((rank.epoch, rank.step));
        let changed = self.ranks.iter().filter(|(_, rank)| unreported(rank));
        let report = |(lease, rank): (&LeaseRef, &RankState)| CursorReport {
            lease: lease.clone(),
            epoch: rank.epoch,
            step: rank.step,
        };
        changed.take(REPORT_BATCH_MAX).map(report).collect()
    }

    /// Marks cursors whose command was applied.
    pub(crate) fn reported(&mut self, reports: &[CursorReport]) {
        for CursorReport { lease, epoch, step } in reports {
            if let Some(rank) = self.ranks.get_mut(lease) {
                rank.reported = Some((*epoch, *step));
            }
        }
    }

    /// Returns all ranks, by job, generation, rank and fencing token.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = (&LeaseRef, &RankState)> {
        self.ranks.iter()
    }

    pub(crate) fn of_rank(&self, lease: &LeaseRef) -> Option<&RankState> {
        self.ranks.get(lease)
    }

    /// Returns the progress of the scans of a dataset's parts: files and bytes.
    pub(crate) fn of_dataset(&self, dataset: &str) -> (u64, u64) {
        let first = LeasedScan { dataset: dataset.to_owned(), part: None, fencing: 0 };
        let scans = self.scans.range(first..).take_while(|(scan, _)| scan.dataset == dataset);
        let parts = scans.filter(|(scan, _)| scan.part.is_some());
        parts.fold((0, 0), |(files, bytes): (u64, u64), (_, ScanState { report, .. })| {
            (files.saturating_add(report.files), bytes.saturating_add(report.bytes))
        })
    }

    /// Returns the samples per second of each rank of a job whose speed is known.
    pub(crate) fn speeds(&self, job: &str) -> Speeds {
        let of_job = self.ranks.iter().filter(|(lease, _)| lease.job == job);
        let speed = |rank: &RankState| rank.speed.map(|speed| speed as u64);
        of_job.filter_map(|(lease, rank)| Some((lease.rank, speed(rank)?))).collect()
    }

    /// Returns the samples per second of a job over the last `RATE_WINDOW`; `None` if not known.
    pub(crate) fn rate(&self, job: &str, now: Instant) -> Option<f64> {
        self.rates.get(job)?.per_second(now)
    }

    fn measure(&mut self, job: &str, samples: u64, now: Instant) {
        if !self.rates.contains_key(job) {
            if self.rates.len() >= RATE_JOBS_MAX {
                return;
            }
            let seconds = VecDeque::new();
            self.rates.insert(job.to_owned(), Rate { since: now, seconds });
        }
        if let Some(rate) = self.rates.get_mut(job) {
            rate.add(samples, now);
        }
    }
}

/// Report of a heartbeat; see [`LiveProgress::rank`].
#[derive(Debug)]
pub(crate) struct RankReport {
    pub(crate) lease: LeaseRef,
    /// Epoch and step of the first step that is not consumed.
    pub(crate) cursor: (u64, u64),
    pub(crate) ready: u64,
    pub(crate) reading: Vec<u32>,
    pub(crate) account: Option<Account>,
    /// Cursor in the state.
    pub(crate) known: Option<(u64, u64)>,
}

impl RankState {
    /// Returns the time breakdown with its current age.
    pub(crate) fn account(&self, now: Instant) -> Option<Account> {
        let (account, told) = self.account?;
        let lay_us = u64::try_from(now.saturating_duration_since(told).as_micros());
        let age_us = account.age_us.saturating_add(lay_us.unwrap_or(u64::MAX));
        Some(Account { age_us, ..account })
    }

    /// Adds samples consumed since the last report. The earlier speed counts for half.
    fn measure(&mut self, samples: u64, now: Instant) {
        let (before, since) = self.measured;
        let samples = before.saturating_add(samples);
        let over = now.saturating_duration_since(since);
        if over < SPEED_TIME_MIN {
            self.measured = (samples, since);
            return;
        }
        let speed = samples as f64 / over.as_secs_f64();
        self.speed = Some(self.speed.map_or(speed, |before| (before + speed) / 2.0));
        self.measured = (0, now);
    }
}

impl Rate {
    fn add(&mut self, samples: u64, now: Instant) {
        self.forget(now);
        match self.seconds.back_mut() {
            Some((second, sum)) if now.duration_since(*second) < Duration::from_secs(1) => {
                *sum = sum.saturating_add(samples);
            }
            _ => self.seconds.push_back((now, samples)),
        }
    }

    fn forget(&mut self, now: Instant) {
        while self.seconds.front().is_some_and(|first| now.duration_since(first.0) > RATE_WINDOW) {
            self.seconds.pop_front();
        }
    }

    fn per_second(&self, now: Instant) -> Option<f64> {
        let over = now.duration_since(self.since).min(RATE_WINDOW);
        let recent = |at: &Instant| now.duration_since(*at) <= RATE_WINDOW;
        let samples: u64 =
            self.seconds.iter().filter(|(at, _)| recent(at)).map(|(_, samples)| samples).sum();
        (over >= RATE_TIME_MIN).then(|| samples as f64 / over.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cursor: (u64, u64)) -> RankReport {
        let lease = LeaseRef { job: "a".into(), generation: 0, rank: 0, fencing: 7 };
        let (reading, account) = (vec![1; 2000], None);
        RankReport { lease, cursor, ready: 2, reading, account, known: Some((0, 0)) }
    }

    #[test]
    fn a_cursor_is_reported_until_it_is_written_and_never_goes_back() {
        let now = Instant::now();
        let mut progress = LiveProgress::default();
        progress.rank(report((0, 0)), 4, now);
        assert!(progress.unreported().is_empty());
        progress.rank(report((0, 5)), 4, now);
        progress.rank(report((0, 3)), 4, now);
        let reports = progress.unreported();
        assert_eq!((reports.len(), reports[0].step), (1, 5));
        // Its command may fail, or its caller may leave before the command is applied.
        assert_eq!(progress.unreported(), reports);
        progress.reported(&reports);
        assert!(progress.unreported().is_empty());
        // It moved while the command was in flight.
        progress.rank(report((0, 6)), 4, now);
        progress.reported(&reports);
        assert_eq!(progress.unreported()[0].step, 6);
        let lease = &reports[0].lease;
        assert_eq!(progress.of_rank(lease).unwrap().reading.len(), READING_MAX);
        progress.retain(|_| false, |_| false, now);
        assert_eq!(progress.of_rank(lease), None);
    }

    #[test]
    fn an_account_says_how_old_it_is() {
        let start = Instant::now();
        let mut progress = LiveProgress::default();
        let account = Some(Account { age_us: 5, idle_us: 7, ..Account::default() });
        progress.rank(RankReport { account, ..report((0, 1)) }, 4, start);
        // A heartbeat without a time breakdown keeps the last one.
        progress.rank(report((0, 2)), 4, start + Duration::from_secs(1));
        let rank = progress.of_rank(&report((0, 0)).lease).unwrap();
        let account = rank.account(start + Duration::from_secs(90)).unwrap();
        assert_eq!((account.age_us, account.idle_us), (90_000_005, 7));
    }

    #[test]
    fn rates_are_of_the_last_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = LiveProgress::default();
        for second in 0..=60 {
            progress.rank(report((0, second * 10)), 4, at(second));
        }
        let rate = progress.rate("a", at(60)).unwrap();
        assert!((rate - 42.0).abs() < 3.0, "{rate}");
        assert_eq!(progress.rate("b", at(60)), None);
        // Without consumption the rate falls to 0.
        assert_eq!(progress.rate("a", at(100)), Some(0.0));
        progress.retain(|_| true, |_| true, at(100));
        assert_eq!(progress.rate("a", at(100)), None);
    }

    #[test]
    fn a_scan_stalls_only_without_any_progress_and_is_named_once_a_limit() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(30));
        let at = |seconds| begun + Duration::from_secs(seconds);
        let scan = |dataset: &str, part| LeasedScan { dataset: dataset.into(), part, fencing: 7 };
        let (moving, stuck) = (scan("a", Some(0)), scan("b", None));
        let mut progress = LiveProgress::default();
        progress.expect_scan(moving.clone(), begun);
        progress.expect_scan(stuck.clone(), begun);
        for second in 1..60 {
            let report = ScanReport { beat: second / 20, ..ScanReport::default() };
            progress.scan(moving.clone(), report, at(second));
            progress.scan(stuck.clone(), ScanReport::default(), at(second));
            progress.expect_scan(stuck.clone(), at(second));
            let stalled = progress.stalled(limit, at(second));
            let expected = if second == 30 { vec![stuck.clone()] } else { vec![] };
            assert_eq!(stalled, expected, "{second}");
        }
        assert_eq!(progress.scan_idle(&moving, at(50)), Duration::from_secs(10));
        progress.postpone_scans(Duration::from_secs(100));
        assert_eq!(progress.stalled(limit, at(100)), []);
    }
}
