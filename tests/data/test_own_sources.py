"""Tests data sets made of TFF's client data, of `tf.data` data sets and of data frames."""

import collections
import os
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.marks import together
from tff_pfl.data import SPLITS, ExamplesError, FederatedDataset

RNG = np.random.default_rng(0)


def inputs_of(**sizes):
    return {name: RNG.normal(size=(n, 3)).astype(np.float32) for name, n in sizes.items()}


# Client "b" has no test examples, and "d" has no training examples.
TRAIN, TEST = inputs_of(c=4, a=1, b=2), inputs_of(a=2, c=3, d=1)


def client_data(parts):
    slices = {
        name: collections.OrderedDict(image=x, label=np.arange(len(x)) % 2)
        for name, x in parts.items()
    }
    return tff.simulation.datasets.TestClientData(slices)


def serializable(parts):
    """Makes client data whose data sets are known by ids only, as those on disk are."""
    data = client_data(parts)
    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
        data.client_ids, lambda client: data.serializable_dataset_fn(client)
    )


def halved(dataset):
    """Transforms a client's data set to structures, in batches first, as TFF's functions do."""

    def of_batch(batch):
        return {"half": batch["image"] / 2, "first": batch["image"][:, 0]}, batch["label"]

    return dataset.batch(2).map(of_batch).unbatch()


@pytest.mark.thorough
@pytest.mark.parametrize("make", [client_data, serializable])
def test_client_data_keep_their_clients_and_structures(make):
    dataset = FederatedDataset.from_client_data(
        make(TRAIN), make(TEST), preprocess=halved, num_classes=2
    )
    assert dataset.names.tolist() == [*make(TRAIN).client_ids, "d"]
    assert dataset.y.dtype == np.int32
    for split, parts in (("train", TRAIN), ("test", TEST)):
        for name in "abcd":
            examples = dataset.examples(dataset.ids_of([name])[0], split)
            x = parts.get(name, np.zeros([0, 3], np.float32))
            np.testing.assert_array_equal(examples.x["half"], x / 2)
            np.testing.assert_array_equal(examples.x["first"], x[:, 0])
            np.testing.assert_array_equal(examples.y, np.arange(len(x)) % 2)
    assert not dataset.sizes("validation").any()


_PROGRAM = """
from absl import app

from tff_pfl import prepare_process

prepare_process()


def main(argv):
    import numpy as np  # TensorFlow is imported here
    import tensorflow as tf

    import tensorflow_federated as tff

    import tff_pfl

    def encoded(rows):
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), [1.0, 2.0])
        table = tf.lookup.StaticHashTable(initializer, 0.0)
        return rows.map(lambda row: (table.lookup(row["x"])[tf.newaxis], row["y"]))

    words = {"x": np.array(["b", "c", "a"]), "y": np.arange(3)}
    clients = tff.simulation.datasets.TestClientData({"client": words})
    dataset = tff_pfl.FederatedDataset.from_client_data(clients, preprocess=encoded)
    print(dataset.x[:, 0].tolist())


app.run(main)
"""


@pytest.mark.slow
def test_tables_can_be_made_while_clients_are_read_in_a_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "TF2_BEHAVIOR"}
    run = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "[2.0, 0.0, 1.0]\n"), run.stderr


def test_data_sets_of_clients_keep_their_types():
    def of(parts):
        return {
            1000 + ord(name): tf.data.Dataset.from_tensor_slices({"x": x, "y": x[:, :2] > 0})
            for name, x in parts.items()
        }

    dataset = FederatedDataset.from_datasets(of(TRAIN), of(TEST))
    assert dataset.names.tolist() == [1000 + ord(name) for name in "cabd"]
    examples = dataset.examples(dataset.ids_of([1000 + ord("c")])[0], "test")
    np.testing.assert_array_equal(examples.x, TEST["c"])
    np.testing.assert_array_equal(examples.y, TEST["c"][:, :2] > 0)
    assert examples.y.dtype == np.bool_
    empty = tf.data.Dataset.from_tensor_slices((np.zeros([0, 2]), np.zeros([0])))
    assert FederatedDataset.from_datasets({"a": empty}).sizes().tolist() == [0]


def test_examples_that_are_ready_at_any_time_are_read_in_order():
    def example(i):
        size = tf.where(i % 7 == 0, 400, 1)  # some take longer
        ones = tf.ones([size, size])
        return tf.cast(i, tf.float32) + 0 * tf.reduce_sum(ones @ ones), tf.cast(i % 3, tf.int32)

    unordered = tf.data.Dataset.range(20).map(example, num_parallel_calls=8, deterministic=False)
    dataset = FederatedDataset.from_datasets({"a": unordered})
    np.testing.assert_array_equal(dataset.x, np.arange(20))


