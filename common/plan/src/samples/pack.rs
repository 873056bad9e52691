//! Packs: samples of a fixed number of tokens, made of a shard's sequences. Source: docs/ORDER.md,
//! section 14.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::lane::cut;
use crate::random::{Draws, stream_key};
use crate::samples::lengths::Lengths;
use crate::{PlanError, check_parameters};

/// Maximum number of tokens of a pack.
pub const PACK_LENGTH_MAX: u64 = 1 << 30;

/// Maximum number of parts of a block: bounds the memory of a block that is open.
pub const PACK_BLOCK_MAX: u64 = 1 << 20;

/// Maximum number of variants: bounds the time of [`Packing::new`], which packs each of them.
pub const PACK_VARIANTS_MAX: u64 = 64;

/// Maximum number of sequences, and of packs, of a shard.
pub const PACKS_MAX: u64 = (1 << 31) - 1;

/// Sizes of parts, by the logarithm of their tokens.
const SIZES: usize = PACK_LENGTH_MAX.ilog2() as usize + 1;

/// Settings that determine the packs of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackSettings {
    /// Tokens of a pack, L.
    pub length: u64,
    /// Maximum number of parts that are packed together, P.
    pub block: u64,
    /// Number of different packings, V.
    pub variants: u64,
    /// True if one token is appended to each sequence.
    pub append: bool,
    /// Treatment of sequences that are longer than a pack.
    pub long: LongSequences,
    pub method: PackMethod,
}

/// Treatment of sequences that are longer than a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LongSequences {
    /// They are cut into several parts.
    Split,
    /// Their first tokens are kept.
    Truncate,
    /// They are left out.
    Drop,
    /// They are an error.
    Error,
}

/// Packing method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackMethod {
    /// Parts stay whole; each goes to the fullest pack that has room for it.
    Fit,
    /// Sequences follow each other without gaps and are cut where a pack ends.
    Concat,
}

/// Reason why a shard cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// A setting is zero or too large.
    #[error(transparent)]
    Setting(#[from] PlanError),
    #[error(
        "sequence {sequence} of the shard has {tokens} tokens, which is more than length={length}; \
         pass long=\"split\", \"truncate\" or \"drop\", or a larger length"
    )]
    LongSequence {
        /// Number of the sequence among those of the shard that are packed.
        sequence: u64,
        /// Its tokens, with the appended one.
        tokens: u64,
        length: u64,
    },
    #[error(
        "the {sequences} sequences of the shard, their parts of length={length} tokens, or its packs \
         are more than {PACKS_MAX}; use a larger length, or smaller shards"
    )]
    TooMany { sequences: u64, length: u64 },
    #[error(
        "the shard has {windows} windows, which is more than {PACKS_MAX}; use a larger stride, or \
         smaller shards"
    )]
    TooManyWindows { windows: u64 },
}

/// Consecutive tokens of one sequence, in one pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackSegment {
    /// Number of the sequence among the given ones.
    pub sequence: u64,
    /// First token; the appended token follows the tokens of the sequence.
    pub first: u64,
    /// Number of tokens, at least 1.
    pub tokens: u64,
}

/// Counts of the sequences and tokens that are in no pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackLosses {
    /// Sequences without tokens.
    pub empty: u64,
    /// Sequences that are longer than a pack and were dropped.
    pub dropped: u64,
    /// Tokens of dropped and truncated sequences that are in no pack.
    pub tokens: u64,
}

/// The packs of one shard, in all variants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packing {
    settings: PackSettings,
    shard: Digest,
    lengths: Lengths,
    losses: PackLosses,
    parts: u64,
    /// Starts of the blocks, and the end of the last one.
    starts: Vec<BlockStart>,
}

/// Position at which a block starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct BlockStart {
    /// Sequence and token that follow the parts of the blocks before.
    sequence: u64,
    first: u64,
    /// Packs of the blocks before; with `concat` their tokens.
    before: u64,
}

