//! The group ranges granted to one rank in an epoch, and their division into steps. Source:
//! docs/ORDER.md, section 10.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::group_range::GroupRange;

/// Group ranges in the order in which a rank delivers them. A position counts samples.
///
/// The list is divided into *runs*. A closed run ends with a short batch if its samples do not fill
/// the last one; otherwise batches continue over the borders of group ranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredList", into = "StoredList")]
pub struct RankList {
    batch_size: u64,
    first_step: u64,
    pieces: Vec<GroupRange>,
    /// End position of each group range.
    ends: Vec<u64>,
    runs: Vec<Run>,
}

/// A closed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    end: u64,
    /// Step of the epoch that follows it.
    step: u64,
}

/// Serialized form of a list, without values that follow from other fields.
#[derive(Serialize, Deserialize)]
struct StoredList {
    batch_size: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    first_step: u64,
    pieces: Vec<GroupRange>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    closed: Vec<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl From<StoredList> for RankList {
    fn from(stored: StoredList) -> Self {
        let mut list = Self::new(stored.batch_size, stored.first_step);
        stored.pieces.into_iter().for_each(|piece| list.append(piece));
        stored.closed.into_iter().for_each(|end| list.close_at(end));
        list
    }
}

impl From<RankList> for StoredList {
    fn from(list: RankList) -> Self {
        let closed = list.closed();
        let RankList { batch_size, first_step, pieces, .. } = list;
        Self { batch_size, first_step, pieces, closed }
    }
}

impl RankList {
    /// Returns an empty list whose first batch is `first_step`. A `batch_size` of 0 counts as 1.
    pub fn new(batch_size: u64, first_step: u64) -> Self {
        let batch_size = batch_size.max(1);
        Self { batch_size, first_step, pieces: vec![], ends: vec![], runs: vec![] }
    }

    /// Returns the number of samples of a full batch.
    pub fn batch_size(&self) -> u64 {
        self.batch_size
    }

    /// Returns the step of the epoch of its first batch.
    pub fn first_step(&self) -> u64 {
        self.first_step
    }

    pub fn samples(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    pub fn pieces(&self) -> &[GroupRange] {
        &self.pieces
    }

    /// Returns the end positions of the closed runs, ascending.
    pub fn closed(&self) -> Vec<u64> {
        self.runs.iter().map(|run| run.end).collect()
    }

    /// Returns the start position of the open run: the end of the last closed one.
    pub fn open_from(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// Appends a group range; an empty one is ignored.
    pub fn append(&mut self, piece: GroupRange) {
        if piece.samples() > 0 {
            self.ends.push(self.samples() + piece.samples());
            self.pieces.push(piece);
        }
    }

    /// Closes the open run at the end of the list; a run without samples stays open.
    pub fn close(&mut self) {
        self.close_at(self.samples());
    }

    /// Closes the open run at `end`, if that is after its start and within the list.
    pub fn close_at(&mut self, end: u64) {
        if end > self.open_from() && end <= self.samples() {
            let step = self.open_step() + (end - self.open_from()).div_ceil(self.batch_size);
            self.runs.push(Run { end, step });
        }
    }

    /// Truncates the list and returns the rest. A closed run that is shortened becomes open again.
    pub fn truncate_to(&mut self, position: u64) -> Vec<GroupRange> {
        self.split_off(position).pieces
    }

    /// As [`RankList::truncate_to`], but keeps the runs of the rest.
    ///
    /// The first batch of the returned list is the step that contains the cut, if the cut is at the
    /// start of that step.
    pub fn split_off(&mut self, position: u64) -> Self {
        let mut rest = Self::new(self.batch_size, self.step_of(position));
        if position >= self.samples() {
            return rest;
        }
        let index = self.ends.partition_point(|&end| end <= position);
        let later = self.pieces.split_off(index);
        self.ends.truncate(index);
        let kept = position - self.samples();
        for (number, piece) in later.into_iter().enumerate() {
            let (first, others) = piece.cut(if number == 0 { kept } else { 0 });
            first.into_iter().for_each(|first| self.append(first));
            others.into_iter().for_each(|others| rest.append(others));
        }
        let later = self.runs.split_off(self.runs.partition_point(|run| run.end <= position));
        later.into_iter().for_each(|run| rest.close_at(run.end - position));
        rest
    }

    /// Returns the step of the epoch with the sample at a position, if its run extends that far.
    pub fn step_of(&self, position: u64) -> u64 {
        let (start, step) = self.run_at(self.runs.partition_point(|run| run.end <= position));
        step + (position - start) / self.batch_size
    }

    /// Returns the start position of a step. `None` before the list's first step, and for a step
    /// that starts beyond its samples.
    pub fn position_of_step(&self, step: u64) -> Option<u64> {
        let (start, first) = self.run_at(self.runs.partition_point(|run| run.step <= step));
        let batches = step.checked_sub(first)?;
        let position = start.checked_add(batches.checked_mul(self.batch_size)?)?;
        (position <= self.samples()).then_some(position)
    }

    /// Returns the positions of a step: a whole batch, or the short one at the end of a closed run.
    /// `None` if the list does not contain all of it, now or ever.
    pub fn positions_of(&self, step: u64) -> Option<Range<u64>> {
        let start = self.position_of_step(step)?;
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= start));
        let full = start.checked_add(self.batch_size)?;
        let end = run.map_or(full, |run| full.min(run.end));
        (start < end && end <= self.samples()).then_some(start..end)
    }