def test_a_thousand_clients_are_read_in_one_pipeline():
    x = np.zeros([3, 2], np.float32)
    clients = {f"user_{i}": collections.OrderedDict(x=x + i, y=x[:, 0]) for i in range(1000)}
    data = tff.simulation.datasets.TestClientData(clients)
    start = time.perf_counter()
    dataset = FederatedDataset.from_client_data(data)
    assert time.perf_counter() - start < 10  # a pipeline for each client takes 20 s
    assert dataset.examples(dataset.ids_of(["user_77"])[0]).x.tolist() == [[77.0, 77.0]] * 3


@together(
    ("preprocess", "message"),
    [
        (None, r"must be \(x, y\), .* or mappings of 'x' and 'y'.* they are .*image"),
        (lambda example: (example["image"], example["label"]), "For a function f of one example"),
        (lambda data: 3, "to another one, but returned 3. For a function f"),
        (lambda data: halved(data).batch(2), r"found .* unbatch them: data.unbatch\(\)"),
        (
            lambda data: data.map(lambda it: (tf.as_string(it["label"]), it["label"])),
            "must be tensors of numbers, found .*string",
        ),
    ],
)
def test_other_examples_of_client_data_are_refused(preprocess, message):
    with pytest.raises(ExamplesError, match=message):
        FederatedDataset.from_client_data(client_data(TRAIN), preprocess=preprocess)


def of_ann(x, y):
    return {"ann": tf.data.Dataset.from_tensor_slices((x, y))}


UINT8, FLOAT32 = of_ann(np.uint8([[255]]), [1]), of_ann(np.float32([[0.1]]), [0])
MIXED = {**UINT8, "bob": FLOAT32["ann"]}


@together(
    ("train", "test", "num_classes", "message"),
    [
        (UINT8, FLOAT32, 2, r"inputs are float32 .*\(1,\), but .* of train are uint8"),
        (UINT8, of_ann(np.uint8([[1, 2]]), [0]), 2, r"test: inputs .*\(2,\), but inputs of train "),
        (UINT8, of_ann({"a": np.uint8([[1]])}, [0]), 2, "inputs are uint8 .* 'a', but"),
        (UINT8, of_ann(np.uint8([[1]]), [0.5]), None, "labels are float32 .* train are int32"),
        (MIXED, None, 2, "client 'ann' has .*uint8.* client 'bob' has .*float32"),
    ],
)
def test_examples_of_different_types_are_refused(train, test, num_classes, message):
    with pytest.raises(ExamplesError, match=message):
        FederatedDataset.from_datasets(train, test, num_classes=num_classes)


def test_class_labels_may_be_integers_of_several_types():
    parts = of_ann([1.0], np.int64([1])), of_ann([1.0], np.int32([1]))
    assert FederatedDataset.from_datasets(*parts, num_classes=2).y.tolist() == [1, 1]


def noisy(x, y):
    return x + tf.random.uniform([]), y


def changed_by(preprocess):
    data = tf.data.Dataset.from_tensor_slices((np.float32([1, 2, 3, 4]), [0, 1, 0, 1]))
    return FederatedDataset.from_datasets({"a": preprocess(data)}, num_classes=2)


@pytest.mark.parametrize(
    ("preprocess", "message"),
    [
        (lambda data: data.shuffle(4), "client 'a' is shuffled .*pass a seed"),
        (lambda data: data.batch(2).shuffle(2).unbatch(), "client 'a' is shuffled"),
        (lambda data: data.map(noisy), "changed at random without a seed"),
        (lambda data: data.repeat(), "client 'a' never ends"),
    ],
)
def test_data_sets_without_fixed_examples_are_refused(preprocess, message):
    tf.random.set_seed(None)  # that of another test would count as a seed
    with pytest.raises(ExamplesError, match=message):
        changed_by(preprocess)
    client = collections.OrderedDict(x=np.float32([1, 2]), y=[0, 1])
    clients = tff.simulation.datasets.TestClientData({"a": client})

    def of_pairs(data):
        return preprocess(data.map(lambda example: (example["x"], example["y"])))

    with pytest.raises(ExamplesError, match=message):
        FederatedDataset.from_client_data(clients, preprocess=of_pairs, num_classes=2)


def test_seeded_and_generated_data_sets_are_read_and_repeated_ones_warned_of(caplog):
    orders = [changed_by(lambda data: data.shuffle(4, seed=3)).x for _ in range(2)]
    np.testing.assert_array_equal(*orders)
    changed_by(lambda data: data.map(lambda x, y: (x + tf.random.uniform([], seed=1), y)))
    changed_by(
        lambda data: data.map(lambda x, y: (tf.numpy_function(np.sin, [x], x.dtype), y)).map(
            lambda x, y: (tf.ensure_shape(x, []), y)
        )
    )
    assert changed_by(lambda data: data.repeat(5).repeat(1)).sizes().tolist() == [20]
    (message,) = caplog.messages
    assert "data set of client 'a' repeats its examples 5 times, and each copy" in message


