//! Partitions values into rows.

use super::spec::Partition;

/// Reason why values cannot be partitioned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionFault {
    #[error("the first row begins at {first}, not at 0")]
    First { first: i64 },
    /// A row would have a negative number of values, or row numbers descend.
    #[error("{next} comes after {last}, but they must not descend")]
    Descends { last: i64, next: i64 },
    #[error("its rows hold {rows} values, but there are {items}")]
    Sum { rows: i64, items: usize },
    #[error("it has {ids} row numbers for {items} values")]
    Ids { ids: usize, items: usize },
    #[error(
        "it numbers {rows} rows for {items} values; at most {EMPTY_ROWS_MAX} rows of a record may be left \
         empty by row numbers: use row lengths or splits"
    )]
    Rows { rows: i64, items: usize },
    #[error("{items} values do not fill rows of {length}")]
    Uneven { items: usize, length: usize },
}

/// Maximum number of rows that the row ids of one feature of a record may leave empty: a row id
/// takes a few bytes and can have any value.
pub const EMPTY_ROWS_MAX: usize = 1 << 14;

impl Partition {
    /// Partitions `items` values into rows and appends the number of values of each row to
    /// `lengths`.
    ///
    /// - `numbers`: values of the partition's key; empty for rows of uniform length. `empty`:
    ///   number of rows that row ids may still leave empty in this record, initially
    ///   [`EMPTY_ROWS_MAX`].
    /// - Returns the number of rows.
    ///
    /// # Errors
    /// [`PartitionFault`]; `lengths` is then unchanged.
    pub fn part(
        &self,
        numbers: &[i64],
        items: usize,
        empty: &mut usize,
        lengths: &mut Vec<i64>,
    ) -> Result<usize, PartitionFault> {
        let before = lengths.len();
        let parted = self.append(numbers, items, empty, lengths);
        if parted.is_err() {
            lengths.truncate(before);
        }
        parted.map(|()| lengths.len() - before)
    }

    fn append(
        &self,
        numbers: &[i64],
        items: usize,
        empty: &mut usize,
        lengths: &mut Vec<i64>,
    ) -> Result<(), PartitionFault> {
        match self {
            Self::RowSplits(_) | Self::RowStarts(_) => match numbers.split_first() {
                // No splits or starts at all mean no rows.
                None => sum(0, items),
                Some((&first, _)) if first != 0 => Err(PartitionFault::First { first }),
                Some((_, limits)) if matches!(self, Self::RowSplits(_)) => {
                    append_limits(limits, items, lengths)
                }
                Some((_, later)) => {
                    append_differences(later.iter().copied().chain([items as i64]), lengths)
                }
            },
            Self::RowLimits(_) => append_limits(numbers, items, lengths),
            Self::RowLengths(_) => {
                let mut rows = 0_i64;
                for &length in numbers {
                    if length < 0 {
                        return Err(PartitionFault::Descends { last: rows, next: rows + length });
                    }
                    rows = rows.saturating_add(length);
                    lengths.push(length);
                }
                sum(rows, items)
            }
            Self::ValueRowIds(_) => append_ids(numbers, items, empty, lengths),
            Self::UniformRowLength(length) => {
                if *length == 0 || !items.is_multiple_of(*length) {
                    return Err(PartitionFault::Uneven { items, length: *length });
                }
                lengths.extend(std::iter::repeat_n(*length as i64, items / length));
                Ok(())
            }
        }
    }
}

fn sum(rows: i64, items: usize) -> Result<(), PartitionFault> {
    if rows == items as i64 { Ok(()) } else { Err(PartitionFault::Sum { rows, items }) }
}

fn append_limits(
    limits: &[i64],
    items: usize,
    lengths: &mut Vec<i64>,
) -> Result<(), PartitionFault> {
    append_differences(limits.iter().copied(), lengths)?;
    sum(limits.last().copied().unwrap_or(0), items)
}

fn append_differences(
    limits: impl Iterator<Item = i64>,
    lengths: &mut Vec<i64>,
) -> Result<(), PartitionFault> {
    let mut last = 0;
    for next in limits {
        if next < last {
            return Err(PartitionFault::Descends { last, next });
        }
        lengths.push(next - last);
        last = next;
    }
    Ok(())
}

