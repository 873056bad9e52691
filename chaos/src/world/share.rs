//! Part of an epoch that was granted to a rank of a dynamic job, as known to its worker. Pure.

use shardfeed_plan::dynamic::{GroupRange, RankList};
use shardfeed_proto::coordinator::v1::{ClaimGroupsRequest, ClaimGroupsResponse};

/// One rank's part of one epoch under one lease.
#[derive(Debug)]
pub struct Share {
    batch_size: u64,
    list: RankList,
    /// First step that is not begun.
    step: u64,
    /// Position up to which batches were begun. It follows from the step once the list extends that
    /// far.
    started: Option<u64>,
    is_told: bool,
    /// Samples of the list, including those not received yet.
    samples: u64,
    ended: bool,
    /// Position up to which batches may be delivered, and the list version for which it is valid.
    horizon: u64,
    version: u64,
    /// Position from which the list was released, until the release is acknowledged.
    release: Option<u64>,
    /// Version of the list when it was released.
    released_version: u64,
    /// The begun samples of the list before it was sent again, until they are compared.
    before: Option<Vec<(u64, u64)>>,
}

/// Error: the list has changed, so the lease is no longer usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed;

impl Share {
    /// Returns an empty list; `step` is the first step to begin.
    pub fn new(batch_size: u64, step: u64) -> Self {
        Self {
            batch_size,
            list: RankList::new(batch_size, 0),
            step,
            started: None,
            is_told: false,
            samples: 0,
            ended: false,
            horizon: 0,
            version: 0,
            release: None,
            released_version: 0,
            before: None,
        }
    }

    /// Returns the next request, if one is due, with the fields that follow from the list.
    /// - `ahead`: samples to keep granted and not begun. `is_asked`: an update is waiting.
    /// - `next`: step that is delivered next; its batch must lie before the horizon.
    pub fn due(&self, ahead: u64, is_asked: bool, next: u64) -> Option<ClaimGroupsRequest> {
        let started = self.started.unwrap_or(0);
        let is_short = self.list.samples() < started + ahead && !self.ended;
        let is_shut = self.list.positions_of(next).is_some_and(|batch| batch.end > self.horizon);
        let is_told = self.release.is_some() || (self.is_told && !self.is_complete());
        let is_urgent = is_asked || is_told || is_shut;
        (is_short || is_urgent).then(|| ClaimGroupsRequest {
            started,
            known: self.list.pieces().len() as u64,
            wants: if is_short { ahead } else { 0 },
            ahead: 3 * self.batch_size,
            released: self.release,
            version: self.released_version,
            known_version: Some(self.version),
            wait_ms: if is_urgent { 0 } else { 300 },
            ..ClaimGroupsRequest::default()
        })
    }

    fn is_complete(&self) -> bool {
        self.is_told && self.list.samples() >= self.samples
    }

    /// Applies an answer.
    ///
    /// # Errors  Batches that were begun are no longer in the list.
    pub fn answer(
        &mut self,
        asked: &ClaimGroupsRequest,
        told: &ClaimGroupsResponse,
    ) -> Result<(), Lapsed> {
        if self.release == asked.released {
            self.release = None;
        }
        if !self.is_told {
            self.list = RankList::new(self.batch_size, told.steps_before);
            self.is_told = true;
        }
        if told.first < asked.known {
            // The list is sent again: its begun part must be the same.
            let begun = self.begun();
            self.before.get_or_insert(begun);
            self.list = RankList::new(self.batch_size, told.steps_before);
        }
        if told.first == self.list.pieces().len() as u64 {
            for piece in &told.pieces {
                let (group, from, to) = (piece.group, piece.from, piece.to);
                self.list.append(GroupRange { group, from, to });
            }
        }
        told.closed.iter().for_each(|end| self.list.close_at(*end));
        (self.samples, self.ended) = (told.samples, told.ended);
        if self.list.samples() >= self.started.unwrap_or(0).min(self.samples) {
            let before = self.before.take();
            if before.is_some_and(|before| before != self.begun()) {
                return Err(Lapsed);
            }
        }
        if told.version >= self.version {
            (self.horizon, self.version) = (told.horizon, told.version);
        }
        if let Some(from) = told.revoke_from.filter(|_| self.is_complete()) {
            let kept = from.max(self.started.unwrap_or(0)).min(self.list.samples());
            drop(self.list.truncate_to(kept));
            (self.samples, self.release) = (kept, Some(kept));
            self.released_version = self.version;
            self.horizon = self.horizon.min(kept);
        }
        if self.started.is_none() {
            self.started = self.list.position_of_step(self.step);
            if self.started.is_none() && self.is_complete() {
                if !self.ended {
                    return Err(Lapsed);
                }
                self.started = Some(self.list.samples());
            }
        }
        Ok(())
    }

    /// Samples of the list that were begun: group and offset of each.
    fn begun(&self) -> Vec<(u64, u64)> {
        let end = self.started.unwrap_or(0).min(self.list.samples());
        let pieces = self.list.pieces_in(0..end);
        pieces.flat_map(|piece| (piece.from..piece.to).map(move |at| (piece.group, at))).collect()
    }

    /// Begins the next batch, if it was granted. Returns its step and its group ranges.
    pub fn begin(&mut self) -> Option<(u64, Vec<GroupRange>)> {
        let started = self.started?;
        let positions = self.list.positions_of(self.step)?;
        let begun = (self.step, self.list.pieces_in(positions.clone()).collect());
        (self.started, self.step) = (Some(started.max(positions.end)), self.step + 1);
        Some(begun)
    }

    /// Returns true if a step may be delivered.
    pub fn is_open(&self, step: u64) -> bool {
        self.list.positions_of(step).is_some_and(|batch| batch.end <= self.horizon)
    }

    /// Returns the samples of the list, if it is known.
    pub fn samples_told(&self) -> Option<u64> {
        self.is_told.then_some(self.samples)
    }

    /// Returns the number of samples that are granted and not begun.
    pub fn ahead(&self) -> u64 {
        self.samples.saturating_sub(self.started.unwrap_or(0))
    }

    /// Returns true if the epoch ended for the rank and all its batches were begun.
    pub fn has_ended(&self) -> bool {
        self.ended && self.is_complete() && self.list.positions_of(self.step).is_none()
    }
}
