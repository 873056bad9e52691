//! Group range: the part of a group that is granted, consumed or returned.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Group range: samples `[from, to)` of a group in its order, as `[group, from, to]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")]
pub struct GroupRange {
    pub group: u64,
    /// First sample of the range.
    pub from: u64,
    /// End of the range, exclusive; above `from`.
    pub to: u64,
}

impl From<(u64, u64, u64)> for GroupRange {
    fn from((group, from, to): (u64, u64, u64)) -> Self {
        Self { group, from, to }
    }
}

impl From<GroupRange> for (u64, u64, u64) {
    fn from(GroupRange { group, from, to }: GroupRange) -> Self {
        (group, from, to)
    }
}

impl GroupRange {
    pub fn samples(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }

    /// Splits off the first `most` samples, or fewer; returns them and the others.
    pub fn cut(self, most: u64) -> (Option<Self>, Option<Self>) {
        let at = self.from.saturating_add(most).min(self.to);
        let some = |piece: Self| (piece.from < piece.to).then_some(piece);
        (some(Self { to: at, ..self }), some(Self { from: at, ..self }))
    }
}

/// Disjoint group ranges in plan order, by group and offset; adjacent ones are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<GroupRange>", into = "Vec<GroupRange>")]
pub struct FreeRanges {
    ends: BTreeMap<(u64, u64), u64>,
    samples: u64,
}

impl From<Vec<GroupRange>> for FreeRanges {
    fn from(pieces: Vec<GroupRange>) -> Self {
        let mut free = Self::default();
        pieces.into_iter().for_each(|piece| free.insert(piece));
        free
    }
}

impl From<FreeRanges> for Vec<GroupRange> {
    fn from(free: FreeRanges) -> Self {
        free.iter().collect()
    }
}

impl FreeRanges {
    pub fn samples(&self) -> u64 {
        self.samples
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Iterates over the ranges in plan order.
    pub fn iter(&self) -> impl Iterator<Item = GroupRange> + '_ {
        self.ends.iter().map(|(&(group, from), &to)| GroupRange { group, from, to })
    }

    pub fn take_first(&mut self) -> Option<GroupRange> {
        let key = *self.ends.first_key_value()?.0;
        self.take_at(key)
    }

    /// Removes and returns the first range of one of these groups.
    pub fn take_first_of(&mut self, groups: impl IntoIterator<Item = u64>) -> Option<GroupRange> {
        let first = |group| self.ends.range((group, 0)..=(group, u64::MAX)).next();
        let key = *groups.into_iter().filter_map(first).min()?.0;
        self.take_at(key)
    }

    fn take_at(&mut self, (group, from): (u64, u64)) -> Option<GroupRange> {
        let to = self.ends.remove(&(group, from))?;
        let piece = GroupRange { group, from, to };
        self.samples -= piece.samples();
        Some(piece)
    }

    /// Adds a range of which no sample is contained yet.
    pub fn insert(&mut self, piece: GroupRange) {
        let GroupRange { group, mut from, mut to } = piece;
        if from >= to {
            return;
        }
        self.samples += to - from;
        if let Some(end) = self.ends.remove(&(group, to)) {
            to = end;
        }
        let before = self.ends.range(..(group, from)).next_back();
        if let Some((&(_, start), _)) =
            before.filter(|((of, _), end)| *of == group && **end == from)
        {
            from = start;
        }
        self.ends.insert((group, from), to);
    }

    /// Removes the samples of `piece`; returns the ranges that were contained.
    pub fn remove(&mut self, piece: GroupRange) -> Vec<GroupRange> {
        let GroupRange { group, from, to } = piece;
        let before = self.ends.range(..(group, from)).next_back();
        let first = match before {
            Some((&(of, start), &end)) if of == group && end > from => start,
            _ => from,
        };
        let met: Vec<_> = self.ends.range((group, first)..(group, to)).map(copied).collect();
        let mut removed = Vec::with_capacity(met.len());
        for (key, end) in met {
            self.ends.remove(&key);
            let start = key.1;
            if start < from {
                self.ends.insert((group, start), from);
            }
            if end > to {
                self.ends.insert((group, to), end);
            }
            let common = GroupRange { group, from: start.max(from), to: end.min(to) };
            self.samples -= common.samples();
            removed.push(common);
        }
        removed
    }
}

fn copied((key, end): (&(u64, u64), &u64)) -> ((u64, u64), u64) {
    (*key, *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(group: u64, from: u64, to: u64) -> GroupRange {
        GroupRange { group, from, to }
    }

    #[test]
    fn is_three_numbers_in_json() {
        let json = serde_json::to_string(&piece(3, 4, 9)).unwrap();
        assert_eq!(json, "[3,4,9]");
        assert_eq!(serde_json::from_str::<GroupRange>(&json).unwrap(), piece(3, 4, 9));
    }

    #[test]
    fn pieces_that_touch_are_one() {
        let mut free = FreeRanges::from(vec![piece(1, 4, 6), piece(0, 0, 3), piece(1, 0, 2)]);
        free.insert(piece(1, 2, 4));
        assert_eq!(free.iter().collect::<Vec<_>>(), [piece(0, 0, 3), piece(1, 0, 6)]);
        assert_eq!((free.len(), free.samples()), (2, 9));
        assert_eq!(free.take_first(), Some(piece(0, 0, 3)));
        assert_eq!(free.samples(), 6);
        assert_eq!(free.take_first(), Some(piece(1, 0, 6)));
        assert_eq!(free.take_first(), None);
    }

    #[test]
    fn the_first_one_of_some_groups_is_taken() {
        let mut free = FreeRanges::from(vec![piece(0, 0, 3), piece(2, 5, 6), piece(4, 1, 8)]);
        assert_eq!(free.take_first_of([1, 3, 5]), None);
        assert_eq!(free.take_first_of([4, 2, 4]), Some(piece(2, 5, 6)));
        assert_eq!(free.take_first_of([4, 2]), Some(piece(4, 1, 8)));
        assert_eq!(free.iter().collect::<Vec<_>>(), [piece(0, 0, 3)]);
        assert_eq!(free.samples(), 3);
    }

    #[test]
    fn what_is_in_of_a_piece_is_taken_out() {
        let mut free = FreeRanges::from(vec![piece(1, 0, 4), piece(1, 6, 9), piece(2, 0, 9)]);
        assert_eq!(free.remove(piece(1, 3, 7)), [piece(1, 3, 4), piece(1, 6, 7)]);
        assert_eq!(free.remove(piece(1, 3, 7)), []);
        assert_eq!(free.remove(piece(2, 2, 4)), [piece(2, 2, 4)]);
        let left = [piece(1, 0, 3), piece(1, 7, 9), piece(2, 0, 2), piece(2, 4, 9)];
        assert_eq!(free.iter().collect::<Vec<_>>(), left);
        assert_eq!(free.samples(), 12);
        let json = serde_json::to_string(&free).unwrap();
        assert_eq!(json, "[[1,0,3],[1,7,9],[2,0,2],[2,4,9]]");
        assert_eq!(serde_json::from_str::<FreeRanges>(&json).unwrap(), free);
    }
}
