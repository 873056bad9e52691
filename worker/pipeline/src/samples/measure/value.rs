//! Values of an expression: exact integers, IEEE float64 and byte strings.

use std::cmp::Ordering;
use std::fmt;

use shardfeed_plan::Digest;

use crate::operator::expression::{One, Operand, Two};

/// 2^63, the first number above all integers.
const INTEGERS_END: f64 = 9_223_372_036_854_775_808.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Integer(i64),
    Float(f64),
    Text(&'a [u8]),
}

impl Value<'_> {
    pub(super) fn integer_cost(self) -> Option<u64> {
        match self {
            Self::Integer(integer) => u64::try_from(integer).ok(),
            Self::Float(_) | Self::Text(_) => None,
        }
    }

    /// Returns a cost that is a finite float64: its bits, which have the order of their numbers.
    pub(super) fn float_cost(self) -> Option<u64> {
        // -0.0 counts as 0.0.
        let float = self.float() + 0.0;
        (float.is_finite() && float >= 0.0).then(|| float.to_bits())
    }

    /// Returns bytes that are equal for equal values of one expression; `None` for NaN.
    /// - `is_integer`: true if its values are integers.
    pub(super) fn key(self, is_integer: bool) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some([&b"t"[..], text].concat()),
            Self::Integer(integer) if is_integer => {
                Some([&b"i"[..], &integer.to_le_bytes()].concat())
            }
            number => {
                // -0.0 equals 0.0.
                let float = number.float() + 0.0;
                (!float.is_nan()).then(|| [&b"f"[..], &float.to_le_bytes()].concat())
            }
        }
    }

    /// Returns an integer from 0 to 2^63 - 1 that is the same for equal values; NaN for a float.
    /// Source: docs/OPERATORS.md, "Filter".
    fn hash(self) -> Self {
        let Some(bytes) = self.key(true).filter(|_| !matches!(self, Self::Float(_))) else {
            return exact(None);
        };
        let digest = Digest::of_parts([&bytes[..]]);
        let first = digest.as_bytes().first_chunk().expect("a digest has 32 bytes");
        Self::Integer(i64::from_le_bytes(*first) & i64::MAX)
    }

    /// Compares exactly; `None` with NaN.
    fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            (Self::Integer(a), Self::Float(b)) => against_float(*a, *b),
            (Self::Float(a), Self::Integer(b)) => against_float(*b, *a).map(Ordering::reverse),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Text(_), _) | (_, Self::Text(_)) => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Integer(integer) => integer as f64,
            Self::Float(float) => float,
            Self::Text(_) => f64::NAN,
        }
    }

    fn is_nan(self) -> bool {
        matches!(self, Self::Float(float) if float.is_nan())
    }
}

/// Exact for integers, otherwise as float64.
impl Operand for Value<'_> {
    fn truth(holds: bool) -> Self {
        Self::Integer(i64::from(holds))
    }

    /// True for any number except 0 and NaN.
    fn is_true(self) -> bool {
        match self {
            Self::Integer(integer) => integer != 0,
            Self::Float(float) => float != 0.0 && !float.is_nan(),
            Self::Text(_) => false,
        }
    }

    fn equals(self, other: Self) -> bool {
        self.order(&other) == Some(Ordering::Equal)
    }

    fn apply(self, one: One) -> Self {
        match (one, self) {
            (One::Not, value) => Self::truth(!value.is_true()),
            (One::Negate, Self::Integer(integer)) => exact(integer.checked_neg()),
            (One::Abs, Self::Integer(integer)) => exact(integer.checked_abs()),
            (One::Sign, Self::Integer(integer)) => Self::Integer(integer.signum()),
            (One::Floor, Self::Integer(_)) => self,
            (One::Hash, value) => value.hash(),
            (_, value) => Self::Float(value.float().apply(one)),
        }
    }

    fn combine(self, two: Two, other: Self) -> Self {
        let order = || self.order(&other);
        match (two, self, other) {
            (Two::Less, ..) => Self::truth(order() == Some(Ordering::Less)),
            (Two::LessOrEqual, ..) => Self::truth(order().is_some_and(Ordering::is_le)),
            (Two::Greater, ..) => Self::truth(order() == Some(Ordering::Greater)),
            (Two::GreaterOrEqual, ..) => Self::truth(order().is_some_and(Ordering::is_ge)),
            (Two::Equal, ..) => Self::truth(self.equals(other)),
            (Two::NotEqual, ..) => Self::truth(!self.equals(other)),
            (Two::And, ..) => Self::truth(self.is_true() && other.is_true()),
            (Two::Or, ..) => Self::truth(self.is_true() || other.is_true()),
            (Two::Min | Two::Max, nan, _) if nan.is_nan() => nan,
            (Two::Min | Two::Max, _, nan) if nan.is_nan() => nan,
            (Two::Min, ..) if order() == Some(Ordering::Greater) => other,
            (Two::Max, ..) if order() == Some(Ordering::Less) => other,
            (Two::Min | Two::Max, ..) => self,
            (Two::Divide, Self::Integer(_), Self::Integer(0)) => exact(None),
            (Two::Add, Self::Integer(a), Self::Integer(b)) => exact(a.checked_add(b)),
            (Two::Subtract, Self::Integer(a), Self::Integer(b)) => exact(a.checked_sub(b)),
            (Two::Multiply, Self::Integer(a), Self::Integer(b)) => exact(a.checked_mul(b)),
            (Two::Modulo, Self::Integer(a), Self::Integer(b)) => exact(modulo(a, b)),
            (Two::FloorDivide, Self::Integer(a), Self::Integer(b)) => exact(floor_divide(a, b)),
            (_, a, b) => Self::Float(a.float().combine(two, b.float())),
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(integer) => integer.fmt(f),
            Self::Float(float) => float.fmt(f),
            Self::Text(text) => String::from_utf8_lossy(text).fmt(f),
        }
    }
}

/// An integer, or NaN where there is none: after an overflow or a division by 0.
fn exact(integer: Option<i64>) -> Value<'static> {
    integer.map_or(Value::Float(f64::NAN), Value::Integer)
}

fn against_float(integer: i64, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    if float >= INTEGERS_END {
        return Some(Ordering::Less);
    }
    if float < -INTEGERS_END {
        return Some(Ordering::Greater);
    }
    let (whole, fraction) = (float.trunc() as i64, float.fract());
    Some(integer.cmp(&whole).then(0.0_f64.total_cmp(&(fraction + 0.0))))
}

/// The remainder with the sign of the divisor, as in Python; `None` for a divisor of 0.
fn modulo(a: i64, b: i64) -> Option<i64> {
    let rest = if b == -1 { 0 } else { a.checked_rem(b)? };
    Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
}

/// The quotient rounded down, as in Python; `None` for a divisor of 0, and for an overflow.
fn floor_divide(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    let is_above = a % b != 0 && (a < 0) != (b < 0);
    Some(if is_above { quotient - 1 } else { quotient })
}
