"""TFRecord input for training clusters: equal steps, exact resume, elastic world size.

`Loader` delivers the batches of one rank. `FixedLenFeature` and the other features describe the
content of a record, as in TensorFlow. `TFRecordWriter` and `read_records` write and read files;
`write_table` writes the tables for `operators.lookup`. `from_arrays`, `from_generator` and
`from_tfds` create a `Source` from other data, which `Loader` accepts in place of files and
features.
"""

import importlib
import types
from typing import TYPE_CHECKING

from shardfeed import operators
from shardfeed._native import DeviceArray, __version__, decoders
from shardfeed.batch import Batch
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
from shardfeed.records import (
    TFRecordWriter,
    encode_example,
    encode_sequence_example,
    read_records,
)
from shardfeed.sources import Source
from shardfeed.tables import Table, write_table
from shardfeed.tfds import from_tfds
from shardfeed.writing import write_dataset

__all__ = [
    "Batch",
    "BytesColumn",
    "ClusterError",
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
    "RaggedBytesColumn",
    "RaggedColumn",
    "RaggedFeature",
    "ShardChangedError",
    "ShardfeedError",
    "Skipped",
    "Source",
    "SparseColumn",
    "SparseFeature",
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
    "open_source",
    "operators",
    "read_records",
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