fn append_ids(
    ids: &[i64],
    items: usize,
    empty: &mut usize,
    lengths: &mut Vec<i64>,
) -> Result<(), PartitionFault> {
    if ids.len() != items {
        return Err(PartitionFault::Ids { ids: ids.len(), items });
    }
    let before = lengths.len();
    let mut last = 0;
    for &id in ids {
        if id < last {
            return Err(PartitionFault::Descends { last, next: id });
        }
        let rows = lengths.len() - before;
        let too_many = || PartitionFault::Rows { rows: id.saturating_add(1), items };
        let row = usize::try_from(id).map_err(|_| too_many())?;
        *empty = empty.checked_sub(row.saturating_sub(rows)).ok_or_else(too_many)?;
        lengths.resize(before + rows.max(row + 1), 0);
        lengths[before + row] += 1;
        last = id;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(partition: &Partition, numbers: &[i64], items: usize) -> Result<Vec<i64>, String> {
        let mut lengths = vec![-7];
        let parted = partition.part(numbers, items, &mut EMPTY_ROWS_MAX.clone(), &mut lengths);
        assert_eq!(lengths[0], -7);
        match parted {
            Ok(rows) => {
                assert_eq!(rows, lengths.len() - 1);
                Ok(lengths.split_off(1))
            }
            Err(fault) => {
                assert_eq!(lengths.len(), 1);
                Err(fault.to_string())
            }
        }
    }

    #[test]
    fn all_ways_to_say_the_same_rows() {
        let key = || "k".to_owned();
        let rows = Ok(vec![2, 0, 3]);
        assert_eq!(part(&Partition::RowSplits(key()), &[0, 2, 2, 5], 5), rows);
        assert_eq!(part(&Partition::RowLengths(key()), &[2, 0, 3], 5), rows);
        assert_eq!(part(&Partition::RowStarts(key()), &[0, 2, 2], 5), rows);
        assert_eq!(part(&Partition::RowLimits(key()), &[2, 2, 5], 5), rows);
        assert_eq!(part(&Partition::ValueRowIds(key()), &[0, 0, 2, 2, 2], 5), rows);
        assert_eq!(part(&Partition::UniformRowLength(2), &[], 4), Ok(vec![2, 2]));
        for partition in [
            Partition::RowSplits(key()),
            Partition::RowLengths(key()),
            Partition::RowStarts(key()),
            Partition::RowLimits(key()),
            Partition::ValueRowIds(key()),
        ] {
            assert_eq!(part(&partition, &[], 0), Ok(vec![]), "{partition:?}");
            assert!(part(&partition, &[], 1).is_err(), "{partition:?}");
            assert!(part(&partition, &[-1], 1).is_err(), "{partition:?}");
            assert!(part(&partition, &[i64::MIN, i64::MAX], 2).is_err(), "{partition:?}");
            assert!(part(&partition, &[i64::MAX, i64::MAX], 2).is_err(), "{partition:?}");
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let error = |partition: &Partition, numbers: &[i64], items| {
            part(partition, numbers, items).unwrap_err()
        };
        let key = || "k".to_owned();
        let splits = Partition::RowSplits(key());
        assert_eq!(error(&splits, &[1, 5], 5), "the first row begins at 1, not at 0");
        assert_eq!(error(&splits, &[0, 3, 2, 5], 5), "2 comes after 3, but they must not descend");
        assert_eq!(error(&splits, &[0, 3], 5), "its rows hold 3 values, but there are 5");
        let ids = Partition::ValueRowIds(key());
        assert_eq!(error(&ids, &[0], 2), "it has 1 row numbers for 2 values");
        let many = error(&ids, &[1 << 40], 1);
        assert_eq!(
            many,
            "it numbers 1099511627777 rows for 1 values; at most 16384 rows of a record may be \
             left empty by row numbers: use row lengths or splits"
        );
        // The limit applies to all steps of a record together.
        let (mut empty, mut lengths) = (EMPTY_ROWS_MAX, vec![]);
        let steps = (0..10).map(|_| ids.part(&[10_000, 10_000], 2, &mut empty, &mut lengths));
        assert_eq!(steps.filter(Result::is_ok).count(), 1);
        assert_eq!(lengths.len(), 10_001);
        assert_eq!(
            error(&Partition::UniformRowLength(3), &[], 4),
            "4 values do not fill rows of 3"
        );
    }
}
