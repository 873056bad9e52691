//! Merge of queues in proportion to their lengths (Webster's method). Source: docs/ORDER.md,
//! section 13, Lanes of a mixture; Balinski & Young 1982.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

/// Merged order of queues: item i of a queue of length c is at the time `(2 i + 1) / (2 c)`.
#[derive(Clone, Debug)]
pub(super) struct Merge {
    lengths: Arc<[u64]>,
    total: u64,
}

/// Time of a queue's next item; the lower queue is first at equal times.
#[derive(Clone, Copy, Debug)]
struct NextItem {
    /// `2 i + 1` for item i.
    numerator: u64,
    length: u64,
    queue: usize,
}

impl Ord for NextItem {
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let times =
            product(self.numerator, other.length).cmp(&product(other.numerator, self.length));
        times.then(self.queue.cmp(&other.queue))
    }
}

impl PartialOrd for NextItem {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for NextItem {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for NextItem {}

impl Merge {
    pub(super) fn new(lengths: Vec<u64>) -> Self {
        let total = lengths.iter().sum();
        Self { lengths: lengths.into(), total }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn queues(&self) -> usize {
        self.lengths.len()
    }

    pub(super) fn length(&self, queue: usize) -> u64 {
        self.lengths[queue]
    }

    /// Returns the position of an item of a queue; item `length` is at the end.
    pub(super) fn position(&self, queue: usize, item: u64) -> u64 {
        let own = self.lengths[queue];
        if item >= own {
            return self.total;
        }
        let before = |(other, &length): (usize, &u64)| {
            if other == queue {
                return item;
            }
            // Items k with (2 k + 1) own < (2 item + 1) length; equal ones count of lower queues.
            let bound = (2 * u128::from(item) + 1) * u128::from(length);
            let most = (bound - u128::from(other > queue && bound > 0)) / u128::from(own);
            length.min(most.div_ceil(2) as u64)
        };
        self.lengths.iter().enumerate().map(before).sum()
    }

    /// Iterates over the queues of the items from `position` on.
    pub(super) fn labels_from(&self, position: u64) -> Labels {
        let total = u128::from(self.total);
        // At time T = t / total there are t items, but for an error of half the queues: fewer than
        // `position`.
        let time = u128::from(position).saturating_sub(self.lengths.len() as u128);
        let passed = |&length: &u64| match length {
            0 => 0,
            _ => ((2 * time * u128::from(length) + total) / (2 * total)) as u64,
        };
        let passed = if time == 0 {
            vec![0; self.lengths.len()]
        } else {
            self.lengths.iter().map(passed).collect()
        };
        let mut labels = Labels::new(Arc::clone(&self.lengths), passed);
        while labels.position < position && labels.next().is_some() {}
        labels
    }

    /// Returns the number of items of each queue before `position`.
    pub(super) fn passed(&self, position: u64) -> Vec<u64> {
        self.labels_from(position).passed
    }
}

/// Iterator over the queues of the merged order.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    lengths: Arc<[u64]>,
    heap: BinaryHeap<Reverse<NextItem>>,
    /// Items of each queue before the position.
    passed: Vec<u64>,
    position: u64,
}

impl Labels {
    fn new(lengths: Arc<[u64]>, passed: Vec<u64>) -> Self {
        let position = passed.iter().sum();
        let next = |(queue, (&length, &item)): (usize, (&u64, &u64))| {
            (item < length).then_some(Reverse(NextItem { numerator: 2 * item + 1, length, queue }))
        };
        let heap = lengths.iter().zip(&passed).enumerate().filter_map(next).collect();
        Self { lengths, heap, passed, position }
    }

    /// Returns the position of the next item.
    pub(super) fn at(&self) -> u64 {
        self.position
    }

    /// Returns the number of items of each queue before the position.
    pub(super) fn passed(&self) -> &[u64] {
        &self.passed
    }

    /// Returns the queue of the next item without passing it.
    pub(super) fn peek(&self) -> Option<usize> {
        self.heap.peek().map(|next| next.0.queue)
    }

    /// Passes the next item if it is of `queue`.
    pub(super) fn next_if(&mut self, queue: usize) -> bool {
        self.peek() == Some(queue) && self.next().is_some()
    }
}

impl Iterator for Labels {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let mut first = self.heap.peek_mut()?;
        let queue = first.0.queue;
        self.passed[queue] += 1;
        self.position += 1;
        if self.passed[queue] < self.lengths[queue] {
            first.0.numerator += 2;
        } else {
            PeekMut::pop(first);
        }
        Some(queue)
    }
}