impl Packing {
    /// Returns the packs of the sequences of a shard. Packs each block in each variant once, except
    /// blocks with a known number of packs.
    /// - `shard`: digest of the shard's content. `lengths`: tokens of each sequence, in order,
    ///   without the appended one.
    /// - `counts`: those of [`Packing::counts`]; not used if there are not as many as blocks.
    ///
    /// # Errors
    /// A setting is out of range, a sequence is too long, or there are too many.
    pub fn new(
        settings: PackSettings,
        shard: Digest,
        lengths: Lengths,
        counts: &[u64],
    ) -> Result<Self, PackError> {
        settings.validate()?;
        let (length, method) = (settings.length, settings.method);
        let sequences = lengths.sequences();
        let (losses, starts) = (PackLosses::default(), vec![BlockStart::default()]);
        let mut packing = Self { settings, shard, lengths, losses, parts: 0, starts };
        let mut tokens = 0;
        if sequences <= PACKS_MAX {
            // No sum overflows: below 2^31 sequences have at most 2^32 tokens each.
            for sequence in 0..sequences {
                let kept = packing.keep(sequence)?;
                packing.parts += packing.parts_in(kept);
                tokens += kept;
            }
        }
        let items = match method {
            PackMethod::Fit => packing.parts,
            PackMethod::Concat => tokens.div_ceil(length),
        };
        if sequences.max(items) > PACKS_MAX {
            return Err(PackError::TooMany { sequences, length });
        }
        let counts = Some(counts).filter(|counts| counts.len() as u64 == packing.blocks());
        for block in 0..packing.blocks() {
            packing.measure(block, counts.map(|counts| counts[block as usize]));
        }
        Ok(packing)
    }

    /// Returns the number of packs of each block, for [`Packing::new`]; empty with `concat`, where
    /// it follows from the lengths.
    pub fn counts(&self) -> Vec<u64> {
        match self.settings.method {
            PackMethod::Fit => {
                self.starts.windows(2).map(|ends| ends[1].before - ends[0].before).collect()
            }
            PackMethod::Concat => vec![],
        }
    }

    pub fn settings(&self) -> &PackSettings {
        &self.settings
    }

    /// Returns the digest of the shard's content.
    pub fn shard(&self) -> Digest {
        self.shard
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.lengths.memory_bytes() + size_of_val(&self.starts[..])
    }

    /// Returns the number of tokens of each sequence, without the appended one.
    pub fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    /// Returns the number of packs, the same in all variants.
    pub fn packs(&self) -> u64 {
        let end = self.starts[self.starts.len() - 1].before;
        match self.settings.method {
            PackMethod::Fit => end,
            PackMethod::Concat => end.div_ceil(self.settings.length),
        }
    }

    /// Returns the counts of the sequences and tokens that are in no pack.
    pub fn losses(&self) -> PackLosses {
        self.losses
    }

    /// Returns the number of tokens in the packs, with the appended ones.
    pub fn tokens_packed(&self) -> u64 {
        (0..self.lengths.sequences()).map(|sequence| self.kept(sequence)).sum()
    }

    pub fn blocks(&self) -> u64 {
        self.parts.div_ceil(self.settings.block)
    }

    /// Returns the packs of a block, which is below [`Packing::blocks`]; with `concat` those that
    /// end in it, of which the first may begin in an earlier block.
    pub fn packs_of(&self, block: u64) -> Range<u64> {
        let (start, end) = (self.starts[block as usize], self.starts[block as usize + 1]);
        match self.settings.method {
            PackMethod::Fit => start.before..end.before,
            PackMethod::Concat => {
                let length = self.settings.length;
                let is_last = block + 1 == self.blocks();
                let end = if is_last { self.packs() } else { end.before / length };
                start.before / length..end
            }
        }
    }

    /// Returns the block to open for a pack, which is below [`Packing::packs`].
    pub fn block_of(&self, pack: u64) -> u64 {
        let ends = &self.starts[1..self.starts.len() - 1];
        let length = self.settings.length;
        let is_before = |end: &BlockStart| match self.settings.method {
            PackMethod::Fit => end.before <= pack,
            PackMethod::Concat => end.before / length <= pack,
        };
        ends.partition_point(is_before) as u64
    }

    /// Returns the first sequence that the packs of a block or of a later one need. A reader
    /// that passes the sequences in order may forget those before it.
    pub fn first_sequence(&self, block: u64) -> u64 {
        let first = match self.settings.method {
            PackMethod::Fit => block as usize,
            PackMethod::Concat => {
                let start = self.packs_of(block).start * self.settings.length;
                self.starts.partition_point(|at| at.before <= start) - 1
            }
        };
        self.starts[first].sequence
    }

