//! Operators on a sample's parsed columns; they keep the number of samples.
//!
//! They are declared in the job and are part of its identity. Each works on whole columns of some
//! rows, so that a column is one loop instead of one call per row. An operator is a type with a
//! [`Definition`], listed here.

mod cast;
mod channels;
mod columns;
mod compute;
mod decode_raw;
mod definition;
pub(crate) mod expression;
mod fault;
mod form;
mod gather;
mod image;
mod lookup;
mod memory;
mod one_hot;
mod pad;
mod padded_batch;
mod reshape;
mod table;
mod unpack_bits;

use serde::{Deserialize, Serialize};

use crate::dtype::Dtype;
use cast::Cast;
pub(crate) use cast::cast;
use channels::{Normalize, Scale};
use columns::{Concat, Constant, Rename};
use compute::Compute;
use decode_raw::DecodeRaw;
use gather::{Layout, Select, Slice, Transpose};
use image::{ColorJitter, Crop, DecodeImage, Flip, RandomCrop, RandomResizedCrop, Resize};
use one_hot::OneHot;
use pad::Pad;
use padded_batch::PaddedBatch;
use reshape::Reshape;
use unpack_bits::UnpackBits;

pub(crate) use definition::{Definition, Given, Inputs, OperatorWork, Strings};
pub(crate) use fault::Failed;
pub use fault::{OperatorError, OperatorFault};
pub use form::Dim;
pub(crate) use form::{Form, Input};
pub use gather::ImageLayout;
pub use image::Axis;
pub(crate) use image::Chain;
pub(crate) use lookup::{Finder, Lookup};
pub(crate) use memory::{ColumnBuffer, ColumnMemory};
pub(crate) use table::Side;
pub use table::{TableCause, TableFault, TableRef};
pub use unpack_bits::BitOrder;

/// One operator: a column made from one or more columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operator {
    /// Name of the output column; replaces a column of the same name.
    pub output: String,
    pub operation: Operation,
}

/// Defines [`Operation`] by the types of all operators.
macro_rules! operations {
    ($($name:ident),*) => {
        /// Operation of an operator. Shapes are those of one row.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Operation {
            $(#[doc = concat!("The operator `", stringify!($name), "`.")] $name($name),)*
        }

        impl Operation {
            pub(crate) fn definition(&self) -> &dyn Definition {
                match self {
                    $(Self::$name(operation) => operation,)*
                }
            }

            /// Rows of the table in docs/OPERATORS.md.
            pub fn rows() -> Vec<&'static str> {
                vec![$($name::row()),*]
            }
        }
    };
}

// An error about an unknown operator lists them in this order.
operations!(
    DecodeRaw,
    Cast,
    Reshape,
    UnpackBits,
    Scale,
    Normalize,
    Transpose,
    Slice,
    Select,
    OneHot,
    PaddedBatch,
    DecodeImage,
    Crop,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Flip,
    Layout,
    Lookup,
    Compute,
    Pad,
    Rename,
    Concat,
    Constant,
    ColorJitter
);

impl Operation {
    /// Version of the operation's behaviour; part of a job's identity.
    pub fn version(&self) -> u32 {
        self.definition().version()
    }

    /// Column that the operation only renames.
    pub(crate) fn renamed(&self) -> Option<&str> {
        if let Self::Rename(rename) = self { Some(&rename.input) } else { None }
    }

    /// Checks that an expression over samples may use its result: a function of the record, with the
    /// same bits on every processor, and without images.
    pub(crate) fn check_measured(&self) -> Result<(), String> {
        match self {
            Self::DecodeImage(_)
            | Self::Crop(_)
            | Self::RandomCrop(_)
            | Self::RandomResizedCrop(_)
            | Self::Resize(_)
            | Self::Flip(_)
            | Self::Layout(_)
            | Self::ColorJitter(_) => {
                Err("is made of images, which no expression takes".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn table(&self) -> Option<&TableRef> {
        if let Self::Lookup(lookup) = self { Some(&lookup.table) } else { None }
    }

    /// Lookup table of the operation, to change its path.
    pub(crate) fn table_mut(&mut self) -> Option<&mut TableRef> {
        if let Self::Lookup(lookup) = self { Some(&mut lookup.table) } else { None }
    }
}

/// Error of an operator that no device runs.
pub(crate) const NOT_ON_DEVICE: &str =
    "a device casts, normalizes and lays out; call others before on_device()";

impl Operator {
    /// Returns the operator as it is in a job's identity, without host-specific paths.
    #[must_use]
    pub fn for_identity(&self) -> Self {
        let mut same = self.clone();
        if let Some(table) = same.operation.table_mut() {
            table.path = None;
        }
        same
    }

    /// Returns type and shape of a result row of an operator that a device may run.
    ///
    /// Devices run a cast, a normalization or a layout.
    ///
    /// # Errors  The reason why it cannot be applied, on a device or at all.
    pub fn made_of(&self, dtype: Dtype, shape: &[usize]) -> Result<(Dtype, Vec<usize>), String> {
        let definition = self.operation.definition();
        let Some(form) = definition.device_form(&Form { dtype, shape: shape.to_vec() }) else {
            return Err(NOT_ON_DEVICE.to_owned());
        };
        if definition.inputs()?.names() != [self.output.as_str()] {
            let what = "a device's operator makes a column of itself; leave output out";
            return Err(what.into());
        }
        form.map(|Form { dtype, shape }| (dtype, shape))
    }
}
