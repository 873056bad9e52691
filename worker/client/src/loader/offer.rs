//! The next batch in two phases: an offer and a commit.
//!
//! An offered batch may be used, and the caller interrupted; the commit consumes the batch.

use std::time::Duration;

use shardfeed_pipeline::Batch;
use shardfeed_plan::check_epoch;
use shardfeed_proto::ErrorKind;
use shardfeed_reader::{Delivered, Delivery};
use shardfeed_source::LoadError;

use super::Loader;
use super::entry::Entry;
use super::held::{Commit, Held, Offered};
use crate::head::Head;
use crate::link::exchange::{Event, InHand};
use crate::mixture;
use crate::parts::BatchParts;

/// Maximum restarts of a rank that has consumed nothing and was superseded.
const REPLACED_MAX: u32 = 8;

impl Loader {
    /// Waits at most `timeout` for the next batch of the cursor's epoch, and consumes it.
    ///
    /// At the end of an epoch the cursor is at the next one.
    ///
    /// # Errors  As [`Loader::offer`] and [`Loader::commit`].
    pub fn next(&mut self, timeout: Duration) -> Result<Delivery, LoadError> {
        match self.offer(timeout)? {
            Delivery::EpochEnd { epoch, steps } => Ok(Delivery::EpochEnd { epoch, steps }),
            Delivery::Pending => Ok(Delivery::Pending),
            Delivery::Batch(_) => match self.commit()? {
                Commit::Consumed(Some(delivered)) => Ok(Delivery::Batch(delivered)),
                Commit::Consumed(None) | Commit::Later | Commit::Withdrawn => Ok(Delivery::Pending),
            },
        }
    }

    /// Waits at most `timeout` for the epoch's next batch, and offers it under a number.
    ///
    /// Nothing is consumed: until [`Loader::commit`] every call offers the same batch, unless it is
    /// withdrawn. At the end of an epoch the cursor is at the next one.
    ///
    /// # Errors  The reason why there is no next batch; the cursor stays, so a retry reads again.
    pub fn offer(&mut self, timeout: Duration) -> Result<Delivery<u64>, LoadError> {
        self.check_open()?;
        self.pace.asks();
        if let Some(held) = &self.held {
            return Ok(Delivery::Batch(held.number));
        }
        let delivery = self.look(timeout)?;
        match delivery {
            Delivery::Batch(_) => {}
            Delivery::EpochEnd { .. } => self.pace.rests(),
            Delivery::Pending => {
                if let Some(waiting) = self.pace.tells() {
                    let (epoch, step) = (self.cursor.epoch(), self.cursor.step());
                    self.link.waits(epoch, step, waiting);
                }
            }
        }
        Ok(delivery)
    }

    /// The offered batch, until it is taken.
    pub fn offered(&mut self) -> Option<&mut Batch> {
        self.held.as_mut()?.batch.as_mut()
    }

    /// Takes the offered batch out of the loader; it still has to be committed.
    pub fn take_offered(&mut self) -> Option<Offered> {
        let held = self.held.as_mut()?;
        let (batch, after) = (held.batch.take()?, held.next.position());
        let Head { epoch, step, ref samples, .. } = held.head;
        let order = (epoch, self.options.shuffle);
        let parts = self.options.parts.then(|| BatchParts::new(samples, order, &self.contents));
        Some(Offered { epoch, step, batch, after, parts })
    }

    /// Shows the ready batches of the next `count`, in sequence, for copying them in advance.
    ///
    /// Never waits, starts no reading and consumes nothing. A batch that was shown may be dropped
    /// and delivered again as another one.
    pub fn peek(&mut self, count: usize, see: &mut dyn FnMut(&mut Batch)) {
        let in_hand = self.offered().into_iter().take(count).map(&mut *see).count();
        self.link.peek(count - in_hand, see);
    }

