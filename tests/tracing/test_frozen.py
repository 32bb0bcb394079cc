"""Tests weights that graphs read from files."""

import collections
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import tiny_model
from tff_pfl import runtime
from tff_pfl.experiment.fingerprint import fingerprint
from tff_pfl.models import ModelSaver
from tff_pfl.testing.federation import IMAGE_SHAPE
from tff_pfl.tracing import frozen
from tff_pfl.tracing.frozen import Frozen, FrozenFileError

ARRAY = np.random.default_rng(0).normal(size=(200, 100)).astype(np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder for files, and nothing in memory."""
    monkeypatch.setenv("TFF_PFL_CACHE", str(tmp_path))
    monkeypatch.setattr(frozen, "_checked", set())
    frozen._loaded.clear()
    return tmp_path


def in_loop(weight):
    """Returns a computation that adds up products with a weight in a loop."""

    @tff.tensorflow.computation(tff.types.TensorType(np.float32, [200]))
    def added(x):
        def body(i, total):
            return i + 1, total + tf.linalg.matvec(weight.tensor(), x, transpose_a=True)

        return tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([100])))[1]

    return added


def test_file_has_the_name_of_its_bytes(folder):
    first, second = Frozen.of(ARRAY), Frozen.of(tf.constant(ARRAY))
    assert first == second and len(list(folder.iterdir())) == 1
    assert Frozen.of(first) is first
    assert np.array_equal(np.fromfile(first.path, np.float32), ARRAY.ravel())
    assert first.num_bytes == ARRAY.nbytes
    assert Frozen.of(ARRAY + 1).path != first.path


def test_small_arrays_are_no_files(folder):
    small = np.ones(3)
    assert Frozen.of(small) is small and not list(folder.iterdir())


@pytest.mark.parametrize(
    "dtype", [tf.float32, tf.float16, tf.bfloat16, tf.int32, tf.uint8, tf.bool]
)
def test_values_are_those_of_the_array(dtype):
    array = tf.cast(10 * ARRAY[:, :200], dtype).numpy()
    array = np.repeat(array, 4, axis=1)
    weight = Frozen.of(array)
    assert weight.dtype == dtype and np.array_equal(weight.array(), array)
    assert np.array_equal(weight.tensor(), array)
    assert np.array_equal(tf.function(weight.tensor)(), array)
    assert np.array_equal(tff.tensorflow.computation(weight.tensor)(), array)


@pytest.mark.parametrize("context", ["graph", pytest.param("cpp", marks=pytest.mark.thorough)])
def test_runtimes_read_the_file(context):
    weight, x = Frozen.of(ARRAY), np.arange(200, dtype=np.float32)
    with tff.framework.get_context_stack().install(getattr(runtime, f"create_{context}_context")()):
        np.testing.assert_allclose(in_loop(weight)(x), 3 * x @ ARRAY, rtol=1e-4)


def test_graph_runtime_reads_the_file_once():
    weight, x = Frozen.of(ARRAY), np.ones(200, np.float32)
    added = in_loop(weight)
    first = added(x)
    os.remove(weight.path)  # as another process may
    assert np.array_equal(added(x), first)


def test_missing_and_edited_files_are_refused():
    weight = Frozen.of(ARRAY)
    added = in_loop(weight)
    os.rename(weight.path, f"{weight.path}.away")
    with pytest.raises(
        FrozenFileError, match="cannot be read .* Make the model again, which writes"
    ):
        added(np.ones(200, np.float32))
    os.rename(f"{weight.path}.away", weight.path)
    with open(weight.path, "r+b") as file:
        file.write(b"1234")
    with pytest.raises(FrozenFileError, match="were edited: .* Make the model again, which writes"):
        added(np.ones(200, np.float32))
    assert Frozen.of(ARRAY) == weight and np.array_equal(weight.array(), ARRAY)


def test_identity_is_that_of_the_bytes(tmp_path, monkeypatch):
    here, other = fingerprint(in_loop(Frozen.of(ARRAY))), fingerprint(in_loop(Frozen.of(ARRAY + 1)))
    monkeypatch.setenv("TFF_PFL_CACHE", str(tmp_path / "elsewhere"))
    assert fingerprint(in_loop(Frozen.of(ARRAY))) == here != other


def test_exported_model_has_variables(tmp_path):
    base = tiny_model()
    kernel = np.zeros([16, 5, 3000], np.float32)
    kernel[:] = np.asarray(base.init(0)["dense1"]["kernel"])[:, :, np.newaxis]

    def init(seed):
        return collections.OrderedDict(head=base.init(seed)["head"])

    def weights_of(parts, given):
        dense = {"kernel": given[:, :, 7], "bias": tf.zeros([5])}
        return collections.OrderedDict(dense1=dense, head=parts["head"])

    model = base.in_terms_of(init, weights_of, frozen=kernel)
    (file,) = tmp_path.iterdir()
    ModelSaver(model, IMAGE_SHAPE, tf.float32).save(model.init(0), tmp_path / "model")
    file.unlink()
    frozen._loaded.clear()
    loaded = tf.saved_model.load(tmp_path / "model")
    x = np.random.default_rng(0).uniform(0, 255, (2, *IMAGE_SHAPE)).astype(np.float32)
    np.testing.assert_allclose(loaded(x), base.apply(base.init(0), x), rtol=1e-6)
    assert [variable.shape for variable in loaded.frozen.values()] == [kernel.size]
    graph = pathlib.Path(tmp_path, "model", "saved_model.pb")
    assert graph.stat().st_size < kernel.nbytes