    /// Returns the segments of each pack of [`Packing::packs_of`], in a variant, of which epochs
    /// take turns. Uses memory for the parts and the packs of one block.
    pub fn open(&self, block: u64, variant: u64) -> Vec<Vec<PackSegment>> {
        let variant = variant % self.settings.variants;
        let packs = self.packs_of(block);
        match self.settings.method {
            PackMethod::Fit => self.fitted(block, variant, (packs.end - packs.start) as usize),
            PackMethod::Concat => self.concatenated(block, variant, packs),
        }
    }

    /// Returns the cost `sum_squares` of each pack of [`Packing::open`]: the sum of the squares of its
    /// segments' tokens. Source: docs/ORDER.md, section 15.
    pub fn sums_of_squares(&self, block: u64, variant: u64) -> Vec<u64> {
        let squares = |pack: Vec<PackSegment>| {
            pack.into_iter().map(|segment| segment.tokens * segment.tokens).sum()
        };
        self.open(block, variant).into_iter().map(squares).collect()
    }

    fn fitted(&self, block: u64, variant: u64, count: usize) -> Vec<Vec<PackSegment>> {
        let parts = self.parts_of(block);
        let mut packs = self.fit(&parts, block, variant);
        split_until(&mut packs, count);
        let order = self.permutation(packs.len(), block, variant, 1);
        let segments = |pack: &mut Vec<u32>| {
            pack.sort_unstable();
            pack.iter().map(|&part| parts[part as usize]).collect()
        };
        order.into_iter().map(|pack| segments(&mut packs[pack as usize])).collect()
    }

    /// Returns the numbers of the parts of each pack, in the order in which they were packed.
    fn fit(&self, parts: &[PackSegment], block: u64, variant: u64) -> Vec<Vec<u32>> {
        // By size, the largest first; those of a size in the order of the permutation.
        let mut order: [Vec<u32>; SIZES] = Default::default();
        for part in self.permutation(parts.len(), block, variant, 0) {
            order[parts[part as usize].tokens.ilog2() as usize].push(part);
        }
        let mut packs: Vec<Vec<u32>> = Vec::new();
        // Packs with room, by their room and then in the order in which they were opened: one number
        // for both, because these are compared more than anything else here.
        let mut open: BTreeSet<u64> = BTreeSet::new();
        for part in order.into_iter().rev().flatten() {
            let tokens = parts[part as usize].tokens;
            let found = open.range(tokens << 32..).next().copied();
            let fullest = found.unwrap_or(self.settings.length << 32 | packs.len() as u64);
            let (room, pack) = (fullest >> 32, (fullest & u64::from(u32::MAX)) as usize);
            match found {
                Some(_) => {
                    open.remove(&fullest);
                    packs[pack].push(part);
                }
                None => packs.push(vec![part]),
            }
            if room > tokens {
                open.insert(fullest - (tokens << 32));
            }
        }
        packs
    }

    fn concatenated(&self, block: u64, variant: u64, packs: Range<u64>) -> Vec<Vec<PackSegment>> {
        let length = self.settings.length;
        let (start, end) = (packs.start * length, packs.end * length);
        let mut found = vec![Vec::new(); (packs.end - packs.start) as usize];
        let first = self.starts.partition_point(|at| at.before <= start) as u64 - 1;
        for block in first..=block {
            let parts = self.parts_of(block);
            let mut at = self.starts[block as usize].before;
            for part in self.permutation(parts.len(), block, variant, 0) {
                let PackSegment { sequence, tokens, .. } = parts[part as usize];
                let (begin, stop) = (at.max(start), (at + tokens).min(end));
                let mut token = begin;
                while token < stop {
                    let next = stop.min((token / length + 1) * length);
                    let segment = PackSegment { sequence, first: token - at, tokens: next - token };
                    found[(token / length - packs.start) as usize].push(segment);
                    token = next;
                }
                at += tokens;
            }
        }
        found
    }

    fn permutation(&self, length: usize, block: u64, variant: u64, stream: u64) -> Vec<u32> {
        let key = stream_key("pack", &self.shard, &[block, variant]);
        let draws = Draws::new(key, stream);
        draws.permutation(length as u64).expect("a block has at most 2^20 parts")
    }

