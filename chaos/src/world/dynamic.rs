//! Rank of a dynamic job: it claims groups, begins some batches ahead, releases revoked groups, and
//! delivers only while its session is surely alive.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use shardfeed_plan::Cursor;
use shardfeed_plan::dynamic::GroupRange;
use shardfeed_proto::coordinator::v1::{
    ClaimGroupsRequest, ClaimGroupsResponse, Lease, RankProgress,
};
use shardfeed_proto::{ErrorKind, WireError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::holds::Sure;
use crate::world::client::{Call, Kind};
use crate::world::share::Share;
use crate::world::trainer::{LOOK_EVERY, Rank, Seat};
use crate::world::worker::WorkerHost;

/// Batches that are begun before their turn.
const BEGUN_MAX: usize = 2;

/// Batches to keep granted and not begun.
const AHEAD: u64 = 3;

/// Chance that a rank leaves the epoch after a batch, in percent.
const LEAVES_PERCENT: u64 = 1;

/// Time limit for an answer before the request is repeated.
const PATIENCE: Duration = Duration::from_millis(800);

/// Pending request.
struct Asking {
    request: ClaimGroupsRequest,
    sure: Option<Sure>,
    answer: JoinHandle<Result<ClaimGroupsResponse, WireError>>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.answer.abort();
    }
}

/// State of a rank under one lease.
struct Feed {
    fencing: u64,
    share: Share,
    begun: VecDeque<(u64, Vec<GroupRange>)>,
    asking: Option<Asking>,
}

