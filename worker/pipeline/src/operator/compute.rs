//! Computes an expression for many rows at a time.

use super::expression::{Expression, Node, One, Two};

/// Rows per block: intermediate values stay in the processor's cache.
const ROWS: usize = 512;

/// Computes all rows in blocks.
/// - `input`: writes some rows of a column as float64.
/// - `output`: receives the results of some rows, in order.
pub(super) fn compute(
    expression: &Expression,
    rows: usize,
    input: impl Fn(usize, std::ops::Range<usize>, &mut [f64]),
    mut output: impl FnMut(std::ops::Range<usize>, &[f64]),
) {
    let mut stack: Vec<[f64; ROWS]> = vec![];
    for begin in (0..rows).step_by(ROWS) {
        let range = begin..rows.min(begin + ROWS);
        let count = range.len();
        let mut depth = 0;
        for node in expression.nodes() {
            if stack.len() <= depth {
                stack.push([0.0; ROWS]);
            }
            match node {
                Node::Number(number) => stack[depth][..count].fill(*number),
                Node::Name(name) => input(*name, range.clone(), &mut stack[depth][..count]),
                Node::One(one) => {
                    depth -= 1;
                    let values = &mut stack[depth][..count];
                    values.iter_mut().for_each(|value| *value = apply(*one, *value));
                }
                Node::Two(two) => {
                    depth -= 2;
                    let (first, second) = stack.split_at_mut(depth + 1);
                    let pairs = first[depth][..count].iter_mut().zip(&second[0][..count]);
                    pairs.for_each(|(a, b)| *a = combine(*two, *a, *b));
                }
                Node::Where => {
                    depth -= 3;
                    let (first, others) = stack.split_at_mut(depth + 1);
                    let chosen = others[0][..count].iter().zip(&others[1][..count]);
                    let rows = first[depth][..count].iter_mut().zip(chosen);
                    rows.for_each(|(if_true, (yes, no))| {
                        *if_true = if is_true(*if_true) { *yes } else { *no };
                    });
                }
            }
            depth += 1;
        }
        output(range, &stack[0][..count]);
    }
}

/// True as in TensorFlow and numpy: any value except 0.
fn is_true(value: f64) -> bool {
    value != 0.0
}

fn apply(one: One, x: f64) -> f64 {
    match one {
        One::Negate => -x,
        One::Not => f64::from(u8::from(!is_true(x))),
        One::Abs => x.abs(),
        // Unlike `signum`, returns 0 for 0 and NaN for NaN.
        One::Sign if x == 0.0 || x.is_nan() => x,
        One::Sign => x.signum(),
        One::Tanh => libm::tanh(x),
        One::Exp => libm::exp(x),
        One::Log => libm::log(x),
        One::Sqrt => x.sqrt(),
        One::Floor => x.floor(),
    }
}

fn combine(two: Two, a: f64, b: f64) -> f64 {
    let truth = |holds: bool| f64::from(u8::from(holds));
    match two {
        Two::Add => a + b,
        Two::Subtract => a - b,
        Two::Multiply => a * b,
        Two::Divide => a / b,
        // NaN stays NaN, as in TensorFlow.
        Two::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Two::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Two::Min => a.min(b),
        Two::Max => a.max(b),
        Two::Less => truth(a < b),
        Two::LessOrEqual => truth(a <= b),
        Two::Greater => truth(a > b),
        Two::GreaterOrEqual => truth(a >= b),
        Two::Equal => truth(a == b),
        Two::NotEqual => truth(a != b),
        Two::And => truth(is_true(a) && is_true(b)),
        Two::Or => truth(is_true(a) || is_true(b)),
    }
}
