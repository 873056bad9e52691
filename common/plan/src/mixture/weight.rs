//! Weights of a mixture's sources as exact decimals, and the counts that they fix. Source:
//! docs/ORDER.md, section 13, Stages.

use std::cmp::Reverse;

/// Bound of the sum of integer weights, so that twice a remainder and a weight fit into 128 bits.
const TOTAL_BOUND: u128 = 1 << 126;

/// Bound of the lengths that `length_min` checks, times sources: less than a second.
const CHECKS_MAX: u128 = 1 << 26;

/// Maximum characters of a weight.
const WEIGHT_BYTES_MAX: usize = 40;

/// A positive decimal: `digits * 10^exponent`, the digits without trailing zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: u128,
    exponent: i128,
}

impl Decimal {
    /// Returns the exact value of a text; `None` if it is not a positive decimal.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() > WEIGHT_BYTES_MAX {
            return None;
        }
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i128>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let stripped = digits.trim_end_matches('0');
        if stripped.is_empty() {
            return None;
        }
        let zeros = digits.len() - stripped.len();
        // More digits than a u128 has are too many for any sum, too.
        let digits = stripped.parse().unwrap_or(u128::MAX);
        Some(Self { digits, exponent: exponent + zeros as i128 - fraction.len() as i128 })
    }
}

/// Returns the smallest integers in proportion to the weights, by powers of ten; `None` if their
/// sum is too large.
pub(super) fn integers(weights: &[Decimal]) -> Option<Vec<u128>> {
    let least = weights.iter().map(|weight| weight.exponent).min()?;
    let mut total = 0_u128;
    let integer = |weight: &Decimal| {
        let power = u32::try_from(weight.exponent - least).ok()?;
        let integer = 10_u128.checked_pow(power)?.checked_mul(weight.digits)?;
        total = total.checked_add(integer).filter(|total| *total < TOTAL_BOUND)?;
        Some(integer)
    };
    weights.iter().map(integer).collect()
}

/// Divides `samples` in proportion to weights by the largest remainders; some counts may be 0.
pub(super) fn largest_remainders(samples: u64, weights: &[u128]) -> Vec<u64> {
    let total = weights.iter().sum();
    let shares = weights.iter().map(|weight| divided(samples, *weight, total));
    let shares: Vec<_> = shares.map(|share| share.expect("at most `samples`")).collect();
    let mut counts: Vec<u64> = shares.iter().map(|share| share.0 as u64).collect();
    let left = samples - counts.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&source| (Reverse(shares[source].1), source));
    for source in order.into_iter().take(left as usize) {
        counts[source] += 1;
    }
    counts
}

/// Returns the least length from which on the largest remainders leave no count 0, above `without`,
/// a length that leaves one. If it is far above, an upper bound of it.
pub(super) fn length_min(without: u64, weights: &[u128]) -> u128 {
    let (total, sources): (u128, u128) = (weights.iter().sum(), weights.len() as u128);
    // If this source has a sample, all have.
    let last = (0..weights.len()).min_by_key(|&source| (weights[source], Reverse(source)));
    let last = last.expect("checked: not empty");
    // It has none if the k samples left go to k others, whose remainders are at least its own, r.
    // All remainders are k * total together, so r is at most k / (k + 1) of the total.
    let most = (total - total / sources) / weights[last];
    let Ok(most) = u64::try_from(most) else { return most + 1 };
    if u128::from(most.saturating_sub(without)) * sources > CHECKS_MAX {
        return u128::from(most) + 1;
    }
    let shares = weights.iter().map(|weight| divided(most, *weight, total));
    let shares: Vec<_> = shares.map(|share| share.expect("at most `most`")).collect();
    let mut left = most - shares.iter().map(|share| share.0 as u64).sum::<u64>();
    let mut rests: Vec<u128> = shares.into_iter().map(|share| share.1).collect();
    for samples in (without + 1..=most).rev() {
        let order = |source: usize| (Reverse(rests[source]), source);
        let before = (0..rests.len()).filter(|source| order(*source) < order(last)).count();
        if before as u64 >= left {
            return u128::from(samples) + 1;
        }
        left -= 1;
        for (rest, weight) in rests.iter_mut().zip(weights) {
            if *rest < *weight {
                *rest += total;
                left += 1;
            }
            *rest -= weight;
        }
    }
    u128::from(without) + 1
}

/// Returns counts in proportion to weights, at least 1 each, of which one source has all its
/// `samples`: the one that ends first, or last. `None` if a count is beyond 64 bits.
pub(super) fn exhausted(samples: &[u64], weights: &[u128], is_last: bool) -> Option<Vec<u64>> {
    let sources = 0..samples.len();
    // samples / weight of two sources, multiplied by both weights.
    let order = |a: &usize, b: &usize| {
        product(samples[*a], weights[*b]).cmp(&product(samples[*b], weights[*a]))
    };
    // Of equal ones any gives the same counts.
    let whole = if is_last { sources.max_by(order) } else { sources.min_by(order) }?;
    let count = |weight: &u128| {
        let (quotient, rest) = divided(samples[whole], *weight, weights[whole])?;
        let rounded = quotient + u128::from(2 * rest >= weights[whole]);
        u64::try_from(rounded.max(1)).ok()
    };
    weights.iter().map(count).collect()
}

