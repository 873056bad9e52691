"""Records the results of TensorFlow's operations for some numbers in `operators.json`.

    python make_operators.py      # needs tensorflow (made with 2.21); nothing else does
"""

import json
import os
import pathlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

from make_goldens import message

rng = np.random.default_rng(7)
NUMBERS = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
#: Number of rows. Rows are bytes, so that decode_raw, which is compared first, can make any type.
ROWS = 3


def raw(array):
    array = np.asarray(array)
    return [row.tobytes() for row in array]


def some(dtype, shape):
    kind = tf.as_dtype(dtype).as_numpy_dtype
    if "float" in dtype:
        values = rng.normal(0, 50, (ROWS, *shape))
        values.reshape(-1)[:4] = [0.0, -0.0, 0.5, -1.5]
        return values.astype(kind)
    info = np.iinfo(kind)
    low, high = max(info.min, -100), min(info.max, 100)
    return rng.integers(low, high, (ROWS, *shape), endpoint=True).astype(kind)


def cases():
    """Name, strings of each column, operators, function that returns TensorFlow's answer."""
    for dtype in [*NUMBERS, "bool"]:
        tf_type = tf.as_dtype(dtype)
        array = some("uint8", (6,)) % 2 if dtype == "bool" else some(dtype, (2, 3))
        strings = raw(array)
        size = tf_type.size
        items = len(strings[0]) // size
        for little in (True, False):
            fields = {"dtype": dtype, "shape": [items], "little_endian": little}
            yield (
                f"decode_raw {dtype} {'little' if little else 'big'}",
                {"x": strings},
                [("x", "decode_raw", {"input": "x", **fields})],
                lambda strings=strings, t=tf_type, little=little: tf.io.decode_raw(strings, t, little),
            )
        # TensorFlow does not pad these types.
        lengths = () if dtype in ("float16", "bool") else (size, 2 * size, items * size + 2 * size)
        for length in lengths:
            fields = {
                "dtype": dtype,
                "shape": [length // size],
                "little_endian": True,
                "fixed_length": length,
            }
            yield (
                f"decode_raw {dtype} fixed_length {length}",
                {"x": strings},
                [("x", "decode_raw", {"input": "x", **fields})],
                lambda strings=strings, t=tf_type, length=length: tf.io.decode_raw(
                    strings, t, fixed_length=length
                ),
            )
        yield (
            f"decode_raw {dtype} of another length",
            {"x": [strings[0], strings[1][:-1]]},
            [("x", "decode_raw", {"input": "x", "dtype": dtype, "shape": [items], "little_endian": True})],
            lambda strings=strings, t=tf_type: tf.io.decode_raw([strings[0], strings[1][:-1]], t),
        )

    def decoded(dtype, shape):
        return (
            "x",
            "decode_raw",
            {"input": "x", "dtype": dtype, "shape": list(shape), "little_endian": True},
        )

    for dtype in NUMBERS:
        array = some(dtype, (2, 3))
        for to in [*NUMBERS, "uint32", "bool"]:
            # A float that the integer type cannot represent has no defined cast in TensorFlow.
            if "float" in dtype and to in ("uint8", "int8", "uint16", "uint32"):
                array = np.abs(array)
            yield (
                f"cast {dtype} to {to}",
                {"x": raw(array)},
                [decoded(dtype, (2, 3)), ("x", "cast", {"input": "x", "dtype": to})],
                lambda array=array, to=to: tf.cast(tf.constant(array), tf.as_dtype(to)),
            )
    for dtype in ("uint8", "int16", "float32", "float64"):
        array = some(dtype, (2, 3, 4))
        x = tf.constant(array)
        column = {"x": raw(array)}
        first = decoded(dtype, (2, 3, 4))
        for shape in ([24], [4, -1], [2, 1, 12], [3, 8, 1]):
            yield (
                f"reshape {dtype} {shape}",
                column,
                [first, ("x", "reshape", {"input": "x", "shape": shape})],
                lambda x=x, shape=shape: tf.reshape(x, [ROWS, *shape]),
            )
        for perm in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]):
            yield (
                f"transpose {dtype} {perm}",
                column,
                [first, ("x", "transpose", {"input": "x", "perm": perm})],
                lambda x=x, perm=perm: tf.transpose(x, [0, *(dim + 1 for dim in perm)]),
            )
        for begin, size in (([0, 0, 0], [-1, -1, -1]), ([1, 0, 2], [1, 2, -1]), ([0, 1, 1], [2, 0, 2])):
            yield (
                f"slice {dtype} {begin} {size}",
                column,
                [first, ("x", "slice", {"input": "x", "begin": begin, "size": size})],
                lambda x=x, begin=begin, size=size: tf.slice(x, [0, *begin], [-1, *size]),
            )
        for axis, indices in ((0, [1, 0, 1]), (1, [2]), (2, [3, 3, 0]), (1, [0, 1, 2])):
            yield (
                f"select {dtype} {axis} {indices}",
                column,
                [first, ("x", "select", {"input": "x", "axis": axis, "indices": indices})],
                lambda x=x, axis=axis, indices=indices: tf.gather(x, indices, axis=axis + 1),
            )
        for to in ("float32", "float64"):
            for mean, std in (([3.5], [0.3]), ([0.1, 0.2, 0.3, 0.4], [2.0, 0.7, 1.1, 3.0])):
                fields = {"input": "x", "mean": mean, "std": std, "dtype": to}
                yield (
                    f"normalize {dtype} {to} {len(mean)}",
                    column,
                    [first, ("x", "normalize", fields)],
                    lambda x=x, mean=mean, std=std, to=to: (tf.cast(x, to) - tf.constant(mean, to))
                    / tf.constant(std, to),
                )
                fields = {"input": "x", "scale": mean, "offset": std, "dtype": to}
                yield (
                    f"scale {dtype} {to} {len(mean)}",
                    column,
                    [first, ("x", "scale", fields)],
                    lambda x=x, mean=mean, std=std, to=to: tf.cast(x, to) * tf.constant(mean, to)
                    + tf.constant(std, to),
                )
    array = some("uint8", (2, 3))
    for order in ("big", "little"):
        shifts = list(range(7, -1, -1)) if order == "big" else list(range(8))
        yield (
            f"unpack_bits {order}",
            {"x": raw(array)},
            [decoded("uint8", (2, 3)), ("x", "unpack_bits", {"input": "x", "bit_order": order})],
            lambda shifts=shifts: tf.reshape(
                tf.bitwise.bitwise_and(
                    tf.bitwise.right_shift(
                        tf.constant(array)[..., None], tf.constant(shifts, tf.uint8)
                    ),
                    tf.constant(1, tf.uint8),
                ),
                [ROWS, 2, 24],
            ),
        )
    for dtype in ("uint8", "int32", "int64"):
        places = np.array([[0, 3], [2, 200], [1, 0]]).astype(dtype)
        for to in ("float32", "uint8", "int64"):
            fields = {"input": "x", "depth": 4, "on": 5.0, "off": 2.0, "dtype": to}
            yield (
                f"one_hot {dtype} {to}",
                {"x": raw(places)},
                [decoded(dtype, (2,)), ("x", "one_hot", fields)],
                lambda places=places, to=to: tf.one_hot(
                    tf.constant(places), 4, tf.constant(5, to), tf.constant(2, to), dtype=to
                ),
            )
    negative = np.array([[-1, 3], [2, -200], [1, 4]], np.int32)
    fields = {"input": "x", "depth": 4, "on": 1.0, "off": 0.0, "dtype": "float32"}
    yield (
        "one_hot outside",
        {"x": raw(negative)},
        [decoded("int32", (2,)), ("x", "one_hot", fields)],
        lambda: tf.one_hot(tf.constant(negative), 4),
    )

    a = np.array([[-3.5], [0.0], [1200.0]])
    b = np.array([[2.0], [-0.5], [7.25]])
    columns = {"a": raw(a), "b": raw(b)}
    both = [
        (name, "decode_raw", {"input": name, "dtype": "float64", "shape": [1], "little_endian": True})
        for name in ("a", "b")
    ]
    x, y = tf.constant(a[:, 0]), tf.constant(b[:, 0])
    expressions = {
        "a + b * 2 - 1": lambda: x + y * 2 - 1,
        "(a + b) * -2 / b": lambda: (x + y) * -2 / y,
        "abs(a) + sign(b)": lambda: tf.abs(x) + tf.sign(y),
        "sign(a)": lambda: tf.sign(x),
        "tanh(a / 400)": lambda: tf.tanh(x / 400),
        "tanh(b)": lambda: tf.tanh(y),
        "exp(b) - log(abs(b))": lambda: tf.exp(y) - tf.math.log(tf.abs(y)),
        "sqrt(a)": lambda: tf.sqrt(x),
        "floor(b)": lambda: tf.floor(y),
        "min(a, b) + max(a, 1)": lambda: tf.minimum(x, y) + tf.maximum(x, tf.constant(1.0, tf.float64)),
        "max(sqrt(a), b)": lambda: tf.maximum(tf.sqrt(x), y),
        "where(a > b, a, -b)": lambda: tf.where(x > y, x, -y),
        "where(a >= 0 and not b < 0, 1, 2.5e-1)": lambda: tf.where(
            tf.logical_and(x >= 0, tf.logical_not(y < 0)),
            tf.constant(1.0, tf.float64),
            tf.constant(0.25, tf.float64),
        ),
        "(a <= 0) + (a == 0) + (b != 2) or 0": lambda: tf.cast(
            tf.cast(x <= 0, tf.float64) + tf.cast(tf.equal(x, 0), tf.float64)
            + tf.cast(tf.not_equal(y, 2), tf.float64) != 0,
            tf.float64,
        ),
        # Score of a chess position: 1 for an immediate mate, less for a more distant one.
        "where(abs(a) > 1000, sign(a) * (0.8 + (1 - 0.8) / (30 - 1) * max(0, 30 - abs(b))), 0.8 * tanh(a / 400))": lambda: tf.where(
            tf.abs(x) > 1000,
            tf.sign(x)
            * (0.8 + (1 - 0.8) / (30 - 1) * tf.maximum(tf.constant(0.0, tf.float64), 30 - tf.abs(y))),
            0.8 * tf.tanh(x / 400),
        ),
        "1 / 0": lambda: tf.fill([3], tf.constant(float("inf"), tf.float64)),
    }
    for expression, answer in expressions.items():
        for to in ("float64", "float32"):
            yield (
                f"compute {to}: {expression}",
                columns,
                [*both, ("y", "compute", {"expression": expression, "dtype": to})],
                lambda answer=answer, to=to: tf.cast(answer(), to),
            )


