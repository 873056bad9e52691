//! Operations on the values of expressions.

use super::{One, Two};

/// A value that an expression computes with: float64 in `compute`, and exact in a filter.
pub(crate) trait Operand: Copy {
    fn truth(holds: bool) -> Self;
    fn is_true(self) -> bool;
    fn equals(self, other: Self) -> bool;
    fn apply(self, one: One) -> Self;
    fn combine(self, two: Two, other: Self) -> Self;
}

impl Operand for f64 {
    fn truth(holds: bool) -> Self {
        Self::from(u8::from(holds))
    }

    /// True as in TensorFlow and numpy: any value except 0.
    fn is_true(self) -> bool {
        self != 0.0
    }

    fn equals(self, other: Self) -> bool {
        self == other
    }

    fn apply(self, one: One) -> Self {
        match one {
            One::Negate => -self,
            One::Not => Self::truth(!self.is_true()),
            One::Abs => self.abs(),
            // Unlike `signum`, returns 0 for 0 and NaN for NaN.
            One::Sign if self == 0.0 || self.is_nan() => self,
            One::Sign => self.signum(),
            One::Tanh => libm::tanh(self),
            One::Exp => libm::exp(self),
            One::Log => libm::log(self),
            One::Sqrt => self.sqrt(),
            One::Floor => self.floor(),
            One::Hash => unreachable!("float64 has no hash"),
        }
    }

    fn combine(self, two: Two, other: Self) -> Self {
        match two {
            Two::Add => self + other,
            Two::Subtract => self - other,
            Two::Multiply => self * other,
            Two::Divide => self / other,
            Two::Modulo => modulo(self, other),
            Two::FloorDivide => floor_divide(self, other),
            // NaN stays NaN, as in TensorFlow.
            Two::Min | Two::Max if self.is_nan() || other.is_nan() => Self::NAN,
            // Of equal numbers the first one: `f64::min` may return either of 0.0 and -0.0.
            Two::Min => {
                if self > other {
                    other
                } else {
                    self
                }
            }
            Two::Max => {
                if self < other {
                    other
                } else {
                    self
                }
            }
            Two::Less => Self::truth(self < other),
            Two::LessOrEqual => Self::truth(self <= other),
            Two::Greater => Self::truth(self > other),
            Two::GreaterOrEqual => Self::truth(self >= other),
            Two::Equal => Self::truth(self == other),
            Two::NotEqual => Self::truth(self != other),
            Two::And => Self::truth(self.is_true() && other.is_true()),
            Two::Or => Self::truth(self.is_true() || other.is_true()),
        }
    }
}

/// As Python's `%`, but NaN for a divisor of 0.
fn modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        0.0_f64.copysign(b)
    } else if (rest < 0.0) != (b < 0.0) {
        rest + b
    } else {
        rest
    }
}

/// As Python's `//`, but NaN for a divisor of 0.
fn floor_divide(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return f64::NAN;
    }
    let rest = a % b;
    let is_above = rest != 0.0 && (rest < 0.0) != (b < 0.0);
    let quotient = (a - rest) / b - if is_above { 1.0 } else { 0.0 };
    let floor = quotient.floor();
    if quotient - floor > 0.5 { floor + 1.0 } else { floor }
}
