//! Sequences of bits that find the n-th one, the n-th zero, and the number of ones before a position.

use serde::{Deserialize, Serialize};

const BLOCK_WORDS: usize = 8;

const WORD_BITS: u64 = 64;

const BLOCK_BITS: u64 = BLOCK_WORDS as u64 * WORD_BITS;

/// Maximum number of words that are expected by a length alone.
const READ_AHEAD: u64 = 1 << 16;

/// A sequence of bits, and the number of ones before each block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bits {
    pub(super) len: u64,
    pub(super) ones: u64,
    pub(super) words: Vec<u64>,
    before: Vec<u64>,
}

impl Bits {
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + (self.words.len() + self.before.len()) * size_of::<u64>()
    }

    pub(super) fn push(&mut self, is_one: bool) {
        let bit = self.len % WORD_BITS;
        if bit == 0 {
            if self.words.len().is_multiple_of(BLOCK_WORDS) {
                self.before.push(self.ones);
            }
            self.words.push(0);
        }
        if let Some(word) = self.words.last_mut().filter(|_| is_one) {
            *word |= 1 << bit;
            self.ones += 1;
        }
        self.len += 1;
    }

    /// Returns bits with these words; `None` if there are fewer, or ones after the last bit.
    pub(super) fn read(len: u64, words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let count = len.div_ceil(WORD_BITS);
        // As far as a damaged length deserves it.
        let capacity = count.min(READ_AHEAD) as usize;
        let words_of = Vec::with_capacity(capacity);
        let before = Vec::with_capacity(capacity.div_ceil(BLOCK_WORDS));
        let mut bits = Self { len, words: words_of, before, ..Self::default() };
        for index in 0..count {
            let word = words.next()?;
            let used = len - index * WORD_BITS;
            if used < WORD_BITS && word >> used != 0 {
                return None;
            }
            if bits.words.len().is_multiple_of(BLOCK_WORDS) {
                bits.before.push(bits.ones);
            }
            bits.words.push(word);
            bits.ones += u64::from(word.count_ones());
        }
        Some(bits)
    }

    /// True if the bit at a position is a one.
    pub(super) fn has(&self, position: u64) -> bool {
        let word = self.words.get(usize::try_from(position / WORD_BITS).unwrap_or(usize::MAX));
        word.is_some_and(|word| word >> (position % WORD_BITS) & 1 == 1)
    }

    /// Iterates over the positions of the zeros.
    pub(super) fn zeros(&self) -> impl Iterator<Item = u64> + '_ {
        let of_word = |(first, word): (u64, &u64)| {
            let mut left = !*word;
            std::iter::from_fn(move || {
                let bit = u64::from((left != 0).then(|| left.trailing_zeros())?);
                left &= left - 1;
                Some(first + bit)
            })
        };
        let words = (0..).step_by(WORD_BITS as usize).zip(&self.words);
        words.flat_map(of_word).take_while(|position| *position < self.len)
    }

    /// Returns the number of ones before a position.
    pub(super) fn rank(&self, position: u64) -> u64 {
        if position >= self.len {
            return self.ones;
        }
        let word = (position / WORD_BITS) as usize;
        let block = word / BLOCK_WORDS;
        let whole: u32 = self.words[block * BLOCK_WORDS..word].iter().map(|w| w.count_ones()).sum();
        let part = self.words[word] & ((1 << (position % WORD_BITS)) - 1);
        self.before[block] + u64::from(whole + part.count_ones())
    }

    /// Returns the position of the one, or zero, after `before` others; `None`: there are fewer.
    pub(super) fn select(&self, is_one: bool, before: u64) -> Option<u64> {
        if before >= if is_one { self.ones } else { self.len - self.ones } {
            return None;
        }
        let before_block = |block: usize, ones: u64| match is_one {
            true => ones,
            false => block as u64 * BLOCK_BITS - ones,
        };
        // The last block that fewer or as many precede.
        let (mut block, mut end) = (0, self.before.len());
        while end - block > 1 {
            let middle = block.midpoint(end);
            match before_block(middle, self.before[middle]) <= before {
                true => block = middle,
                false => end = middle,
            }
        }
        let mut left = before - before_block(block, self.before[block]);
        for (index, &word) in self.words.iter().enumerate().skip(block * BLOCK_WORDS) {
            let word = if is_one { word } else { !word };
            let found = u64::from(word.count_ones());
            if left < found {
                let without_lower = (0..left).fold(word, |word, _| word & (word - 1));
                return Some(index as u64 * WORD_BITS + u64::from(without_lower.trailing_zeros()));
            }
            left -= found;
        }
        None
    }
}
