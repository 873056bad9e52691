"""Writes the files of all cases, and copies for other loaders. Runs with our package.

    python bench/peers/data.py FOLDER --photos FOLDER [--scale 1.0] [--only CASES]

Existing files are kept if they were written with the same parameters.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import struct
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cases import CASES, FILES

import shardfeed as sf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/chess"))
import boards  # noqa: E402

#: Increased when the data change.
VERSION = 1


def records(case: str, count: int, photos: list[bytes]) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    if case == "boards":
        yield from boards.positions(count)
        return
    for number in range(count):
        if case == "raw_large":
            yield {"photo": rng.bytes(112_000), "label": number}
        elif case == "small":
            yield {"board": rng.bytes(194), "label": number}
        elif case == "tokens":
            tokens = rng.integers(0, 50_000, (2, 2048))
            yield {"inputs": tokens[0], "targets": tokens[1]}
        elif case == "floats":
            yield {"x": rng.random(1024, dtype=np.float32), "label": number}
        elif case == "photos":
            yield {"photo": photos[number % len(photos)], "label": number}


def write(folder: Path, case: str, count: int, photos: list[bytes]) -> None:
    writers = [sf.TFRecordWriter(folder / f"{case}-{number}.tfrecord") for number in range(FILES)]
    tars: list[tarfile.TarFile] = []
    if case in ("raw_large", "photos"):
        tars = [tarfile.open(folder / f"{case}-{number}.tar", "w") for number in range(FILES)]
    for number, record in enumerate(records(case, count, photos)):
        writers[number % FILES].write(record)
        if tars:
            member(tars[number % FILES], f"{number:06}.jpg", record["photo"])
            member(tars[number % FILES], f"{number:06}.cls", str(record["label"]).encode())
    for writer in writers:
        writer.close()
    for tar in tars:
        tar.close()
    for path in folder.glob("*.tfrecord"):
        index(path)


def member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def index(path: Path) -> None:
    """Writes offset and size of each record, one line each."""
    at, size = 0, path.stat().st_size
    with path.open("rb") as file, path.with_suffix(".idx").open("w") as out:
        while at < size:
            file.seek(at)
            (length,) = struct.unpack("<Q", file.read(8))
            out.write(f"{at} {length + 16}\n")
            at += length + 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--photos", type=Path, required=True, help="JPEG files, 300 pixels high and wide at least")
    parser.add_argument("--only", default=",".join(CASES))
    given = parser.parse_args()
    photos: list[bytes] = []
    for case in given.only.split(","):
        if CASES[case].files_of and CASES[case].files_of in given.only.split(","):
            continue
        case = CASES[case].files_of or case
        # Whole batches only, so that all contenders deliver the same records.
        step = CASES[case].batch * FILES
        count = max(step, int(CASES[case].records * given.scale) // step * step)
        how = {"version": VERSION, "records": count, "photos": str(given.photos) if case == "photos" else ""}
        folder = given.folder / case
        mark = folder / "made.json"
        if mark.exists() and json.loads(mark.read_text()) == how:
            continue
        print(f"writing {count:,} records: {case}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if case == "photos":
            photos = [path.read_bytes() for path in sorted(given.photos.glob("*.jp*g"))]
            if not photos:
                sys.exit(f"error: no *.jpg or *.jpeg in {given.photos}")
            for number, photo in enumerate(photos):
                (folder / f"{number:04}.jpg").write_bytes(photo)
        write(folder, case, count, photos)
        if case == "boards":
            names = ("SQUARE_BITS", "FLAGS", "BOARD_BYTES", "PLANES", "ORDER", "SIGNS", "A", "B", "K")
            known = {name: getattr(boards, name) for name in names}
            (folder / "boards.json").write_text(json.dumps(known))
        mark.write_text(json.dumps(how))


if __name__ == "__main__":
    main()
