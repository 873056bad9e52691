//! Weights of a mixture's sources as exact decimals, and the counts that they fix. Source:
//! docs/ORDER.md, section 13, Stages.

/// Bound of the sum of integer weights, so that twice a remainder and a weight fit into 128 bits.
const TOTAL_BOUND: u128 = 1 << 126;

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
    order.sort_by_key(|&source| (std::cmp::Reverse(shares[source].1), source));
    for source in order.into_iter().take(left as usize) {
        counts[source] += 1;
    }
    counts
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
    fn the_source_that_ends_first_or_last_gives_all_its_samples() {
        assert_eq!(exhausted(&[100, 90], &[1, 2], false), Some(vec![45, 90]));
        assert_eq!(exhausted(&[100, 90], &[1, 2], true), Some(vec![100, 200]));
        // 5 / 2 is rounded up, and no count is 0.
        assert_eq!(exhausted(&[5, 500, 500], &[20, 10, 1], false), Some(vec![5, 3, 1]));
        assert_eq!(exhausted(&[u64::MAX >> 1, 1], &[1, 10], false), Some(vec![1, 1]));
        assert_eq!(exhausted(&[u64::MAX >> 1, 1], &[1, 10], true), None);
    }
}
