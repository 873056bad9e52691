"""Records the results of TensorFlow's tables for some keys in `lookups.json`.

    python make_lookups.py      # needs tensorflow (made with 2.21); nothing else does
"""

import json
import os
import pathlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(11)
ROWS = 5
INT_KEYS = np.array([0, 1, -1, 7, 2**40, -(2**62), 2**63 - 1], np.int64)
TEXT_KEYS = [b"", b"a", b"b", b"aa", "ü".encode(), b"\x00\xff", b"n" * 300]


def values(dtype, shape):
    array = rng.normal(0, 50, (len(INT_KEYS), *shape))
    return array.astype(dtype)


def asked(kind, shape, miss):
    """Returns keys to look up; with `miss` some of them are in no table."""
    there = INT_KEYS if kind == "int64" else np.array(TEXT_KEYS, object)
    others = np.array([5, -3], np.int64) if kind == "int64" else np.array([b"ab", b"z" * 300], object)
    keys = there[rng.integers(0, len(there), (ROWS, *shape))]
    if miss:
        flat = keys.reshape(-1)
        flat[[1, -1]] = others
    return keys


def static(keys, array, default):
    init = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), tf.constant(array))
    return tf.lookup.StaticHashTable(init, default)


def dense(keys, array, default):
    is_text = not np.issubdtype(np.asarray(keys).dtype, np.integer)
    empty, deleted = (b"<empty>", b"<deleted>") if is_text else (-99, -98)
    table = tf.lookup.experimental.DenseHashTable(
        key_dtype=tf.string if is_text else tf.int64,
        value_dtype=array.dtype,
        default_value=tf.fill(array.shape[1:], tf.constant(default, array.dtype)),
        empty_key=empty,
        deleted_key=deleted,
    )
    table.insert(tf.constant(keys), tf.constant(array))
    return table


def cases():
    for make, kind, dtype, shape in (
        (static, "int64", "float32", ()),
        (static, "int64", "int64", ()),
        (static, "int64", "float64", ()),
        (static, "int64", "int32", ()),
        (static, "bytes", "float32", ()),
        (static, "bytes", "int64", ()),
        (static, "bytes", "int32", ()),
        (dense, "int64", "float32", ()),
        (dense, "int64", "float32", (4,)),
        (dense, "int64", "float64", (6,)),
        (dense, "int64", "int64", (3,)),
        (dense, "int64", "bool", (2,)),
        (dense, "bytes", "float32", (4,)),
        (dense, "bytes", "int64", ()),
        (dense, "bytes", "bool", ()),
    ):
        for key_shape in ((), (3,)):
            for default in (None, 0, -1, 2.5):
                if default == 2.5 and "float" not in dtype or default == -1 and dtype == "bool":
                    continue
                array = values(dtype, shape)
                keys = INT_KEYS if kind == "int64" else TEXT_KEYS
                table = make(keys, array, np.array(default or 0, dtype)[()])
                what = asked(kind, key_shape, default is not None)
                # A dense table takes a flat list of keys.
                asked_for = tf.constant(what.reshape(-1).tolist(), tf.int64 if kind == "int64" else tf.string)
                answer = tf.reshape(table.lookup(asked_for), [ROWS, *key_shape, *shape])
                yield {
                    "name": f"{make.__name__} {kind} to {dtype} {list(shape)}, keys {list(key_shape)}, default {default}",
                    "keys": [int(key) for key in keys] if kind == "int64" else [key.hex() for key in keys],
                    "dtype": dtype,
                    "shape": list(shape),
                    "values": array.tobytes().hex(),
                    "asked_shape": list(key_shape),
                    "asked": [
                        [int(key) if kind == "int64" else key.hex() for key in np.ravel(row)]
                        for row in what.reshape(ROWS, -1)
                    ],
                    "missing": default,
                    "answer_shape": list(answer.shape),
                    "answer": answer.numpy().tobytes().hex(),
                }


def main():
    lines = [json.dumps(case) for case in cases()]
    path = pathlib.Path(__file__).parent / "lookups.json"
    text = ",\n".join(lines)
    path.write_text(f'{{"tensorflow": "{tf.__version__}", "cases": [\n{text}\n]}}\n')
    print(f"{len(lines)} cases")


if __name__ == "__main__":
    main()
