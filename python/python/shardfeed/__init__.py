"""TFRecord input for training clusters: equal steps, exact resume, elastic world size.

A `Loader` gives one rank its batches; `FixedLenFeature` and its siblings say what is in a record, with TensorFlow's meaning; `TFRecordWriter` and `read_records` write and read files.
"""

from shardfeed import operators
from shardfeed._native import __version__
from shardfeed.batch import Batch
from shardfeed.columns import BytesColumn, RaggedBytesColumn, RaggedColumn, SparseColumn
from shardfeed.errors import (
    CacheError,
    ClusterError,
    ConfigError,
    ConflictError,
    CorruptRecordError,
    DataError,
    DatasetNotFoundError,
    FeatureError,
    FencedError,
    JobIdentityError,
    ShardChangedError,
    ShardfeedError,
    SupersededError,
    TokenError,
)
from shardfeed.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from shardfeed.loader import Loader, Skipped
from shardfeed.records import (
    TFRecordWriter,
    encode_example,
    encode_sequence_example,
    read_records,
)

__all__ = [
    "Batch",
    "BytesColumn",
    "CacheError",
    "ClusterError",
    "ConfigError",
    "ConflictError",
    "CorruptRecordError",
    "DataError",
    "DatasetNotFoundError",
    "FeatureError",
    "FencedError",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "JobIdentityError",
    "Loader",
    "RaggedBytesColumn",
    "RaggedColumn",
    "RaggedFeature",
    "ShardChangedError",
    "ShardfeedError",
    "Skipped",
    "SparseColumn",
    "SparseFeature",
    "SupersededError",
    "TFRecordWriter",
    "TokenError",
    "VarLenFeature",
    "__version__",
    "encode_example",
    "encode_sequence_example",
    "operators",
    "read_records",
]
