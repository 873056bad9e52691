//! Plans the kernels that change parts of a batch on the device. Needs no driver; the kernels
//! themselves are written by `kernels/make.py`.

/// Text of the kernels for the driver.
pub(crate) const PTX: &str = concat!(include_str!("../kernels/kernels.ptx"), "\0");

/// Maximum numbers of a part, exclusive: kernels count in 32 bits.
pub const NUMBERS_MAX: usize = 1 << 31;

/// Threads per block.
pub(crate) const BLOCK: u32 = 256;

/// Type of numbers; the discriminants are those that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Number {
    /// One byte; any value except 0 is true.
    Bool = 0,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Uint32,
    Int32,
    Int64,
    Float16,
    /// The upper half of a float32.
    Bfloat16,
    Float32,
    Float64,
}

impl Number {
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Int64 | Self::Float64 => 8,
        }
    }
}

/// Type in which a normalization is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    Float32,
    Float64,
}

impl Float {
    pub fn number(self) -> Number {
        match self {
            Self::Float32 => Number::Float32,
            Self::Float64 => Number::Float64,
        }
    }
}

/// One operation on each number of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Cast {
        to: Number,
    },
    /// `(x - mean) / std`. The index of a number's mean and deviation is its position modulo their
    /// count.
    Normalize {
        /// Values to subtract: one, or as many as `std` has.
        mean: Vec<f64>,
        /// Divisors: one, or as many as `mean` has.
        std: Vec<f64>,
        /// Type of the computation and of the result.
        float: Float,
    },
    /// `[rows, columns]` becomes `[columns, rows]`, in each of the consecutive images.
    Transpose {
        /// At least 1.
        rows: u32,
        /// At least 1.
        columns: u32,
    },
}

/// Changes to one part of each batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Index among the parts of [`crate::Device::prepare`].
    pub part: usize,
    from: Number,
    passes: Vec<Pass>,
}

/// One kernel on one part, which reads and writes each number once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pass {
    pub(crate) from: Number,
    pub(crate) to: Number,
    /// 1 and 1 if nothing is transposed.
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    is_cast: bool,
    pub(crate) normalize: Option<Normalization>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Normalization {
    pub(crate) float: Float,
    /// True if a number's position in the target counts, else that in the source.
    pub(crate) is_after: bool,
    pub(crate) channels: u32,
    /// All means, then all deviations, as bytes of `float`.
    pub(crate) table: Vec<u8>,
}

/// Kernel of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Move,
    Cast,
    Normalize32,
    Normalize64,
}

impl Kernel {
    pub(crate) const ALL: [Self; 4] =
        [Self::Move, Self::Cast, Self::Normalize32, Self::Normalize64];

    pub(crate) fn name(self) -> &'static std::ffi::CStr {
        match self {
            Self::Move => c"shardfeed_move",
            Self::Cast => c"shardfeed_cast",
            Self::Normalize32 => c"shardfeed_normalize_f32",
            Self::Normalize64 => c"shardfeed_normalize_f64",
        }
    }
}

impl Change {
    /// Plans the passes for a part.
    /// - `from`: type of the part's numbers.
    /// - `steps`: operations on them, in this order.
    pub fn new(part: usize, from: Number, steps: &[Step]) -> Self {
        let mut passes: Vec<Pass> = vec![];
        for step in steps {
            let from = passes.last().map_or(from, |pass| pass.to);
            if !passes.last_mut().is_some_and(|last| last.takes(step)) {
                let mut pass = Pass::new(from);
                let is_taken = pass.takes(step);
                debug_assert!(is_taken, "a pass that does nothing takes any step");
                passes.push(pass);
            }
        }
        Self { part, from, passes }
    }

    /// Type of the numbers before the changes.
    pub fn from(&self) -> Number {
        self.from
    }

    pub(crate) fn passes(&self) -> &[Pass] {
        &self.passes
    }
}

impl Pass {
    fn new(from: Number) -> Self {
        Self { from, to: from, rows: 1, columns: 1, is_cast: false, normalize: None }
    }

    fn is_moved(&self) -> bool {
        (self.rows, self.columns) != (1, 1)
    }