    /// Appends the end of a block to the starts.
    /// - `packs`: number of its packs, if it is known.
    fn measure(&mut self, block: u64, packs: Option<u64>) {
        let parts = self.parts_of(block);
        let tokens: u64 = parts.iter().map(|part| part.tokens).sum();
        let least = tokens.div_ceil(self.settings.length);
        let packs = packs.filter(|packs| (least..=parts.len() as u64).contains(packs));
        let size = match (self.settings.method, packs) {
            (PackMethod::Concat, _) => tokens,
            (PackMethod::Fit, Some(packs)) => packs,
            (PackMethod::Fit, None) => (0..self.settings.variants)
                .map(|variant| self.fit(&parts, block, variant).len() as u64)
                .max()
                .expect("checked: at least one variant"),
        };
        let last = parts[parts.len() - 1];
        let before = self.starts[block as usize].before + size;
        let (sequence, first) = (last.sequence, last.first + last.tokens);
        self.starts.push(BlockStart { sequence, first, before });
    }

    /// Returns the parts of a block: sequences or parts of them, in order.
    fn parts_of(&self, block: u64) -> Vec<PackSegment> {
        let count = cut(self.parts, self.blocks(), block);
        let BlockStart { mut sequence, mut first, .. } = self.starts[block as usize];
        let most = match self.settings.method {
            PackMethod::Fit => self.settings.length,
            PackMethod::Concat => u64::MAX,
        };
        let count = (count.end - count.start) as usize;
        let mut parts = Vec::with_capacity(count);
        while parts.len() < count {
            let tokens = (self.kept(sequence) - first).min(most);
            if tokens == 0 {
                (sequence, first) = (sequence + 1, 0);
                continue;
            }
            parts.push(PackSegment { sequence, first, tokens });
            first += tokens;
        }
        parts
    }

    fn parts_in(&self, kept: u64) -> u64 {
        match self.settings.method {
            PackMethod::Fit => kept.div_ceil(self.settings.length),
            PackMethod::Concat => kept.min(1),
        }
    }

    /// Returns the tokens of a sequence, with the appended one.
    fn tokens(&self, sequence: u64) -> u64 {
        match self.lengths.get(sequence) {
            None | Some(0) => 0,
            Some(tokens) => u64::from(tokens) + u64::from(self.settings.append),
        }
    }

    /// Returns the tokens of a sequence that are in packs.
    fn kept(&self, sequence: u64) -> u64 {
        let (tokens, length) = (self.tokens(sequence), self.settings.length);
        match self.settings.long {
            _ if tokens <= length => tokens,
            LongSequences::Split => tokens,
            LongSequences::Truncate => length,
            LongSequences::Drop | LongSequences::Error => 0,
        }
    }

    /// Returns the same, and counts the tokens that are left out.
    fn keep(&mut self, sequence: u64) -> Result<u64, PackError> {
        let (tokens, kept, length) =
            (self.tokens(sequence), self.kept(sequence), self.settings.length);
        if tokens > length && self.settings.long == LongSequences::Error {
            return Err(PackError::LongSequence { sequence, tokens, length });
        }
        self.losses.empty += u64::from(tokens == 0);
        self.losses.dropped += u64::from(tokens > 0 && kept == 0);
        self.losses.tokens += tokens - kept;
        Ok(kept)
    }
}

impl PackSettings {
    /// Returns bytes that are equal for equal settings only.
    pub fn key(&self) -> Vec<u8> {
        format!("{self:?}").into_bytes()
    }

    pub fn validate(&self) -> Result<(), PlanError> {
        check_parameters(&[("length", self.length, PACK_LENGTH_MAX)])?;
        check_parameters(&[("block", self.block, PACK_BLOCK_MAX)])?;
        check_parameters(&[("variants", self.variants, PACK_VARIANTS_MAX)])
    }
}

/// Splits the pack with the most parts, the first of these, until there are `count`.
fn split_until(packs: &mut Vec<Vec<u32>>, count: usize) {
    let mut sizes: BinaryHeap<(usize, Reverse<usize>)> =
        packs.iter().enumerate().map(|(pack, parts)| (parts.len(), Reverse(pack))).collect();
    while packs.len() < count {
        let (size, Reverse(pack)) = sizes.pop().expect("fewer packs than parts");
        let rest = packs[pack].split_off(size.div_ceil(2));
        sizes.push((packs[pack].len(), Reverse(pack)));
        sizes.push((rest.len(), Reverse(packs.len())));
        packs.push(rest);
    }
}