    /// Consumes the offered batch atomically: checks the lease, writes the ledger, moves on.
    ///
    /// # Errors
    ///
    /// The rank was started elsewhere: the batch is dropped; it cannot be counted: it stays.
    pub fn commit(&mut self) -> Result<Commit, LoadError> {
        let Some(held) = self.held.take() else {
            return Ok(Commit::Withdrawn);
        };
        match self.link.confirm() {
            Ok(InHand::Good) => {}
            Ok(InHand::Unconfirmed) => {
                self.held = Some(held);
                return Ok(Commit::Later);
            }
            Ok(InHand::Gone) => return Ok(Commit::Withdrawn),
            Err(error) => {
                self.link.stop();
                if self.has_lapsed(&error) {
                    return Ok(Commit::Withdrawn);
                }
                return self.starts_again(error).map_or(Ok(Commit::Withdrawn), Err);
            }
        }
        match self.consume(&held) {
            Ok(()) => Ok(Commit::Consumed(held.into_delivered())),
            Err(error) => {
                self.held = Some(held);
                Err(error)
            }
        }
    }

    fn look(&mut self, timeout: Duration) -> Result<Delivery<u64>, LoadError> {
        check_epoch(self.cursor.epoch())?;
        self.check_files()?;
        if let Some(error) = &self.superseded {
            return Err(error.clone().into());
        }
        // Ranks of a cluster join at the same position, also one without steps in the rest of its epoch.
        let is_start = matches!(self.entry, Entry::Start | Entry::Reshard);
        let must_join = is_start && self.options.cluster.is_some();
        if !must_join && self.steps().is_some_and(|steps| self.cursor.step() >= steps) {
            return self.finish_epoch();
        }
        let (cursor, plans, rank) = (&self.cursor, &self.plans, self.options.rank);
        let (entry, left) = (self.entry, self.left);
        let mut position = |in_hand| entry.start_position(cursor, plans, (rank, left), in_hand);
        let event = match self.link.poll(&mut position, timeout) {
            Ok(event) => event,
            Err(error) => {
                return self.starts_again(error).map_or(Ok(Delivery::Pending), Err);
            }
        };
        match event {
            Event::Started { generation } => {
                self.started(generation)?;
                Ok(Delivery::Pending)
            }
            Event::Delivery(Delivery::Pending) => Ok(Delivery::Pending),
            Event::Delivery(Delivery::EpochEnd { epoch, steps }) => self.epoch_ended(epoch, steps),
            Event::Delivery(Delivery::Batch(delivered)) => self.hold(*delivered),
        }
    }

    /// Makes a batch the offered one.
    fn hold(&mut self, delivered: Delivered) -> Result<Delivery<u64>, LoadError> {
        let Delivered { epoch, step, samples, skipped, batch } = delivered;
        let at = (epoch, step);
        if at != (self.cursor.epoch(), self.cursor.step()) {
            tracing::error!(?at, "a batch came out of sequence");
            self.link.stop();
            return Err(LoadError::ReaderLost);
        }
        let mut next = self.cursor.clone();
        next.advance(self.steps().unwrap_or(u64::MAX));
        let course = match next.epoch() == self.cursor.epoch() {
            true => self.course.clone(),
            false => self.course_at(&next)?,
        };
        let (rows, bytes) = (batch.rows as u64, batch.slot.size_bytes() as u64);
        let head = Head { epoch, step, samples, skipped, rows, bytes };
        self.offers += 1;
        self.held = Some(Held { number: self.offers, head, batch: Some(batch), next, course });
        Ok(Delivery::Batch(self.offers))
    }

    /// Counts a batch as consumed, unless the corrupt budget or the ledger fails.
    fn consume(&mut self, held: &Held) -> Result<(), LoadError> {
        let Held { head, next, course, .. } = held;
        let samples = self.samples().div_ceil(self.options.world_size.max(1));
        self.skipped.admit(head, samples, &self.contents)?;
        if let Some(ledger) = &mut self.ledger {
            ledger.hand_out(self.cursor.generation(), head, &self.contents)?;
        }
        let demand = self.pace.gets(head);
        self.link.took(next.epoch(), next.step(), Some(demand));
        let ends = next.epoch() != self.cursor.epoch();
        (self.cursor, self.course) = (next.clone(), course.clone());
        (self.is_untouched, self.replaced) = (false, 0);
        self.skipped.add(head, &self.contents);
        if ends {
            self.link.epoch_ended();
        }
        self.handed_out += 1;
        Ok(())
    }

