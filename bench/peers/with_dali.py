"""DALI with its CPU operators: its TFRecord reader, decoder and resizer. It checks no CRC."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import cases
import numpy as np
import nvidia.dali as dali
import nvidia.dali.tfrecord as tfrecord
from nvidia.dali import fn, pipeline_def, types

VERSION = dali.__version__

BESIDE: list[int] = []

PROCESSORS = len(os.sched_getaffinity(0))
NONE = {"string": "", "int64": 0, "float32": 0.0}


def prepare(contender: str, case: str, data: str, setting: str) -> None:
    pass


def pipeline(case: str, data: str, setting: str) -> dali.Pipeline:
    stored = cases.stored(case)
    kinds = {"string": tfrecord.string, "int64": tfrecord.int64, "float32": tfrecord.float32}
    features = {
        name: tfrecord.FixedLenFeature(shape or ((), [1])[kind != "string"], kinds[kind], NONE[kind])
        for name, (kind, shape) in stored.items()
    }

    @pipeline_def(
        batch_size=cases.CASES[case].batch, num_threads=PROCESSORS, device_id=None, prefetch_queue_depth=2
    )
    def made() -> tuple[Any, ...]:
        row = fn.readers.tfrecord(
            path=cases.files(data, case), index_path=cases.indexes(data, case), features=features,
            random_shuffle=False, dont_use_mmap=setting == "read", prefetch_queue_depth=2,
        )  # fmt: skip
        if cases.image_case(case):
            row["photo"] = photo(case, row["photo"])
        return tuple(row[name] for name in stored)

    return made()


def photo(case: str, encoded: Any) -> Any:
    accurate = {"device": "cpu", "output_type": types.RGB, "use_fast_idct": False}
    if case == "parts":
        image = fn.decoders.image_slice(
            encoded, start=list(cases.PLACE), shape=[cases.PART] * 2, axis_names="HW", **accurate
        )
    else:
        image = fn.decoders.image(encoded, **accurate)
    side = cases.SIDE
    return fn.resize(image, resize_x=side, resize_y=side, interp_type=types.INTERP_LINEAR, antialias=False)


def batches(case: str, data: str, setting: str, repeat: bool) -> Iterator[tuple[int, Any]]:
    made = pipeline(case, data, setting)
    made.build()
    rows, taken = cases.CASES[case].batch, 0
    names = tuple(cases.stored(case))
    records = sum(len(open(path).readlines()) for path in cases.indexes(data, case))
    for _ in range(2):
        made.schedule_run()
    while repeat or taken < records:
        # The output is valid until the next one is requested.
        yield rows, dict(zip(names, made.share_outputs(), strict=True))
        taken += rows
        made.release_outputs()
        made.schedule_run()


def columns(case: str, batch: Any) -> dict[str, Any] | None:
    if not cases.CASES[case].features:
        return None  # it always parses
    found = {}
    for name, (kind, shape) in cases.CASES[case].features.items():
        if kind == "string" and name != "photo":
            found[name] = [np.asarray(batch[name].at(row)).tobytes() for row in range(len(batch[name]))]
        else:
            values = batch[name].as_array()
            found[name] = values if shape or name == "photo" else values.reshape(-1)
    return found
