"""Records the results of TensorFlow that this crate must reproduce, beside this file.

    python make_goldens.py        # needs tensorflow (made with 2.21); nothing else does

Writes `files.json` and the files it names (record files written by TensorFlow and by Python's gzip
and zlib) and `examples.json` (the result of `tf.io.parse_example` for the records in
`example_cases.py`).
"""

import gzip
import hashlib
import json
import os
import pathlib
import struct
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

from example_cases import cases

HERE = pathlib.Path(__file__).parent
FILES = HERE / "files"


# ---- record files ------------------------------------------------------------------------------


def data(ordinal, size):
    """Returns the data of a record; tests/goldens.rs has the same formula."""
    return bytes((ordinal * 31 + j * j % 251) % 256 for j in range(size))


def write(name, sizes, compression):
    with tf.io.TFRecordWriter(str(FILES / name), compression) as writer:
        for ordinal, size in enumerate(sizes):
            writer.write(data(ordinal, size))
    return (FILES / name).read_bytes()


def digest(plain):
    """Returns the index's digest, computed here from the definition."""
    sha, at = hashlib.sha256(), 0
    while at < len(plain):
        (length,) = struct.unpack_from("<Q", plain, at)
        sha.update(plain[at : at + 8] + plain[at + 12 + length : at + 16 + length])
        at += 16 + length
    return sha.hexdigest()


def message(error):
    """Returns TensorFlow's error message without the op's name and the record's bytes."""
    if isinstance(error, UnicodeDecodeError):
        return "Could not parse example input"
    return str(error).split("}} ")[-1].split(" [Op:")[0].split(", value:")[0]


def tf_reads(name, compression):
    """Returns the number of records that TensorFlow reads, and its error message."""
    count = 0
    try:
        for _ in tf.data.TFRecordDataset(str(FILES / name), compression_type=compression):
            count += 1
    except tf.errors.OpError as error:
        return count, message(error)
    return count, None


def make_files():
    FILES.mkdir(exist_ok=True)
    entries = []

    def add(name, compression, sizes, plain):
        read, error = tf_reads(name, compression)
        entries.append(
            {
                "file": name,
                "compression": compression.lower() or "none",
                "sizes": sizes,
                "stream_bytes": len(plain),
                "digest": digest(plain),
                "tf_records": read,
                "tf_error": error,
            }
        )

    borders = [0, 1, 7, 8, 9, 255, 256, 4080, 4084, 4096, 4097, 12000, 16368, 16384, 3]
    for label, sizes in [("empty", []), ("empty_records", [0, 0, 0]), ("borders", borders)]:
        plain = write(f"{label}.tfrecord", sizes, "")
        add(f"{label}.tfrecord", "", sizes, plain)
        for compression in ["GZIP", "ZLIB"]:
            name = f"{label}.{compression.lower()}"
            write(name, sizes, compression)
            add(name, compression, sizes, plain)

    # Members split at arbitrary positions, also inside a header and inside data.
    sizes = [10, 300, 0, 2000, 5]
    plain = write("cut.tmp", sizes, "")
    (FILES / "cut.tmp").unlink()
    pieces = [plain[:5], plain[5:100], plain[100:1000], plain[1000:]]
    members = [gzip.compress(piece, mtime=0) for piece in pieces]
    streams = [zlib.compress(piece) for piece in pieces]
    for name, compression, stored in [
        ("members.gzip", "GZIP", b"".join(members)),
        (
            "members_empty_first.gzip",
            "GZIP",
            gzip.compress(b"", mtime=0) + members[0] + b"".join(members[1:]),
        ),
        ("members_padded.gzip", "GZIP", b"".join(members) + bytes(512)),
        ("streams.zlib", "ZLIB", b"".join(streams)),
        ("nothing.gzip", "GZIP", b""),
        ("nothing.zlib", "ZLIB", b""),
    ]:
        (FILES / name).write_bytes(stored)
        empty = not stored
        add(name, compression, [] if empty else sizes, b"" if empty else plain)

    damaged = []

    def damage(name, compression, stored, good):
        (FILES / name).write_bytes(stored)
        read, error = tf_reads(name, compression)
        damaged.append(
            {
                "file": name,
                "compression": compression.lower() or "none",
                "sizes": sizes,
                "good": good,
                "tf_records": read,
                "tf_error": error,
            }
        )

    def flipped(at):
        changed = bytearray(plain)
        changed[at] ^= 0x10
        return bytes(changed)

    damage("bad_length.tfrecord", "", flipped(26 + 2), 1)
    damage("bad_length_crc.tfrecord", "", flipped(26 + 9), 1)
    damage("bad_data.tfrecord", "", flipped(26 + 12 + 100), 1)
    damage("bad_data_crc.tfrecord", "", flipped(26 + 12 + 300), 1)
    damage("bad_first.tfrecord", "", flipped(0), 0)
    damage("cut_in_header.tfrecord", "", plain[: 26 + 5], 1)
    damage("cut_in_data.tfrecord", "", plain[: 26 + 12 + 7], 1)
    damage("cut_in_footer.tfrecord", "", plain[: 26 + 12 + 302], 1)
    whole = gzip.compress(plain, mtime=0)
    damage("cut.gzip", "GZIP", whole[: len(whole) // 2], None)
    damage("cut_trailer.gzip", "GZIP", whole[:-3], len(sizes))
    damage("garbage_behind.gzip", "GZIP", whole + b"garbage", len(sizes))
    whole = zlib.compress(plain)
    damage("cut.zlib", "ZLIB", whole[: len(whole) // 2], None)
    damage("cut_trailer.zlib", "ZLIB", whole[:-2], len(sizes))
    damage("plain_as_gzip.tfrecord", "GZIP", plain, 0)

    dump("files.json", {"tensorflow": tf.__version__, "files": entries, "damaged": damaged})


# ---- Examples ----------------------------------------------------------------------------------


DTYPES = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}


def to_tf(spec):
    ((kind, fields),) = spec.items()
    dtype = DTYPES[fields["dtype"]]
    if kind == "var_len":
        return tf.io.VarLenFeature(dtype)
    default = fields["default"]
    if default is not None:
        ((_, default),) = default.items()
        if dtype == tf.string:
            default = [bytes(value) for value in default]
    return tf.io.FixedLenFeature(fields["shape"], dtype, default)


def values_of(tensor):
    if isinstance(tensor, tf.SparseTensor):
        tensor = tensor.values
    array = tensor.numpy().reshape(-1)
    if tensor.dtype == tf.string:
        return [value.hex() for value in array]
    if tensor.dtype == tf.float32:
        return array.view(np.uint32).tolist()
    return array.tolist()


def ask(record, specs):
    try:
        parsed = tf.io.parse_example([record], {name: to_tf(spec) for name, spec in specs.items()})
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return {"error": message(error)}
    return {"ok": {name: values_of(parsed[name]) for name in specs}}


def make_examples():
    answers = [
        {
            "name": name,
            "record": record.hex(),
            "features": [{"name": key, "feature": spec} for key, spec in specs.items()],
            "answer": ask(record, specs),
        }
        for name, record, specs in cases()
    ]
    dump("examples.json", {"tensorflow": tf.__version__, "cases": answers})


def dump(name, value):
    lists = {key: item for key, item in value.items() if isinstance(item, list)}
    rest = {key: item for key, item in value.items() if key not in lists}
    lines = [json.dumps(rest)[:-1]]
    for key, items in lists.items():
        rows = ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)
        lines.append(f', "{key}": [\n{rows}\n]')
    (HERE / name).write_text("".join(lines) + "}\n")


if __name__ == "__main__":
    make_files()
    make_examples()