/// Returns the 192 bits of a product as (high 128 bits, low 64 bits).
fn product(samples: u64, weight: u128) -> (u128, u64) {
    let samples = u128::from(samples);
    let low = samples * u128::from(weight as u64);
    (samples * (weight >> 64) + (low >> 64), low as u64)
}

/// Returns quotient and remainder of `samples * weight / total`, all weights below the bound; `None`
/// if the quotient is beyond 128 bits.
fn divided(samples: u64, weight: u128, total: u128) -> Option<(u128, u128)> {
    let (whole, part) = (weight / total, weight % total);
    let (mut quotient, mut rest) = (0_u128, 0_u128);
    // Long division: the product may have 190 bits.
    for bit in (0..u64::BITS).rev() {
        rest = 2 * rest + if samples >> bit & 1 == 1 { part } else { 0 };
        quotient = 2 * quotient + rest / total;
        rest %= total;
    }
    let quotient = u128::from(samples).checked_mul(whole)?.checked_add(quotient)?;
    Some((quotient, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(texts: &[&str]) -> Option<Vec<u128>> {
        let parsed = texts.iter().map(|text| Decimal::parse(text));
        integers(&parsed.collect::<Option<Vec<_>>>()?)
    }

    #[test]
    fn a_weight_means_the_decimal_as_it_is_written() {
        assert_eq!(weights(&["0.7", "0.30", ".05", "1."]), Some(vec![70, 30, 5, 100]));
        assert_eq!(weights(&["1e-3", "2.5E+1", "70"]), Some(vec![1, 25_000, 70_000]));
        assert_eq!(weights(&["1e1000"]), Some(vec![1]));
        for text in
            ["", ".", "0", "0.0", "-1", "+1", "1e", "e5", "1.2.3", "nan", "inf", "1,5", " 1"]
        {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        assert_eq!(Decimal::parse(&"1".repeat(41)), None);
        assert_eq!(weights(&[&"9".repeat(40)]), None);
        assert_eq!(weights(&["1", "1e38"]), None);
        assert_eq!(weights(&["1", "1e1000"]), None);
        assert_eq!(weights(&["1", "8e37"]), Some(vec![1, 80 * 10_u128.pow(36)]));
    }

    #[test]
    fn remainders_go_to_the_largest_then_to_the_first() {
        assert_eq!(largest_remainders(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(largest_remainders(10, &[70, 25, 5]), [7, 3, 0]);
        // floor(7 * 9/10) = 6, remainders 3 and 7 of 10.
        assert_eq!(largest_remainders(7, &[9, 1]), [6, 1]);
        let large = [10_u128.pow(37), 3 * 10_u128.pow(37)];
        assert_eq!(largest_remainders((1 << 63) - 1, &large), [1 << 61, (3 << 61) - 1]);
    }

    #[test]
    fn the_least_length_that_suffices_is_that_of_a_search() {
        let has_none =
            |samples, weights: &[u128]| largest_remainders(samples, weights).contains(&0);
        let mut state = 1_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        let mut shorter = 0;
        for _ in 0..2_000 {
            let sources = 1 + below(6);
            let largest = [3, 30, 300][below(3) as usize];
            let weights: Vec<u128> = (0..sources).map(|_| u128::from(1 + below(largest))).collect();
            let enough = weights.iter().sum::<u128>().div_ceil(*weights.iter().min().unwrap());
            let enough = u64::try_from(enough).unwrap();
            let invalid: Vec<u64> = (1..enough).filter(|&n| has_none(n, &weights)).collect();
            for &without in &invalid {
                let least = u128::from(invalid.last().unwrap() + 1);
                assert_eq!(length_min(without, &weights), least, "{without} {weights:?}");
                shorter += usize::from(least < u128::from(enough));
            }
        }
        assert!(shorter > 1_000, "{shorter}");
        assert_eq!(length_min(100, &[999, 1]), 501);
        assert_eq!(length_min(100, &[1, 999]), 500);
        // Too far above for a search.
        assert_eq!(length_min(1, &[10_u128.pow(15) - 1, 1]), 10_u128.pow(15) / 2 + 1);
        assert_eq!(length_min(1, &[10_u128.pow(30), 1]), 10_u128.pow(30) / 2 + 2);
    }

    #[test]
    fn the_source_that_ends_first_or_last_gives_all_its_samples() {
        assert_eq!(exhausted(&[100, 90], &[1, 2], false), Some(vec![45, 90]));
        assert_eq!(exhausted(&[100, 90], &[1, 2], true), Some(vec![100, 200]));
        // 5 / 2 is rounded up, and no count is 0.
        assert_eq!(exhausted(&[5, 500, 500], &[20, 10, 1], false), Some(vec![5, 3, 1]));
        assert_eq!(exhausted(&[u64::MAX >> 1, 1], &[1, 10], false), Some(vec![1, 1]));
        assert_eq!(exhausted(&[u64::MAX >> 1, 1], &[1, 10], true), None);
    }
}
