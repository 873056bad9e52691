"""TFRecord input for training clusters: equal steps, exact resume, elastic world size.

`Loader` delivers the batches of one rank. `FixedLenFeature` and the other features describe the
content of a record, as in TensorFlow. `TFRecordWriter` and `read_records` write and read files;
`source` describes files and the columns that workers make of them, with a method for each operator;
`from_arrays`, `from_generator` and `from_tfds` return such a `Source` of other data, and `mix` mixes
sources by weight. `write_table` writes the tables for `Source.lookup`.
"""

import importlib
import types
from typing import TYPE_CHECKING

from shardfeed._native import DeviceArray, __version__, decoders
from shardfeed.batch import Batch, Parts
from shardfeed.column_specs import ColumnSpec
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn, SparseColumn
from shardfeed.description import open_source
from shardfeed.errors import (
    ClusterError,
    ConfigError,
    ConflictError,
    CorruptRecordError,
    DataError,
    DatasetNotFoundError,
    DeniedError,
    DeviceError,
    FeatureError,
    FencedError,
    JobCancelledError,
    JobIdentityError,
    ShardChangedError,
    ShardfeedError,
    SupersededError,
    StateError,
)
from shardfeed.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from shardfeed.ingest import from_arrays, from_generator
from shardfeed.loader import Epoch, Loader, Skipped
from shardfeed.mixture import Mixture, Stage, mix, weights_by_size
from shardfeed.records import (
    TFRecordWriter,
    encode_example,
    encode_sequence_example,
    read_records,
)
from shardfeed.sources import Source, source
from shardfeed.tables import Table, write_table
from shardfeed.tfds import from_tfds
from shardfeed.writing import write_dataset

__all__ = [
    "Batch",
    "BytesColumn",
    "ClusterError",
    "ColumnSpec",
    "ConfigError",
    "ConflictError",
    "CorruptRecordError",
    "DataError",
    "DatasetNotFoundError",
    "DeniedError",
    "DeviceArray",
    "DeviceError",
    "Epoch",
    "Feature",
    "FeatureError",
    "FencedError",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "JobCancelledError",
    "JobIdentityError",
    "Loader",
    "Mixture",
    "Parts",
    "RaggedBytesColumn",
    "RaggedColumn",
    "RaggedFeature",
    "ShardChangedError",
    "ShardfeedError",
    "Skipped",
    "Source",
    "SparseColumn",
    "SparseFeature",
    "Stage",
    "SupersededError",
    "TFRecordWriter",
    "Table",
    "StateError",
    "VarLenFeature",
    "__version__",
    "decoders",
    "encode_example",
    "encode_sequence_example",
    "from_arrays",
    "from_generator",
    "from_tfds",
    "mix",
    "open_source",
    "read_records",
    "source",
    "weights_by_size",
    "write_dataset",
    "write_table",
]


if TYPE_CHECKING:
    # These modules require their frameworks and are imported on first use.
    from shardfeed import grain as grain
    from shardfeed import huggingface as huggingface
    from shardfeed import jax as jax
    from shardfeed import keras as keras
    from shardfeed import lightning as lightning
    from shardfeed import torch as torch
else:

    def __getattr__(name: str) -> types.ModuleType:
        if name in ("grain", "huggingface", "jax", "keras", "lightning", "torch"):
            return importlib.import_module(f"shardfeed.{name}")
        raise AttributeError(f"module 'shardfeed' has no attribute {name!r}")
