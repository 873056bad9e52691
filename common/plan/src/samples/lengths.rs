//! Tokens of the sequences of a shard.

use serde::{Deserialize, Serialize};

/// One number for each sequence: in 2 bytes each, or in 4 if one of them needs more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lengths {
    /// All are below 2^16.
    Short(Vec<u16>),
    /// One is larger.
    Long(Vec<u32>),
}

impl Default for Lengths {
    fn default() -> Self {
        Self::Short(vec![])
    }
}

impl FromIterator<u32> for Lengths {
    fn from_iter<T: IntoIterator<Item = u32>>(lengths: T) -> Self {
        let mut all = Self::default();
        lengths.into_iter().for_each(|length| all.push(length));
        all
    }
}

impl Lengths {
    /// Adds the next one.
    pub fn push(&mut self, length: u32) {
        match self {
            Self::Short(lengths) => match u16::try_from(length) {
                Ok(length) => lengths.push(length),
                Err(_) => *self = Self::Long(self.iter().chain([length]).collect()),
            },
            Self::Long(lengths) => lengths.push(length),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Short(lengths) => size_of_val(&lengths[..]),
            Self::Long(lengths) => size_of_val(&lengths[..]),
        }
    }

    pub fn sequences(&self) -> u64 {
        match self {
            Self::Short(lengths) => lengths.len() as u64,
            Self::Long(lengths) => lengths.len() as u64,
        }
    }

    /// Returns the tokens of a sequence; `None` if there are fewer sequences.
    pub fn get(&self, sequence: u64) -> Option<u32> {
        let sequence = usize::try_from(sequence).ok()?;
        match self {
            Self::Short(lengths) => lengths.get(sequence).copied().map(u32::from),
            Self::Long(lengths) => lengths.get(sequence).copied(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.sequences()).filter_map(|sequence| self.get(sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_that_were_added() {
        for (lengths, is_short) in [
            (vec![], true),
            (vec![0, 7, 65_535], true),
            (vec![1, 65_536, 2], false),
            (vec![u32::MAX, 3], false),
        ] {
            let all: Lengths = lengths.iter().copied().collect();
            assert_eq!(all.iter().collect::<Vec<_>>(), lengths);
            assert_eq!(all.sequences(), lengths.len() as u64);
            assert_eq!(all.get(1), lengths.get(1).copied());
            assert_eq!(all.get(3), None);
            assert_eq!(matches!(all, Lengths::Short(_)), is_short);
        }
    }
}
