//! Interleaving of the splits of a group in turns. Source: docs/ORDER.md, section 4, Interleave.

use crate::lane::last_where;

/// Lengths of the splits of one group, and the number of samples per turn.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    lengths: Vec<u64>,
    block_length: u64,
}

/// A sample of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Index of its split in the group.
    pub(crate) split: usize,
    /// Index of the sample in the split.
    pub(crate) offset: u64,
}

impl Turns {
    pub(crate) fn new(lengths: Vec<u64>, block_length: u64) -> Self {
        Self { lengths, block_length }
    }

    pub(crate) fn samples(&self) -> u64 {
        self.lengths.iter().sum()
    }

    /// Returns the sample at `position`, which is below [`Turns::samples`].
    pub(crate) fn at(&self, position: u64) -> Turn {
        let round = self.round_at(position);
        let mut left = position - self.before(round);
        for (split, &length) in self.lengths.iter().enumerate() {
            let taken = self.turn_length(length, round);
            if left < taken {
                return Turn { split, offset: round * self.block_length + left };
            }
            left -= taken;
        }
        unreachable!("position {position} is beyond the group's {} samples", self.samples())
    }

    /// Returns the samples of each split before `position`, at most [`Turns::samples`].
    pub(crate) fn given(&self, position: u64) -> Vec<u64> {
        let round = self.round_at(position);
        let full = round * self.block_length;
        let mut left = position - self.before(round);
        let mut given = |&length: &u64| {
            let taken = self.turn_length(length, round).min(left);
            left -= taken;
            length.min(full) + taken
        };
        self.lengths.iter().map(&mut given).collect()
    }

    pub(crate) fn position(&self, turn: Turn) -> u64 {
        let round = turn.offset / self.block_length;
        let earlier: u64 =
            self.lengths[..turn.split].iter().map(|&length| self.turn_length(length, round)).sum();
        self.before(round) + earlier + turn.offset % self.block_length
    }

    /// Iterates over all samples from `position` on, in turn.
    pub(crate) fn iter_from(self, position: u64) -> TurnsIter {
        if position >= self.samples() {
            return TurnsIter::empty();
        }
        let first = self.at(position);
        let round = first.offset / self.block_length;
        let live: Vec<usize> = self.live(round).collect();
        let next = live.iter().position(|&split| split == first.split).expect("it has a turn");
        let taken = first.offset % self.block_length;
        TurnsIter { turns: self, live, next, round, taken }
    }

    /// Returns the last round that starts at or before `position`.
    fn round_at(&self, position: u64) -> u64 {
        let longest = self.lengths.iter().max().copied().unwrap_or(0);
        last_where(0..longest / self.block_length + 1, |round| self.before(round) <= position)
    }

    /// Returns the number of samples in the rounds before `round`.
    fn before(&self, round: u64) -> u64 {
        let full = round * self.block_length;
        self.lengths.iter().map(|&length| length.min(full)).sum()
    }

    fn turn_length(&self, length: u64, round: u64) -> u64 {
        length.saturating_sub(round * self.block_length).min(self.block_length)
    }

    /// Iterates over the splits that have samples left in `round`.
    fn live(&self, round: u64) -> impl Iterator<Item = usize> + '_ {
        let given = round * self.block_length;
        (0..self.lengths.len()).filter(move |&split| self.lengths[split] > given)
    }
}

/// Iterator over the turns of a group from a position on.
#[derive(Clone, Debug)]
pub(crate) struct TurnsIter {
    turns: Turns,
    live: Vec<usize>,
    next: usize,
    round: u64,
    taken: u64,
}

impl TurnsIter {
    pub(crate) fn empty() -> Self {
        Self { turns: Turns::new(vec![], 1), live: vec![], next: 0, round: 0, taken: 0 }
    }

    /// Returns the next sample and the length of its run in the split, itself included: at most
    /// `max`, which is not 0.
    pub(crate) fn next_run(&mut self, max: u64) -> Option<(Turn, u64)> {
        loop {
            if self.next == self.live.len() {
                self.round += 1;
                self.next = 0;
                self.live = self.turns.live(self.round).collect();
                if self.live.is_empty() {
                    return None;
                }
            }
            let (split, block_length) = (self.live[self.next], self.turns.block_length);
            let offset = self.round * block_length + self.taken;
            let left = self.turns.lengths[split].saturating_sub(offset);
            // If only one split has samples left, it gets all remaining turns.
            let is_alone = self.live.len() == 1;
            let turn = if is_alone { left } else { left.min(block_length - self.taken) };
            if turn > 0 {
                let run = turn.min(max);
                self.taken += run;
                if is_alone {
                    let end = offset + run;
                    (self.round, self.taken) = (end / block_length, end % block_length);
                }
                return Some((Turn { split, offset }, run));
            }
            self.next += 1;
            self.taken = 0;
        }
    }
}

impl Iterator for TurnsIter {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        self.next_run(1).map(|(turn, _)| turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(lengths: &[u64], block_length: u64) -> String {
        let turns = Turns::new(lengths.to_vec(), block_length);
        let all: Vec<Turn> = turns.clone().iter_from(0).collect();
        assert_eq!(all.len() as u64, turns.samples());
        for (position, &turn) in all.iter().enumerate() {
            let position = position as u64;
            assert_eq!(turns.at(position), turn);
            assert_eq!(turns.position(turn), position);
            assert_eq!(turns.clone().iter_from(position).next(), Some(turn));
        }
        for position in 0..=all.len() {
            let mut given = vec![0; lengths.len()];
            all[..position].iter().for_each(|turn| given[turn.split] += 1);
            assert_eq!(turns.given(position as u64), given);
        }
        all.iter()
            .map(|turn| format!("{}{}", (b'a' + turn.split as u8) as char, turn.offset))
            .collect()
    }

    #[test]
    fn runs_of_any_length_are_the_turns() {
        for (lengths, block_length) in [(vec![3, 1, 9], 1), (vec![3, 1, 4], 2), (vec![9], 4)] {
            let turns = Turns::new(lengths, block_length);
            for (from, max) in
                (0..=turns.samples()).flat_map(|from| [1, 2, 3, 100].map(|n| (from, n)))
            {
                let expected: Vec<Turn> = turns.clone().iter_from(from).collect();
                let (mut iter, mut found) = (turns.clone().iter_from(from), Vec::new());
                while let Some((Turn { split, offset }, run)) = iter.next_run(max) {
                    assert!((1..=max).contains(&run));
                    found.extend((offset..offset + run).map(|offset| Turn { split, offset }));
                }
                assert_eq!(found, expected, "from {from}, runs of {max}");
            }
        }
        let mut alone = Turns::new(vec![9], 1).iter_from(2);
        assert_eq!(alone.next_run(5), Some((Turn { split: 0, offset: 2 }, 5)));
    }

    #[test]
    fn block_length_1_takes_one_sample_a_turn() {
        assert_eq!(order(&[3, 1, 2], 1), "a0b0c0a1c1a2");
    }

    #[test]
    fn block_length_2_takes_two_samples_a_turn() {
        assert_eq!(order(&[3, 1, 4], 2), "a0a1b0c0c1a2c2c3");
    }

    #[test]
    fn one_split_keeps_its_order() {
        assert_eq!(order(&[3], 1), "a0a1a2");
        assert_eq!(order(&[3], 5), "a0a1a2");
    }

    #[test]
    fn nothing_is_left_beyond_the_end() {
        assert_eq!(Turns::new(vec![2, 1], 1).iter_from(3).next(), None);
    }
}
