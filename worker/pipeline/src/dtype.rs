use std::fmt;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use shardfeed_tfrecord::example::DType;

/// Number of values of this shape.
pub(crate) fn items(shape: &[usize]) -> usize {
    shape.iter().product()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
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
    Bytes,
}

impl Dtype {
    /// Bytes of one value; 1 for byte strings.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 | Self::Bytes => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Int64 | Self::Float64 => 8,
        }
    }

    /// True for integer types; not for bool.
    pub(crate) fn is_integer(self) -> bool {
        use Dtype::{Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32};
        matches!(self, Uint8 | Int8 | Uint16 | Int16 | Uint32 | Int32 | Int64)
    }

    /// Name of the type in numpy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Uint16 => "uint16",
            Self::Int16 => "int16",
            Self::Uint32 => "uint32",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Bytes => "bytes",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<DType> for Dtype {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::Float32 => Self::Float32,
            DType::Int64 => Self::Int64,
            DType::Bytes => Self::Bytes,
        }
    }
}

pub(crate) trait ColumnNumber: bytemuck::Pod + Default + Send + Sync {
    const IS_FLOAT: bool;

    fn to_f64(self) -> f64;
    /// Exact for integers.
    fn to_i64(self) -> i64;
    /// Converts to the nearest value; integers are truncated towards zero and saturate.
    fn from_f64(value: f64) -> Self;
    /// Converts; integers wrap around.
    fn from_i64(value: i64) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl ColumnNumber for $type {
            const IS_FLOAT: bool = false;

            fn to_f64(self) -> f64 {
                self as f64
            }

            fn to_i64(self) -> i64 {
                self as i64
            }

            fn from_f64(value: f64) -> Self {
                value as Self
            }

            fn from_i64(value: i64) -> Self {
                value as Self
            }
        }
    )*};
}

integers!(u8, i8, u16, i16, u32, i32, i64);

macro_rules! floats {
    ($($type:ty, $to:expr, $from:expr, $from_i64:expr);*) => {$(
        impl ColumnNumber for $type {
            const IS_FLOAT: bool = true;

            fn to_f64(self) -> f64 {
                $to(self)
            }

            fn to_i64(self) -> i64 {
                self.to_f64() as i64
            }

            fn from_f64(value: f64) -> Self {
                $from(value)
            }

            fn from_i64(value: i64) -> Self {
                $from_i64(value)
            }
        }
    )*};
}

// Conversion through float32, as in TensorFlow.
floats!(
    f64, |x| x, |x| x, |x: i64| x as f64;
    f32, f64::from, |x: f64| x as f32, |x: i64| x as f32;
    f16, |x: f16| f64::from(x.to_f32()), |x: f64| f16::from_f32(x as f32), |x: i64| f16::from_f32(x as f32);
    bf16, |x: bf16| f64::from(x.to_f32()), |x: f64| bf16::from_f32(x as f32), |x: i64| bf16::from_f32(x as f32)
);

/// One byte, 0 or 1; any other value counts as true when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct Boolean(u8);

impl ColumnNumber for Boolean {
    const IS_FLOAT: bool = false;

    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.0 != 0))
    }

    fn to_i64(self) -> i64 {
        i64::from(self.0 != 0)
    }

    fn from_f64(value: f64) -> Self {
        Self(u8::from(value != 0.0))
    }

    fn from_i64(value: i64) -> Self {
        Self(u8::from(value != 0))
    }
}

/// Runs an expression with a type alias for the type of a [`Dtype`]. Byte strings are `u8`.
macro_rules! with_type {
    ($dtype:expr, $name:ident => $body:expr) => {
        $crate::dtype::with_type!(@each $dtype, $name, $body;
            Bool => $crate::dtype::Boolean,
            Uint8 | Bytes => u8,
            Int8 => i8,
            Uint16 => u16,
            Int16 => i16,
            Uint32 => u32,
            Int32 => i32,
            Int64 => i64,
            Float16 => half::f16,
            Bfloat16 => half::bf16,
            Float32 => f32,
            Float64 => f64)
    };
    (@each $dtype:expr, $name:ident, $body:expr; $($($variant:ident)|+ => $type:ty),+) => {
        match $dtype {
            $($($crate::dtype::Dtype::$variant)|+ => {
                type $name = $type;
                $body
            })+
        }
    };
}
pub(crate) use with_type;