    /// Adds a step to this pass if one kernel can do all of it with bit-identical results.
    fn takes(&mut self, step: &Step) -> bool {
        match step {
            Step::Cast { to } => {
                if self.is_cast {
                    return false;
                }
                (self.to, self.is_cast) = (*to, true);
            }
            Step::Normalize { mean, std, float } => {
                // The kernel casts to its own type first: an earlier cast to that type is already
                // included.
                let is_prepared = !self.is_cast || self.to == float.number();
                if self.normalize.is_some() || !is_prepared {
                    return false;
                }
                let channels = mean.len().max(std.len());
                let of = |values: &[f64], at: usize| values[if values.len() == 1 { 0 } else { at }];
                let all = |values| (0..channels).map(move |at| of(values, at));
                let values = all(mean).chain(all(std));
                let table = match float {
                    Float::Float32 => values.flat_map(|v| (v as f32).to_ne_bytes()).collect(),
                    Float::Float64 => values.flat_map(f64::to_ne_bytes).collect(),
                };
                let (float, is_after, channels) = (*float, self.is_moved(), channels as u32);
                self.normalize = Some(Normalization { float, is_after, channels, table });
                (self.to, self.is_cast) = (float.number(), false);
            }
            Step::Transpose { rows, columns } => {
                if self.is_moved() {
                    return false;
                }
                (self.rows, self.columns) = (*rows, *columns);
            }
        }
        true
    }

    pub(crate) fn kernel(&self) -> Kernel {
        match &self.normalize {
            Some(Normalization { float: Float::Float32, .. }) => Kernel::Normalize32,
            Some(Normalization { float: Float::Float64, .. }) => Kernel::Normalize64,
            None if self.is_cast => Kernel::Cast,
            None => Kernel::Move,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalize(channels: usize) -> Step {
        let (mean, std) = (vec![0.5; channels], vec![0.25]);
        Step::Normalize { mean, std, float: Float::Float32 }
    }

    /// Types, kernel, whether it transposes, and the position that selects the channel, of each
    /// pass.
    fn passes(steps: &[Step]) -> Vec<(Number, Number, Kernel, bool, Option<bool>)> {
        let change = Change::new(0, Number::Uint8, steps);
        let of = |p: &Pass| {
            (p.from, p.to, p.kernel(), p.is_moved(), p.normalize.as_ref().map(|n| n.is_after))
        };
        change.passes().iter().map(of).collect()
    }

    const CHW: Step = Step::Transpose { rows: 6, columns: 3 };

    #[test]
    fn what_is_usual_is_one_kernel() {
        use Number::{Bfloat16, Float32, Uint8};
        let cast = |to| Step::Cast { to };
        let steps = [cast(Float32), normalize(3), CHW, cast(Bfloat16)];
        let one = (Uint8, Bfloat16, Kernel::Normalize32, true, Some(false));
        assert_eq!(passes(&steps), [one]);
        let steps = [CHW, normalize(1)];
        assert_eq!(passes(&steps), [(Uint8, Float32, Kernel::Normalize32, true, Some(true))]);
        assert_eq!(passes(&[CHW]), [(Uint8, Uint8, Kernel::Move, true, None)]);
        assert_eq!(passes(&[cast(Float32), CHW]), [(Uint8, Float32, Kernel::Cast, true, None)]);
    }

    #[test]
    fn what_rounds_twice_is_two_kernels() {
        use Number::{Float16, Float32, Int8, Uint8};
        let cast = |to| Step::Cast { to };
        let found = passes(&[cast(Int8), cast(Float32)]);
        let two =
            [(Uint8, Int8, Kernel::Cast, false, None), (Int8, Float32, Kernel::Cast, false, None)];
        assert_eq!(found, two);
        let found = passes(&[cast(Float16), normalize(1), normalize(1)]);
        let kernels: Vec<_> = found.iter().map(|pass| pass.2).collect();
        assert_eq!(kernels, [Kernel::Cast, Kernel::Normalize32, Kernel::Normalize32]);
        assert_eq!(passes(&[CHW, CHW]).len(), 2);
    }

    #[test]
    fn the_kernels_text_has_all_of_them() {
        for kernel in Kernel::ALL {
            let name = kernel.name().to_str().expect("it is ASCII");
            assert!(PTX.contains(&format!(".visible .entry {name}(\n")), "{name}");
        }
        assert!(PTX.ends_with("}\n\0"));
    }

    #[test]
    fn tables_are_in_the_type_that_is_computed_in() {
        let change = Change::new(0, Number::Uint8, &[normalize(2)]);
        let table = &change.passes()[0].normalize.as_ref().expect("it normalizes").table;
        let values: Vec<_> =
            table.as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
        assert_eq!(values, [0.5, 0.5, 0.25, 0.25]);
    }
}
