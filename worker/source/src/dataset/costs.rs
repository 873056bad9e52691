use serde::{Deserialize, Serialize};

/// One number for each sample, in 1, 2, 4 or 8 bytes, as the largest one needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Costs {
    /// Bytes of a number.
    width: usize,
    bytes: Vec<u8>,
}

impl Default for Costs {
    fn default() -> Self {
        Self { width: 1, bytes: vec![] }
    }
}

impl Costs {
    pub(super) fn len(&self) -> u64 {
        (self.bytes.len() / self.width) as u64
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }

    /// Returns the cost of a sample, which is below [`Costs::len`].
    pub(super) fn of(&self, sample: u64) -> u64 {
        let from = sample as usize * self.width;
        let mut cost = [0; 8];
        cost[..self.width].copy_from_slice(&self.bytes[from..from + self.width]);
        u64::from_le_bytes(cost)
    }

    pub(super) fn push(&mut self, cost: u64) {
        let needed = (64 - cost.leading_zeros()).div_ceil(8).next_power_of_two() as usize;
        if needed > self.width {
            let wide = |of: u64| self.of(of).to_le_bytes().into_iter().take(needed);
            let bytes = (0..self.len()).flat_map(wide).collect();
            *self = Self { width: needed, bytes };
        }
        self.bytes.extend_from_slice(&cost.to_le_bytes()[..self.width]);
    }

    /// Iterates over the words of the stored form: the bytes of a number, and the numbers.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let word = |part: &[u8]| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(word)
        };
        std::iter::once(self.width as u64).chain(self.bytes.chunks(8).map(word))
    }

    /// Returns `len` costs of their stored form; `None` if it is none.
    pub(super) fn read(len: u64, words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let width =
            usize::try_from(words.next()?).ok().filter(|width| [1, 2, 4, 8].contains(width))?;
        let mut costs = Self::default();
        read_numbers(len, width, words, |cost| costs.push(cost))?;
        (costs.width == width).then_some(costs)
    }
}

/// Reads `len` numbers of `width` bytes each; `None` if the words are too few, or hold more.
pub(super) fn read_numbers(
    len: u64,
    width: usize,
    words: &mut impl Iterator<Item = u64>,
    mut push: impl FnMut(u64),
) -> Option<()> {
    let (in_word, bits) = (8 / width, 8 * width as u32);
    for first in (0..len).step_by(in_word) {
        let mut word = words.next()?;
        for _ in first..len.min(first + in_word as u64) {
            push(word & (u64::MAX >> (64 - bits)));
            word = word.checked_shr(bits).unwrap_or(0);
        }
        if word != 0 {
            return None;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_read_as_they_were_added() {
        let all: [&[u64]; 7] = [
            &[],
            &[0],
            &[255, 1, 2],
            &[1, 2, 256, 3, 4, 5, 6, 7, 8, 9],
            &[65_536, 1],
            &[7, 1 << 32, 9],
            &[u64::MAX, 0, 1_f64.to_bits()],
        ];
        for (bytes, numbers) in [1, 1, 1, 2, 4, 8, 8].into_iter().zip(all) {
            let mut costs = Costs::default();
            numbers.iter().for_each(|cost| costs.push(*cost));
            assert_eq!(costs.width, bytes);
            let read: Vec<_> = (0..costs.len()).map(|sample| costs.of(sample)).collect();
            assert_eq!(read, numbers);
            let mut words = costs.words();
            assert_eq!(Costs::read(costs.len(), &mut words).as_ref(), Some(&costs));
            assert_eq!(words.next(), None);
        }
    }

    #[test]
    fn another_form_than_the_shortest_is_none() {
        let read = |len, words: &[u64]| Costs::read(len, &mut words.iter().copied());
        assert!(read(2, &[2, 256]).is_some());
        assert_eq!(read(2, &[2, 255]), None, "one byte is enough");
        assert_eq!(read(1, &[3, 1]), None, "no such width");
        assert_eq!(read(1, &[1, 256]), None, "more than the last number");
        assert_eq!(read(9, &[1, 1]), None, "too few");
    }
}