    /// True if a dynamic job's lease has just ended; the loader resumes from the consumed samples.
    fn has_lapsed(&self, error: &LoadError) -> bool {
        self.cursor.identity().is_dynamic()
            && matches!(error, LoadError::Wire(error) if error.kind == ErrorKind::Fenced)
    }

    /// Prepares a restart if the other ranks were started again before this rank consumed anything,
    /// as if it had joined later; returns any other error, and keeps it if it is final.
    fn starts_again(&mut self, error: LoadError) -> Option<LoadError> {
        use ErrorKind::{Fenced, Replaced, Superseded};
        let LoadError::Wire(wire) = &error else {
            return Some(error);
        };
        let is_superseded = wire.kind == Superseded;
        if !(is_superseded && self.is_untouched && self.replaced < REPLACED_MAX) {
            let is_start = matches!(self.entry, Entry::Start | Entry::Reshard);
            let is_final = match wire.kind {
                // Another loader of this rank started later, perhaps during this one's start.
                Replaced => true,
                Superseded | Fenced => !is_start && !self.has_lapsed(&error),
                _ => false,
            };
            if is_final {
                self.superseded = Some(wire.clone());
            }
            return Some(error);
        }
        tracing::info!(%error, "starting again, as nothing was consumed");
        self.link.stop();
        self.entry = Entry::Start;
        self.replaced += 1;
        None
    }

    fn finish_epoch(&mut self) -> Result<Delivery<u64>, LoadError> {
        let mut next = self.cursor.clone();
        next.finish_epoch();
        let (epoch, steps) = (self.cursor.epoch(), self.cursor.step());
        self.course = self.course_at(&next)?;
        self.cursor = next;
        self.link.epoch_ended();
        Ok(Delivery::EpochEnd { epoch, steps })
    }

    /// Ends the epoch after a report that it has no more samples for this rank.
    fn epoch_ended(&mut self, epoch: u64, steps: u64) -> Result<Delivery<u64>, LoadError> {
        let at = (self.cursor.epoch(), self.cursor.step());
        if (epoch, steps) != at {
            tracing::error!(?at, epoch, steps, "an epoch ended elsewhere");
            self.link.stop();
            return Err(LoadError::ReaderLost);
        }
        let ended = self.finish_epoch()?;
        self.is_untouched = false;
        self.link.took(self.cursor.epoch(), self.cursor.step(), None);
        Ok(ended)
    }

    /// Rejects an epoch of which a source has no files.
    fn check_files(&self) -> Result<(), LoadError> {
        let epoch = self.cursor.epoch();
        match &self.missing {
            Some((from, reason)) if epoch < *from => Err(LoadError::NotFound(format!(
                "{reason}, and the loader is in epoch {epoch}; from epoch {from} on it is not needed"
            ))),
            _ => Ok(()),
        }
    }

    /// Records that the rank joined a generation.
    fn started(&mut self, generation: u64) -> Result<(), LoadError> {
        if !self.has_kept_files {
            mixture::keep_files(&self.options, &self.schema, &self.contents)?;
            self.has_kept_files = true;
        }
        if self.entry != (Entry::Joined { generation }) {
            self.is_untouched = true;
        }
        (self.entry, self.left) = (Entry::Joined { generation }, None);
        self.cursor.set_generation(generation);
        if self.cursor.identity().is_dynamic() {
            // Only that cluster keeps the job's lists.
            self.cursor.set_cluster(self.link.report().cluster_id);
        }
        if let Some(ledger) = &mut self.ledger
            && self.in_ledger != Some(generation)
        {
            let begun = ledger.begin(&self.cursor);
            if begun.is_err() {
                self.link.stop();
            }
            begun?;
            self.in_ledger = Some(generation);
        }
        Ok(())
    }
}