FRAME = pd.DataFrame(
    {
        "user_id": [1000003, 17, 17, 1000003, 17, 5],
        "item": np.array([2**40, 1, 2, 3, 4, 5]),
        "age": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
        "rating": [5, 3, 4, 1, 2, 0],
        "price": [50, 30, 40, 10, 20, 0],
        "part": ["train", "test", "train", "test", "validation", "train"],
        "title": list("abcdef"),
        "kind": pd.Categorical(list("abcdef")),
        "gap": [1.0, np.nan, 2.0, 3.0, np.nan, 4.0],
        "word": ["a", None, "b", "a", "b", "c"],
        "code": pd.Categorical(list("abacaa"), ["a", "b"]).codes,  # c is -1
    }
)


def test_columns_of_a_frame_keep_their_structure_and_types():
    x = {"item": "item", "both": ["age", "price"]}
    dataset = FederatedDataset.from_dataframe(
        FRAME, client="user_id", x=x, y="rating", split="part"
    )
    assert dataset.names.tolist() == [5, 17, 1000003]
    assert dataset.x["item"].dtype == np.int64 and dataset.num_classes is None
    train, test = (dataset.examples(2, split) for split in ("train", "test"))
    assert train.x["item"].tolist() == [2**40] and test.x["both"].tolist() == [[3.5, 10.0]]
    assert dataset.examples(1, "validation").y.tolist() == [2]
    assert dataset.sizes("train").tolist() == [1, 1, 1]


def test_whole_numbers_that_columns_beside_them_would_round_are_refused():
    frame = FRAME.assign(item=2**60 + np.arange(6))
    arguments = {"client": "user_id", "y": "rating", "split": "part"}
    with pytest.raises(ExamplesError, match="Column 'item' has whole numbers above 2"):
        FederatedDataset.from_dataframe(frame, x=["item", "age"], **arguments)
    made = FederatedDataset.from_dataframe(frame, x={"own": "item", "others": ["age"]}, **arguments)
    assert made.x["own"].max() == 2**60 + 5


def test_fractions_cut_the_rows_of_each_client():
    frame = pd.DataFrame({"user": np.repeat(["a", "b"], [10, 5]), "x": np.arange(15), "y": 1})
    made = [
        FederatedDataset.from_dataframe(
            frame, client="user", x="x", y="y", fractions=(3, 1, 1), seed=seed, num_classes=2
        )
        for seed in (0, 0, 1)
    ]
    assert [made[0].sizes(split).tolist() for split in SPLITS] == [[6, 3], [2, 1], [2, 1]]
    owned = np.concatenate([made[0].examples(0, split).x for split in SPLITS])
    assert sorted(owned) == list(range(10))
    assert made[0].fingerprint == made[1].fingerprint != made[2].fingerprint


def test_index_of_columns_level_of_the_index_and_times_are_taken():
    made = [
        FederatedDataset.from_dataframe(frame, client=client, x=x, y="rating", split="part")
        for frame, client, x in (
            (FRAME, "user_id", ["age", "price"]),
            (FRAME.set_index("user_id"), "user_id", pd.Index(["age", "price"])),
            (FRAME.astype({"user_id": float}), "user_id", np.array(["age", "price"])),
        )
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    days = pd.to_datetime(FRAME["user_id"], unit="h")
    arguments = {"client": "day", "x": "age", "y": "rating"}
    dataset = FederatedDataset.from_dataframe(FRAME.assign(day=days), **arguments)
    assert dataset.names.tolist() == [
        "1970-01-01 05:00:00",
        "1970-01-01 17:00:00",
        "2084-01-29 19:00:00",
    ]


@together(
    ("changes", "message"),
    [
        ({"y": "title"}, r"6 names \(a, b, .*num_classes is None. Pass num_classes=6"),
        ({"x": "kind"}, "Column 'kind' is category, not numbers. Encode it"),
        ({"x": "ages"}, "column of the data frame 'ages'"),
        ({"y": "gap"}, "Column 'gap' has no value in 2 rows. Drop them"),
        ({"x": ["word"]}, "Column 'word' has no value in 1 rows.* a name, such as 'unknown'."),
        ({"x": ["code"]}, "Column 'code' is -1 in 1 rows, as pandas.Categorical codes what"),
        ({"split": "title"}, "must have 'train', 'validation' or 'test', found 'a'"),
        ({"client": "age"}, "Names of clients must be .* got 0.5"),
        ({"x": ["age", "rating"]}, "Column 'rating' is both an input and a label"),
        ({"split": "part", "fractions": (0.5, 0, 0.5)}, "split='part' or by fractions, not by"),
        ({"fractions": (0, 0, 1)}, "fractions must be"),
        ({"x": []}, "A list of columns is empty"),
        ({"frame": FRAME[:0]}, "must be a pandas data frame with rows"),
        ({"frame": pd.concat([FRAME, FRAME["age"]], axis=1)}, "several columns 'age'"),
    ],
)
def test_impossible_columns_are_refused(changes, message):
    arguments = {"frame": FRAME, "client": "user_id", "x": ["age"], "y": "rating"} | changes
    with pytest.raises(ValueError, match=message):
        FederatedDataset.from_dataframe(**arguments)
