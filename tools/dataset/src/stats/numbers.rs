//! Minimum, maximum and mean of numbers, exact when parts are merged.
//!
//! Files are read in parallel and their results are merged in any order. Sums are therefore exact:
//! the same files give the same figures, to the last digit, with any number of threads.

use std::cmp::{max_by, min_by};

/// Statistics of integers: values, lengths, counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Integers {
    range: Option<(i64, i64)>,
    count: u64,
    /// Holds 2^64 of the largest values.
    sum: i128,
}

const EXPONENTS: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Floats {
    range: Option<(f32, f32)>,
    finite: u64,
    not_finite: u64,
    /// Sum of the mantissas of each exponent: exact, as each has 24 bits.
    mantissas: Box<[i128; EXPONENTS]>,
}

impl Integers {
    pub(super) fn add(&mut self, value: i64) {
        self.merge(&Self { range: Some((value, value)), count: 1, sum: value.into() });
    }

    /// Adds a length or a count; a record has at most 2^30 bytes.
    pub(super) fn add_size(&mut self, size: usize) {
        self.add(i64::try_from(size).unwrap_or(i64::MAX));
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.range = match (self.range, other.range) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        self.count += other.count;
        self.sum += other.sum;
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn sum(&self) -> i128 {
        self.sum
    }

    /// Minimum and maximum; `None` without values.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        self.range
    }

    /// Mean; `None` without values.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }
}

impl Default for Floats {
    fn default() -> Self {
        Self { range: None, finite: 0, not_finite: 0, mantissas: Box::new([0; EXPONENTS]) }
    }
}

impl Floats {
    pub(super) fn add(&mut self, value: f32) {
        if !value.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.widen((value, value));
        self.finite += 1;
        let bits = value.to_bits();
        let exponent = (bits >> 23 & 0xff) as usize;
        // A subnormal number has the lowest exponent, and no leading 1.
        let leading = if exponent == 0 { 0 } else { 1 << 23 };
        let mantissa = i128::from(bits & 0x7f_ffff | leading);
        let signed = if value.is_sign_negative() { -mantissa } else { mantissa };
        self.mantissas[exponent.max(1)] += signed;
    }

    fn widen(&mut self, (least, greatest): (f32, f32)) {
        let (min, max) = self.range.unwrap_or((least, greatest));
        // -0 is below 0.
        let (min, max) =
            (min_by(min, least, f32::total_cmp), max_by(max, greatest, f32::total_cmp));
        self.range = Some((min, max));
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if let Some(range) = other.range {
            self.widen(range);
        }
        self.finite += other.finite;
        self.not_finite += other.not_finite;
        for (sum, other) in self.mantissas.iter_mut().zip(other.mantissas.iter()) {
            *sum += other;
        }
    }

    pub(super) fn not_finite(&self) -> u64 {
        self.not_finite
    }

    /// Minimum and maximum finite value; `None` without any.
    pub(super) fn range(&self) -> Option<(f32, f32)> {
        self.range
    }

    /// Mean of the finite values; `None` without any.
    pub(super) fn mean(&self) -> Option<f64> {
        let scaled = self.mantissas.iter().enumerate().map(|(exponent, &sum)| {
            // An exponent e means mantissa x 2^(e - 150).
            sum as f64 * 2_f64.powi(exponent as i32 - 150)
        });
        (self.finite > 0).then(|| scaled.sum::<f64>() / self.finite as f64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn floats(values: &[f32]) -> Floats {
        let mut floats = Floats::default();
        values.iter().for_each(|&value| floats.add(value));
        floats
    }

    #[test]
    fn extremes_are_exact() {
        let mut integers = Integers::default();
        assert_eq!((integers.range(), integers.mean()), (None, None));
        for _ in 0..3 {
            integers.add(i64::MAX);
            integers.add(i64::MIN);
        }
        assert_eq!(integers.range(), Some((i64::MIN, i64::MAX)));
        assert_eq!((integers.sum(), integers.mean()), (-3, Some(-0.5)));
        let tiny = f32::from_bits(1);
        let found = floats(&[f32::MAX, -f32::MAX, tiny, f32::NAN, f32::INFINITY]);
        assert_eq!(found.range(), Some((-f32::MAX, f32::MAX)));
        assert_eq!(found.mean(), Some(f64::from(tiny) / 3.0));
        assert_eq!(found.not_finite(), 2);
        let zeros = floats(&[0.0, -0.0]).range().unwrap();
        assert_eq!((zeros.0.to_bits(), zeros.1.to_bits()), ((-0.0_f32).to_bits(), 0));
    }

    proptest! {
        #[test]
        fn parts_in_any_order_are_the_whole(values: Vec<f32>, cut in 0..100_usize) {
            let cut = cut.min(values.len());
            let (first, second) = values.split_at(cut);
            let mut merged = floats(second);
            merged.merge(&floats(first));
            prop_assert_eq!(&merged, &floats(&values));
            let mut integers = [Integers::default(), Integers::default(), Integers::default()];
            for (index, value) in values.iter().enumerate() {
                let value = i64::from(value.to_bits());
                integers[0].add(value);
                integers[if index < cut { 1 } else { 2 }].add(value);
            }
            let [whole, first, mut second] = integers;
            second.merge(&first);
            prop_assert_eq!(second, whole);
        }

        #[test]
        fn the_mean_is_that_of_the_values(values in prop::collection::vec(-1e6_f32..1e6, 1..50)) {
            let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
            let mean = floats(&values).mean().unwrap();
            prop_assert!((mean - sum / values.len() as f64).abs() <= 1e-9 * 1e6);
        }
    }
}
