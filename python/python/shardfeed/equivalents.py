"""Methods of a tf.data.Dataset that a source does not have, and what takes their place."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

#: Methods of a tf.data.Dataset, and their equivalents here.
EQUIVALENTS = {
    "apply": "operators are methods of a source (docs/OPERATORS.md)",
    "as_numpy_iterator": "iterate over a loader: batches are dicts of numpy arrays",
    "batch": "use Loader(source, batch_size=...), and tail= for the incomplete last step",
    "bucket_by_sequence_length": 'source.balance("len(tokens)") puts samples of similar length into a step of all ranks',
    "cache": "Loader(source, cache_bytes=...) keeps data read from object stores on this host's disk; local files are "
    "cached by the system",
    "cardinality": "source.count() is the number of samples, len(loader) that of steps",
    "choose_from_datasets": 'sf.mix({"a": (a, 0.7), "b": (b, 0.3)}, epoch=...) mixes sources by weight',
    "concatenate": "pass the files of all of them to one source: sf.source([*files, *more])",
    "counter": "batch.epoch and batch.step number the batches of the loop",
    "element_spec": "source.columns has the kind, type and shape of each column",
    "enumerate": "batch.provenance names the record of each row",
    "fingerprint": "loader.plan_digest is the digest of an order; a state is accepted only for the same samples",
    "flat_map": "source.unbatch(columns) makes a sample of each row of columns",
    "from_generator": "sf.from_generator(samples, folder) writes files and returns their source",
    "from_tensor_slices": "sf.from_arrays(columns, folder) writes files and returns their source",
    "from_tensors": "sf.from_arrays(columns, folder) writes files and returns their source",
    "get_single_element": "use next(iter(Loader(source, batch_size=1)))",
    "group_by_window": 'source.balance("len(tokens)") puts samples of similar length into a step of all ranks',
    "ignore_errors": 'Loader(source, corrupt="skip-record") replaces damaged records, and counts them',
    "interleave": "use Loader(source, interleave=..., block_length=...)",
    "list_files": 'sf.source("train-*.tfrecord", features) takes patterns',
    "load": "sf.open_source(folder) opens what sf.from_arrays or sf.from_generator wrote",
    "map": "operators are methods of a source, such as cast, compute and decode_image (docs/OPERATORS.md); "
    "Loader(source, transform=fn) calls a Python function for each batch",
    "options": "settings are options of Loader(source, ...), and chosen by measurements without them (docs/PERFORMANCE.md)",
    "prefetch": "a loader reads ahead by itself; Loader(source, prefetch=...) bounds it",
    "ragged_batch": "a VarLenFeature or RaggedFeature is a ragged column of each batch",
    "random": "random operators such as random_crop and flip draw by Loader(source, seed=...)",
    "range": "sf.from_arrays(columns, folder) writes files and returns their source",
    "rebatch": "use Loader(source, batch_size=...); a state resumes at another one",
    "reduce": "iterate over the batches of a loader, or source.count() for the number of samples",
    "rejection_resample": 'source.filter("label == 0") makes a source of a class, and sf.mix(...) mixes such sources by weight',
    "repeat": "iterate over the epochs of a loader: for epoch in loader.epochs(n)",
    "sample_from_datasets": 'sf.mix({"a": (a, 0.7), "b": (b, 0.3)}, epoch=...) mixes sources by weight',
    "save": "sf.write_dataset(samples, folder) writes samples to files",
    "scan": "samples are made independently of each other; keep a state in the loop over the batches",
    "shard": "each rank makes its own Loader(source, rank=..., world_size=...); a launcher's values are found by "
    "themselves",
    "shuffle": "use Loader(source, shuffle=True, shuffle_window=..., seed=...)",
    "skip": "a loader continues from a state: Loader(source, resume=state); loader.skip(steps) leaves steps out",
    "snapshot": "sf.write_dataset(samples, folder) writes samples to files; operators run whenever they are read",
    "sparse_batch": "a SparseFeature is a sparse column of each batch",
    "take": "use Loader(source, limit=...) for the first samples of the order, or break out of the loop",
    "take_while": "source.filter(expression) leaves out samples; or break out of the loop",
    "unique": "samples are made independently of each other; write files without repeated ones, with sf.write_dataset",
    "with_options": "settings are options of Loader(source, ...), and chosen by measurements without them (docs/PERFORMANCE.md)",
    "zip": "source.lookup(column, table) adds the columns of a table of sf.write_table by key",
}


def no_method(name: str, public: Sequence[str], kind: str = "Source") -> str:
    """Returns the message for an attribute that a `Source` or `Mixture` does not have.

    - `public`: attributes that it has.
    """
    if name in EQUIVALENTS:
        return f"{kind} has no {name}(): {EQUIVALENTS[name]}".replace("Loader(source", f"Loader({kind.lower()}")
    close = [] if name.startswith("_") else difflib.get_close_matches(name, public, 1, 0.5)
    return f"{kind} has no attribute {name!r}{f'; did you mean {close[0]}?' if close else ''}"
