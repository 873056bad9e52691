"""Records the results of `tf.io.parse_example` and `parse_sequence_example` for the batches in
`parse_cases.py` in `parse.json`.

    python make_goldens.py        # needs tensorflow (made with 2.21); nothing else does
"""

import json
import os
import pathlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

from parse_cases import example_batches, sequence_batches

DTYPES = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}
PARTITIONS = {
    "row_splits": tf.io.RaggedFeature.RowSplits,
    "row_lengths": tf.io.RaggedFeature.RowLengths,
    "row_starts": tf.io.RaggedFeature.RowStarts,
    "row_limits": tf.io.RaggedFeature.RowLimits,
    "value_row_ids": tf.io.RaggedFeature.ValueRowIds,
    "uniform_row_length": tf.io.RaggedFeature.UniformRowLength,
}


def to_tf(spec):
    ((kind, fields),) = spec.items()
    dtype = DTYPES[fields["dtype"]]
    value = fields.get("default")
    if value is not None:
        ((_, value),) = value.items()
        value = [bytes(one) for one in value] if dtype == tf.string else value
    if kind == "fixed_len":
        return tf.io.FixedLenFeature(fields["shape"], dtype, value)
    if kind == "var_len":
        return tf.io.VarLenFeature(dtype)
    if kind == "fixed_len_sequence":
        one = None if value is None else value[0]
        return tf.io.FixedLenSequenceFeature(fields["shape"], dtype, fields["allow_missing"], one)
    if kind == "ragged":
        partitions = [PARTITIONS[name](of) for one in fields["partitions"] for name, of in one.items()]
        return tf.io.RaggedFeature(
            dtype, fields.get("value_key"), partitions, row_splits_dtype=tf.int64, validate=True
        )
    keys, size = fields["index_keys"], fields["size"]
    if len(keys) == 1:
        keys, size = keys[0], size[0]
    return tf.io.SparseFeature(keys, fields["value_key"], dtype, size, fields["already_sorted"])


def flat(array, dtype):
    array = np.asarray(array).reshape(-1)
    if dtype == tf.string:
        return [value.hex() for value in array]
    return array.view(np.uint32).tolist() if dtype == tf.float32 else array.tolist()


def column(tensor):
    if isinstance(tensor, tf.SparseTensor):
        return {
            "values": flat(tensor.values.numpy(), tensor.dtype),
            "indices": tensor.indices.numpy().tolist(),
            "shape": tensor.dense_shape.numpy().tolist(),
        }
    if isinstance(tensor, tf.RaggedTensor):
        splits = [splits.numpy().tolist() for splits in tensor.nested_row_splits]
        values = tensor.flat_values
        return {
            "values": flat(values.numpy(), values.dtype),
            "splits": splits,
            "shape": list(values.shape[1:]),
        }
    return {"values": flat(tensor.numpy(), tensor.dtype), "shape": list(tensor.shape)}


def message(error):
    if isinstance(error, UnicodeDecodeError):
        return "Could not parse example input"
    return str(error).split("}} ")[-1].split(" [Op:")[0].split(", value:")[0][:300]


ERRORS = (tf.errors.OpError, ValueError, TypeError, KeyError)


def ask(records, features, lists):
    context = {name: to_tf(spec) for name, spec in features.items()}
    try:
        if lists is None:
            parsed = tf.io.parse_example(tf.constant(records, tf.string, [len(records)]), context)
            return {"ok": {name: column(parsed[name]) for name in features}}
        sequences = {name: to_tf(spec) for name, spec in lists.items()}
        found, steps, lengths = tf.io.parse_sequence_example(
            tf.constant(records, tf.string, [len(records)]), context or None, sequences
        )
        answer = {name: column(found[name]) for name in features}
        for name in lists:
            answer[name] = column(steps[name])
            if name in lengths:
                answer[name]["lengths"] = lengths[name].numpy().tolist()
        return {"ok": answer}
    except ERRORS as error:
        return {"error": message(error)}


def named(specs):
    return [{"name": name, "feature": spec} for name, spec in specs.items()]


def main():
    cases = []
    for name, records, features in example_batches():
        answer = ask(records, features, None)
        hexed = [record.hex() for record in records]
        cases.append({"name": name, "records": hexed, "parse": named(features), "answer": answer})
    for name, records, features, lists in sequence_batches():
        answer = ask(records, features, lists)
        hexed = [record.hex() for record in records]
        parse = {"context": named(features), "lists": named(lists)}
        cases.append({"name": name, "records": hexed, "parse": parse, "answer": answer})
    names = [case["name"] for case in cases]
    assert len(set(names)) == len(names), "a name comes twice"
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = f'{{"tensorflow": "{tf.__version__}", "cases": [\n{lines}\n]}}\n'
    (pathlib.Path(__file__).parent / "parse.json").write_text(text)
    errors = sum("error" in case["answer"] for case in cases)
    print(f"{len(cases)} cases, {errors} of them errors")


if __name__ == "__main__":
    main()
