"""Tests data sources; CIFAR-10 and Fashion-MNIST only if TFDS_DATA_DIR holds them prepared."""

import os

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tensorflow_federated as tff

from tests.marks import slow
from tests.own_modules import own_modules
from tff_pfl.data.checks import check_examples
from tff_pfl.datasets import sources
from tff_pfl.datasets.sources import DataNotFoundError


def test_digits_are_loaded():
    images = sources.load("digits")
    assert images.x.shape == (1797, 8, 8, 1) and images.x.dtype == np.uint8
    assert images.y.dtype == np.int32 and images.writer is None
    assert (images.num_classes, images.num_train, images.name) == (10, 1437, "digits")
    # sklearn.datasets.load_digits().images[0, 0] is [0, 0, 5, 13, 9, 1, 0, 0], of 16:
    # np.rint(np.array([0, 0, 5, 13, 9, 1, 0, 0]) * 255 / 16)
    assert images.x[0, 0, :, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    assert images.x.max() == 255
    assert np.bincount(images.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_emnist_synthetic_is_loaded():
    images = sources.load("emnist_synthetic")
    assert images.x.shape == (40, 28, 28, 1) and images.x.dtype == np.uint8
    assert (images.num_classes, images.num_train) == (62, 20)
    assert images.y.tolist() == list(range(10)) * 4 and images.y.dtype == np.int32
    assert images.writer.tolist() == ([0] * 10 + [1] * 10) * 2
    # The background of Federated EMNIST is 1.0; its grey levels are k / 9: np.rint(255 * 7 / 9)
    assert images.x[0, 0, 0, 0] == 255
    assert images.x[0, 8, 10, 0] == 198


@pytest.mark.parametrize(
    ("name", "shape", "num_train", "mean"),
    [
        slow("cifar10", (60_000, 32, 32, 3), 50_000, (0.4914, 0.4822, 0.4465)),
        slow("fashion_mnist", (70_000, 28, 28, 1), 60_000, (0.2860,)),
    ],
)
def test_prepared_data_set_is_loaded(name, shape, num_train, mean):
    folder = os.environ.get("TFDS_DATA_DIR")
    if not folder or not tfds.builder(name, data_dir=folder).is_prepared():
        pytest.skip(f"{name} is not prepared in TFDS_DATA_DIR ({folder})")
    images = sources.load(name)
    assert images.x.shape == shape and images.x.dtype == np.uint8
    assert (images.num_classes, images.num_train) == (10, num_train)
    per_class = num_train // 10
    assert np.bincount(images.y[:num_train]).tolist() == [per_class] * 10
    assert np.bincount(images.y[num_train:]).tolist() == [1000] * 10
    means = [images.x[:num_train, ..., c].mean() / 255 for c in range(shape[-1])]
    np.testing.assert_allclose(means, mean, atol=6e-5)
    check_examples(images.x, images.y, images.num_classes)


def test_missing_data_set_raises_an_error_with_the_folder(tmp_path, monkeypatch):
    def offline(self, **unused):
        (tmp_path / "downloads" / "extracted").mkdir(parents=True)
        raise ConnectionError("no network")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", offline)
    message = rf"'cifar100' is not prepared in {tmp_path}.*no network.*config.data.data_dir.*TFDS_"
    with pytest.raises(DataNotFoundError, match=message) as info:
        sources.load("cifar100", tmp_path)
    assert isinstance(info.value.__cause__, ConnectionError)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(DataNotFoundError, match=str(tmp_path)):
        sources.load("mnist")
    assert not os.listdir(tmp_path)


def test_emnist_gives_a_writer_one_number_in_both_splits(tmp_path, monkeypatch):
    synthetic = tff.simulation.datasets.emnist.get_synthetic()
    only_second = synthetic.from_clients_and_tf_fn(
        ["synthetic2"], synthetic.serializable_dataset_fn
    )
    calls = []

    def load_data(only_digits, cache_dir):
        calls.append((only_digits, cache_dir))
        return synthetic, only_second

    monkeypatch.setattr(tff.simulation.datasets.emnist, "load_data", load_data)
    images = sources.load("emnist", tmp_path)
    assert calls == [(False, str(tmp_path))]
    assert images.writer.tolist() == [0] * 10 + [1] * 20
    assert (images.num_train, images.num_classes) == (20, 62)


def test_cifar100_natural_numbers_test_clients_after_train_clients(monkeypatch):
    def clients(labels):
        image = np.zeros((1, 32, 32, 3), np.uint8)
        return tff.simulation.datasets.TestClientData(
            {i: {"image": image, "label": np.array([y])} for i, y in labels.items()}
        )

    # Ids of digits are sorted by value: 10 comes after 2. Test client "2" is not train client "2".
    train, test = clients({"10": 50, "2": 20}), clients({"2": 99, "0": 11})
    monkeypatch.setattr(
        tff.simulation.datasets.cifar100, "load_data", lambda cache_dir: (train, test)
    )
    images = sources.load("cifar100_natural")
    assert images.y.tolist() == [20, 50, 11, 99]
    assert images.writer.tolist() == [0, 1, 2, 3]
    assert (images.num_train, images.num_classes) == (2, 100)


@pytest.mark.parametrize("name", ["emnist", "cifar100_natural"])
def test_missing_federated_data_set_raises_an_error_with_the_folder(name, tmp_path, monkeypatch):
    module = {"emnist": "emnist", "cifar100_natural": "cifar100"}[name]

    def offline(**unused):
        (tmp_path / "new" / "folder").mkdir(parents=True)
        raise OSError("no network")

    monkeypatch.setattr(getattr(tff.simulation.datasets, module), "load_data", offline)
    with pytest.raises(DataNotFoundError, match=rf"'{name}' is not in {tmp_path}.*no network"):
        sources.load(name, tmp_path)
    assert not os.listdir(tmp_path)
    with pytest.raises(DataNotFoundError, match=r"default cache folder of TFF"):
        sources.load(name)


def test_load_calls_a_users_data_set(tmp_path):
    images = sources.LabelledImages("mine", np.zeros((4, 2, 2, 1), np.uint8), np.zeros(4), 2, 3)
    folders = []

    def load_mine(data_dir):
        folders.append(data_dir)
        return images

    with own_modules(tmp_path):
        sources.DATASETS.register("mine")(load_mine)
        assert sources.load("mine") is sources.load("mine", tmp_path) is images
    assert folders == [None, str(tmp_path)]
    with pytest.raises(ValueError, match="data set 'mine'"):
        sources.load("mine")


def test_normalization_returns_mean_and_std():
    assert sources.normalization("unit") == ((0.0,), (1.0,))
    assert sources.normalization("half") == ((0.5,), (0.5,))
    mean, std = sources.normalization("cifar")
    assert mean == (0.4914, 0.4822, 0.4465) and std == (0.2023, 0.1994, 0.2010)
    with pytest.raises(ValueError, match="normalization 'cifer'"):
        sources.normalization("cifer")