impl Rank {
    /// Delivers the granted batches, epoch after epoch, until the run is over.
    pub(super) async fn take_steps(
        &self,
        host: &Rc<WorkerHost>,
        cursor: &mut Cursor,
        seat: &mut Seat,
    ) -> Result<(), WireError> {
        let batch_size = self.run.job.global_batch / self.run.world_size;
        let feed = |fencing, cursor: &Cursor| Feed {
            fencing,
            share: Share::new(batch_size, cursor.step()),
            begun: VecDeque::new(),
            asking: None,
        };
        let mut has = feed(0, cursor);
        let mut not_before = Instant::now();
        self.stands(cursor);
        loop {
            if self.run.is_over.get() {
                return Ok(());
            }
            if let Some(verdict) = seat.served.state.borrow().verdict.clone() {
                return Err(verdict);
            }
            if seat.own.is_none() && host.serial.get() != seat.serial {
                seat.move_in_process(host, self);
            }
            let fencing = seat.served.state.borrow().fencing;
            if fencing != has.fencing {
                // Under another lease the rank continues after the consumed batches; batches that
                // it had begun may have been granted to another rank.
                has = feed(fencing, cursor);
            }
            if fencing != 0 && self.may_enter(cursor) {
                self.ask(host, &mut has, (cursor, seat)).await?;
                while has.begun.len() < BEGUN_MAX
                    && let Some(begun) = has.share.begin()
                {
                    has.begun.push_back(begun);
                }
                if Instant::now() >= not_before
                    && seat.session.is_good()
                    && !seat.served.is_paused.get()
                    && has.begun.front().is_some_and(|(step, _)| has.share.is_open(*step))
                    && let Some((step, pieces)) = has.begun.pop_front()
                {
                    self.deliver(host, (cursor, fencing, seat), step, &pieces)?;
                    not_before = Instant::now() + Duration::from_millis(self.step_ms);
                    self.consumed(host, cursor);
                    self.tell(cursor, seat);
                    // One rank stays, so that every epoch is consumed as a whole.
                    if host.dice.chance(LEAVES_PERCENT) && !self.run.counts_epochs(self.rank) {
                        self.leave(host, cursor, seat);
                    }
                } else if has.begun.is_empty() && has.share.has_ended() {
                    let (job, generation) = (&self.run.job.name, cursor.generation());
                    host.oracle.lists.epoch_ended(job, generation, cursor.epoch());
                    cursor.finish_epoch();
                    self.run
                        .epochs
                        .set(self.run.epochs.get() + u64::from(self.run.counts_epochs(self.rank)));
                    self.tell(cursor, seat);
                    has = feed(fencing, cursor);
                }
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn deliver(
        &self,
        host: &WorkerHost,
        (cursor, fencing, seat): (&mut Cursor, u64, &mut Seat),
        step: u64,
        pieces: &[GroupRange],
    ) -> Result<(), WireError> {
        let job = &self.run.job;
        let groups = job.groups(cursor.epoch());
        let mut samples = vec![];
        for piece in pieces {
            let lane = groups.lane(piece.group);
            samples.extend((piece.from..piece.to).filter_map(|offset| lane.output(offset).ok()));
        }
        self.admit(host, seat, cursor.epoch(), &job.corrupt_in(None, samples.iter().copied()))?;
        let lease = (job.name.clone(), cursor.generation(), self.rank, fencing);
        host.oracle.lists.delivered(&lease, (cursor.epoch(), step), samples);
        host.breaches.check(step == cursor.step(), "I4", || {
            format!("{lease:?} delivers step {step}, but is at {}", cursor.step())
        });
        cursor.advance(u64::MAX);
        Ok(())
    }

    /// Leaves the epoch before its end; the lease is requested again with the position.
    fn leave(&self, host: &WorkerHost, cursor: &mut Cursor, seat: &Seat) {
        let left = (cursor.epoch(), cursor.step());
        host.trace.tell(format!("{} rank {} leaves at {left:?}", self.run.job.name, self.rank));
        cursor.finish_epoch();
        let mut state = seat.served.state.borrow_mut();
        (state.fencing, state.left) = (0, Some(state.left.unwrap_or(left)));
        drop(state);
        self.tell(cursor, seat);
    }

    fn tell(&self, cursor: &Cursor, seat: &Seat) {
        let mut state = seat.served.state.borrow_mut();
        (state.epoch, state.step) = (cursor.epoch(), cursor.step());
        self.stands(cursor);
    }

    fn stands(&self, cursor: &Cursor) {
        self.run.stands.borrow_mut()[self.rank as usize] = Some(cursor.state());
    }

    /// Ranks enter an epoch together, so that common states exist.
    fn may_enter(&self, cursor: &Cursor) -> bool {
        let (stands, gone) = (self.run.stands.borrow(), self.run.gone.borrow());
        let mut others = (0..).zip(stands.iter()).filter(|(rank, _)| !gone.contains(rank));
        others.all(|(_, state)| state.as_ref().is_none_or(|state| state.epoch >= cursor.epoch()))
    }

    async fn ask(
        &self,
        host: &WorkerHost,
        has: &mut Feed,
        (cursor, seat): (&Cursor, &Seat),
    ) -> Result<(), WireError> {
        let is_asked = seat.served.is_revoked.get();
        // The answer to a pending long-poll request does not report revocations made in the
        // meantime.
        if is_asked && has.asking.as_ref().is_some_and(|asking| asking.request.wait_ms > 0) {
            has.asking = None;
        }
        if has.asking.as_ref().is_some_and(|asking| asking.answer.is_finished())
            && let Some(mut asking) = has.asking.take()
        {
            let gone = || WireError::new(ErrorKind::Retry, "the process ends");
            let answer = (&mut asking.answer).await;
            match answer.unwrap_or_else(|_| Err(gone())) {
                Ok(told) => {
                    let known = has.share.samples_told();
                    let new = told.samples.saturating_sub(known.unwrap_or(0));
                    host.oracle.holds.took(asking.sure.take(), new);
                    has.share.answer(&asking.request, &told).map_err(|_| {
                        WireError::new(ErrorKind::Fenced, "the lease lapsed; start from a state")
                    })?;
                    if known.is_some() && new > 0 {
                        self.check_ahead(host, &has.share, cursor.epoch());
                    }
                }
                // The next heartbeat reports whether the session or the lease ended.
                Err(error)
                    if matches!(
                        error.kind,
                        ErrorKind::Retry | ErrorKind::Storage | ErrorKind::Fenced
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        let (Some(session), None) = (seat.session.id(), &has.asking) else {
            return Ok(());
        };
        let batch_size = self.run.job.global_batch / self.run.world_size;
        let Some(due) = has.share.due(AHEAD * batch_size, is_asked, cursor.step()) else {
            return Ok(());
        };
        seat.served.is_revoked.set(false);
        let lease = Lease {
            job: self.run.job.name.clone(),
            generation: cursor.generation(),
            rank: self.rank,
            fencing: has.fencing,
        };
        let (epoch, step) = (cursor.epoch(), cursor.step());
        let lease = Some(lease);
        let told = RankProgress {
            lease: lease.clone(),
            epoch,
            step,
            ready: 0,
            reading: vec![],
            account: None,
        };
        host.oracle.tells(&[told]);
        let request = ClaimGroupsRequest { session, lease, epoch, step, ..due };
        let (sent, sure) = (request.clone(), host.oracle.holds.sends(&self.run.job.name));
        let call: Call<ClaimGroupsResponse> = Rc::new(move |mut clients, context| {
            let request = ClaimGroupsRequest { context, ..sent.clone() };
            Box::pin(async move { clients.worker.claim_groups(request).await })
        });
        let cluster = Rc::clone(&seat.session.cluster);
        let answer =
            tokio::task::spawn_local(
                async move { cluster.call((Kind::Looks, PATIENCE), call).await },
            );
        has.asking = Some(Asking { request, sure, answer });
        Ok(())
    }

    /// Checks that a rank is not granted more than it wants ahead, rounded up to a whole group.
    ///
    /// This bounds the grants to a rank that begins no batches, such as one of a paused job.
    fn check_ahead(&self, host: &WorkerHost, share: &Share, epoch: u64) {
        let job = &self.run.job;
        let groups = job.groups(epoch);
        let largest = (0..groups.count()).map(|group| groups.samples_of(group)).max().unwrap_or(0);
        // Batches that were begun under an earlier lease count as begun, although they are granted
        // again.
        let wants = (AHEAD + BEGUN_MAX as u64) * job.global_batch / self.run.world_size;
        let ahead = share.ahead();
        host.breaches.check(ahead < wants + largest, "I19", || {
            let (job, rank) = (&job.name, self.rank);
            format!("rank {rank} of {job} wants {wants} samples and was granted {ahead}")
        });
    }
}