    /// Returns the first step of the epoch that the list does not contain completely.
    pub fn end_step(&self) -> u64 {
        self.open_step() + (self.samples() - self.open_from()) / self.batch_size
    }

    /// Iterates over the parts of group ranges at these positions, in order, up to the end.
    pub fn pieces_in(&self, positions: Range<u64>) -> impl Iterator<Item = GroupRange> + '_ {
        let first = self.ends.partition_point(|&end| end <= positions.start);
        let pieces = self.pieces[first..].iter().zip(&self.ends[first..]);
        pieces.map_while(move |(piece, &end)| {
            let start = end - piece.samples();
            let skipped = positions.start.saturating_sub(start);
            let most = positions.end.min(end).checked_sub(start + skipped)?;
            GroupRange { from: piece.from + skipped, ..*piece }.cut(most).0
        })
    }

    /// Returns the group and the offset in it of the sample at a position.
    pub fn at(&self, position: u64) -> Option<(u64, u64)> {
        self.pieces_in(position..position.checked_add(1)?).next().map(|p| (p.group, p.from))
    }

    /// Returns the number of group ranges that begin before a position.
    pub fn pieces_before(&self, position: u64) -> usize {
        let whole = self.ends.partition_point(|&end| end <= position);
        let start = whole.checked_sub(1).map_or(0, |last| self.ends[last]);
        whole + usize::from(start < position && whole < self.pieces.len())
    }

    /// Returns the step that follows the closed runs.
    fn open_step(&self) -> u64 {
        self.runs.last().map_or(self.first_step, |run| run.step)
    }

    /// Returns the start of run `index`: position and step.
    fn run_at(&self, index: usize) -> (u64, u64) {
        let before = index.checked_sub(1).map(|before| self.runs[before]);
        before.map_or((0, self.first_step), |run| (run.end, run.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(group: u64, from: u64, to: u64) -> GroupRange {
        GroupRange { group, from, to }
    }

    fn list() -> RankList {
        let mut list = RankList::new(4, 10);
        list.append(piece(0, 0, 5));
        list.append(piece(3, 2, 4));
        list.close();
        list.append(piece(7, 0, 9));
        list
    }

    #[test]
    fn batches_cross_pieces_and_end_with_a_closed_run() {
        let list = list();
        let steps: Vec<_> = (9..15).map(|step| list.positions_of(step)).collect();
        assert_eq!(steps, [None, Some(0..4), Some(4..7), Some(7..11), Some(11..15), None]);
        assert_eq!(list.end_step(), 14);
        assert_eq!(list.position_of_step(14), Some(15));
        assert_eq!(list.position_of_step(15), None);
        for step in 10..14 {
            for position in list.positions_of(step).unwrap() {
                assert_eq!(list.step_of(position), step);
            }
        }
        let of = |step| list.pieces_in(list.positions_of(step).unwrap()).collect::<Vec<_>>();
        assert_eq!(of(10), [piece(0, 0, 4)]);
        assert_eq!(of(11), [piece(0, 4, 5), piece(3, 2, 4)]);
        assert_eq!(of(12), [piece(7, 0, 4)]);
        assert_eq!((list.at(5), list.at(15), list.at(16)), (Some((3, 2)), Some((7, 8)), None));
    }

    #[test]
    fn a_close_that_makes_no_run_changes_nothing() {
        let mut list = RankList::new(4, 0);
        list.close();
        assert!(list.closed().is_empty());
        list.append(piece(0, 0, 8));
        list.append(piece(1, 3, 3));
        list.close();
        list.close();
        list.close_at(4);
        list.close_at(9);
        assert_eq!((list.closed(), list.pieces().len(), list.end_step()), (vec![8], 1, 2));
    }

    #[test]
    fn a_cut_returns_what_came_after_and_opens_what_it_shortens() {
        for position in 0..=16 {
            let mut cut = list();
            let rest = cut.split_off(position);
            assert_eq!(cut.samples(), position);
            assert_eq!(cut.samples() + rest.samples(), 16);
            let whole: Vec<_> = (0..16).map(|p| list().at(p)).collect();
            let both =
                (0..position).map(|p| cut.at(p)).chain((0..).map_while(|p| rest.at(p).map(Some)));
            assert_eq!(both.collect::<Vec<_>>(), whole);
            let closed = if position >= 7 { vec![7] } else { vec![] };
            assert_eq!(cut.closed(), closed);
            if let Some(start) = cut.position_of_step(rest.first_step()).filter(|&p| p == position)
            {
                // A cut between two steps changes neither.
                for step in rest.first_step()..14 {
                    let shifted = rest.positions_of(step).map(|p| p.start + start..p.end + start);
                    assert_eq!(shifted, list().positions_of(step));
                }
            }
        }
        assert_eq!(list().truncate_to(6), [piece(3, 3, 4), piece(7, 0, 9)]);
        assert_eq!(list().truncate_to(99), []);
    }

    #[test]
    fn pieces_are_counted_up_to_a_position() {
        let list = list();
        let counted: Vec<_> = [0, 1, 5, 6, 7, 8, 16, 99].map(|p| list.pieces_before(p)).into();
        assert_eq!(counted, [0, 1, 1, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn reads_back_as_it_was_written() {
        let json = serde_json::to_string(&list()).unwrap();
        let expected =
            r#"{"batch_size":4,"first_step":10,"pieces":[[0,0,5],[3,2,4],[7,0,9]],"closed":[7]}"#;
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<RankList>(&json).unwrap(), list());
    }
}