def padded():
    """Rows of variable length, truncated and padded; `fits`: padded_batch accepts them as is."""
    rows = [[1, 2, 3], [], [7], [5, 6, 7, 8, 9]]
    for dtype in ("int64", "float32"):
        for length, value in ((5, 0), (7, -1), (2, 3), (1, 4)):
            data = tf.data.Dataset.from_generator(
                lambda: iter(rows), output_signature=tf.TensorSpec([None], dtype)
            )
            fill = tf.constant(value, dtype)
            cut = data.map(lambda row, length=length: row[:length])
            (answer,) = cut.padded_batch(len(rows), [length], fill).as_numpy_iterator()
            try:
                (whole,) = data.padded_batch(len(rows), [length], fill).as_numpy_iterator()
            except tf.errors.DataLossError as error:
                whole = message(error)
            fits = not isinstance(whole, str)
            assert fits == (length >= max(map(len, rows))), whole
            yield {
                "dtype": dtype,
                "rows": rows,
                "length": length,
                "value": float(value),
                "fits": fits,
                "bytes": answer.tobytes().hex(),
            }


def main():
    lines = []
    for name, columns, operators, answer in cases():
        try:
            tensor = answer()
            array = tensor.numpy()
            found = {
                "ok": {
                    "dtype": tensor.dtype.name,
                    "shape": list(array.shape),
                    "bytes": array.tobytes().hex(),
                }
            }
        except (tf.errors.OpError, ValueError, TypeError) as error:
            found = {"error": message(error)}
        listed = [{"output": out, "operation": {kind: fields}} for out, kind, fields in operators]
        hexed = {column: [one.hex() for one in strings] for column, strings in columns.items()}
        case = {"name": name, "columns": hexed, "operators": listed, "answer": found}
        lines.append(json.dumps(case))
    text = ",\n".join(lines)
    rows = ",\n".join(json.dumps(case) for case in padded())
    path = pathlib.Path(__file__).parent / "operators.json"
    path.write_text(f'{{"tensorflow": "{tf.__version__}", "cases": [\n{text}\n],\n"padded": [\n{rows}\n]}}\n')
    print(f"{len(lines)} cases, and rows of any length")


if __name__ == "__main__":
    main()
