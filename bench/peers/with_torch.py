"""torch's DataLoader over the package `tfrecord`, and WebDataset over tar files. Neither checks a CRC."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import cases
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

VERSION = torch.__version__

BESIDE: list[int] = []

PROCESSORS = len(os.sched_getaffinity(0))
KINDS = {"string": "byte", "int64": "int", "float32": "float"}
_contender = ""


def prepare(contender: str, case: str, data: str, setting: str) -> None:
    global _contender, VERSION
    _contender = contender
    torch.set_num_threads(1)
    if contender == "webdataset":
        import webdataset

        VERSION = webdataset.__version__
    else:
        import tfrecord.reader  # noqa: F401  (importing is not measured)
    if setting == "torchvision":
        import torchvision.io  # noqa: F401
    elif setting == "opencv":
        import cv2
        import simplejpeg  # noqa: F401

        cv2.setNumThreads(0)


def photo(setting: str, case: str, encoded: bytes) -> Any:
    """Returns height x width x channels, as all contenders do."""
    top, left = cases.PLACE
    if setting == "torchvision":
        from torchvision.io import ImageReadMode, decode_jpeg
        from torchvision.transforms.v2 import functional

        image = decode_jpeg(torch.frombuffer(bytearray(encoded), dtype=torch.uint8), ImageReadMode.RGB)
        if case == "parts":
            image = image[:, top : top + cases.PART, left : left + cases.PART]
        image = functional.resize(image, [cases.SIDE, cases.SIDE], antialias=False)
        return image.permute(1, 2, 0).contiguous()
    import cv2
    import simplejpeg

    array = simplejpeg.decode_jpeg(encoded, "RGB")
    if case == "parts":
        array = array[top : top + cases.PART, left : left + cases.PART]
    return torch.from_numpy(cv2.resize(array, (cases.SIDE, cases.SIDE), interpolation=cv2.INTER_LINEAR))


class Records(IterableDataset):  # type: ignore[misc]
    """Iterates over the records of a worker's part of the files."""

    def __init__(self, case: str, data: str, setting: str, repeat: bool) -> None:
        self.case, self.setting, self.repeat = case, setting, repeat
        self.files = cases.files(data, case)

    def __iter__(self) -> Iterator[Any]:
        from tfrecord.reader import tfrecord_iterator, tfrecord_loader

        worker = get_worker_info()
        files = self.files[worker.id :: worker.num_workers] if worker else self.files
        features = cases.CASES[self.case].features
        kinds = {name: KINDS[kind] for name, (kind, _) in features.items()}
        while True:
            for file in files:
                if not features:
                    yield from (bytes(record) for record in tfrecord_iterator(file))
                    continue
                for row in tfrecord_loader(file, None, kinds):
                    yield self.finish(row)
            if not self.repeat:
                return

    def finish(self, row: dict[str, Any]) -> dict[str, Any]:
        for name, (kind, shape) in cases.CASES[self.case].features.items():
            if name == "photo":
                row[name] = photo(self.setting, self.case, bytes(row[name]))
            elif kind == "string":
                row[name] = bytes(row[name])
            elif not shape:
                row[name] = row[name][0]
        return row


def collate(rows: list[Any]) -> Any:
    return default_collate(rows) if isinstance(rows[0], dict) else rows


def over_tars(case: str, data: str, setting: str, repeat: bool) -> Any:
    import webdataset

    tars = cases.tars(data, case)
    made = webdataset.WebDataset(tars, shardshuffle=False, nodesplitter=None, empty_check=False)
    made = made.to_tuple("jpg", "cls")
    finish = bytes if not cases.image_case(case) else lambda encoded: photo(setting, case, encoded)
    made = made.map_tuple(finish, int)
    if repeat:
        made = made.repeat()
    return made.batched(cases.CASES[case].batch, collation_fn=collate_pairs, partial=False)


def collate_pairs(rows: list[tuple[Any, int]]) -> dict[str, Any]:
    photos, labels = zip(*rows, strict=True)
    stacked = torch.stack(photos) if isinstance(photos[0], torch.Tensor) else list(photos)
    return {"photo": stacked, "label": torch.tensor(labels)}


def batches(case: str, data: str, setting: str, repeat: bool) -> Iterator[tuple[int, Any]]:
    workers = 0 if setting == "in_process" else PROCESSORS
    ahead = 2 if workers else None
    rows = cases.CASES[case].batch
    if _contender == "webdataset":
        import webdataset

        made = over_tars(case, data, setting, repeat)
        loader = webdataset.WebLoader(made, batch_size=None, num_workers=workers, prefetch_factor=ahead)
    else:
        made = Records(case, data, setting, repeat)
        loader = DataLoader(
            made, batch_size=rows, num_workers=workers, prefetch_factor=ahead, drop_last=True, collate_fn=collate
        )
    for batch in loader:
        yield rows, batch


def columns(case: str, batch: Any) -> dict[str, Any] | None:
    if not cases.CASES[case].features:
        return {"record": batch} if isinstance(batch, list) else None
    found = {}
    for name, values in batch.items():
        found[name] = values if isinstance(values, list) else np.asarray(values)
    return found
