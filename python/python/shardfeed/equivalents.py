"""Methods of a tf.data.Dataset that a source does not have, and what takes their place."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

#: Methods of a tf.data.Dataset, and their equivalents here.
EQUIVALENTS = {
    "apply": "operators are methods of a source (docs/OPERATORS.md)",
    "batch": "use Loader(source, batch_size=...), and tail= for the incomplete last step",
    "bucket_by_sequence_length": 'source.balance("len(tokens)") puts samples of similar length into a step of all ranks',
    "cache": "Loader(source, cache_bytes=...) keeps data read from object stores on this host's disk; local files are "
    "cached by the system",
    "concatenate": "pass the files of all of them to one source: sf.source([*files, *more])",
    "enumerate": "batch.provenance names the record of each row",
    "flat_map": "source.unbatch(columns) makes a sample of each row of columns",
    "group_by_window": 'source.balance("len(tokens)") puts samples of similar length into a step of all ranks',
    "ignore_errors": 'Loader(source, corrupt="skip-record") replaces damaged records, and counts them',
    "interleave": "use Loader(source, interleave=..., block_length=...)",
    "list_files": 'sf.source("train-*.tfrecord", features) takes patterns',
    "map": "operators are methods of a source, such as cast, compute and decode_image (docs/OPERATORS.md); call Python "
    "functions on the batches of the loop",
    "prefetch": "a loader reads ahead by itself; Loader(source, prefetch=...) bounds it",
    "sample_from_datasets": 'sf.mix({"a": (a, 0.7), "b": (b, 0.3)}, epoch=...) mixes sources by weight',
    "repeat": "iterate over the epochs of a loader: for epoch in loader.epochs(n)",
    "shard": "each rank makes its own Loader(source, rank=..., world_size=...); a launcher's values are found by "
    "themselves",
    "shuffle": "use Loader(source, shuffle=True, shuffle_window=..., seed=...)",
    "skip": "a loader continues from a state: Loader(source, resume=state); loader.skip(steps) leaves steps out",
    "take": "use Loader(source, limit=...) for the first samples of the order, or break out of the loop",
    "zip": "source.lookup(column, table) adds the columns of a table of sf.write_table by key",
}


def no_method(name: str, public: Sequence[str]) -> str:
    """Returns the message for an attribute that a source does not have; `public` are those that it has."""
    if name in EQUIVALENTS:
        return f"Source has no {name}(): {EQUIVALENTS[name]}"
    close = [] if name.startswith("_") else difflib.get_close_matches(name, public, 1, 0.5)
    return f"Source has no attribute {name!r}{f'; did you mean {close[0]}?' if close else ''}"
