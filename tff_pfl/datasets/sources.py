"""Loads images from scikit-learn, TFDS, TFF's federated data sets or files in a folder."""

import functools
import os
import pathlib
from unittest import mock

import numpy as np
from absl import logging

from tff_pfl.arguments.names import TFF_TASKS, check_names
from tff_pfl.arguments.registry import Registry
from tff_pfl.arguments.tracebacks import with_short_tracebacks
from tff_pfl.data.labelled_images import LabelledImages
from tff_pfl.datasets.cifar_binary import CIFAR10, CIFAR100, read_cifar
from tff_pfl.datasets.image_folder import find_tiny_imagenet, read_tiny_imagenet
from tff_pfl.output.files import without_new_folders

DATASETS = Registry("data set", "data_dir")
"""Functions `(data_dir: str | None) -> LabelledImages`, whose inputs need not be images."""

_ENVIRONMENT = "TFDS_DATA_DIR"
_DOWNLOAD_RETRIES = 4  # take a few seconds

NORMALIZATIONS: dict[str, tuple[tuple[float, ...] | None, tuple[float, ...]]] = {
    # For inputs that are not images of bytes.
    "none": (None, (1.0,)),
    # FedPG, section 6.1 of the protocol: Fashion-MNIST is only scaled to [0, 1].
    "unit": ((0.0,), (1.0,)),
    # FedPG, CIFAR-10 and CIFAR-100.
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    # PGFed, all its data sets.
    "half": ((0.5,), (0.5,)),
}
"""The (mean, std) by name; see `normalization`. Add your own here."""


class DataNotFoundError(FileNotFoundError):
    """An error for a data set that is not on disk and could not be downloaded."""


@with_short_tracebacks
def load(name: str, data_dir: str | os.PathLike | None = None) -> LabelledImages:
    """Loads a data set into memory.

    * `"digits"`: scikit-learn's 1,797 handwritten digits of 8x8 pixels; needs no download. It has
      no original split: here the last 20 % of its rows (360) are the test split.
    * `"mnist"`, `"fashion_mnist"`, `"cifar10"`, `"cifar100"`: TFDS, in the order TFDS reads them.
    * `"cifar10_binary"`, `"cifar100_binary"`: the same images as `"cifar10"` and `"cifar100"`, in
      the order of the publisher's unpacked archives `cifar-10-binary.tar.gz` and
      `cifar-100-binary.tar.gz`; never downloaded. See `cifar_binary`.
    * `"emnist"`: the 62 classes of Federated EMNIST by writer, in sorted order of writer ids. A
      writer has the same number in train and test. As in TFF, 255 is the background and 0 ink.
    * `"emnist_synthetic"`: TFF's small replacement of `"emnist"` for tests: 2 writers with one
      drawing of each digit 0..9, the same in train and test (40 rows). There are 62 classes.
    * `"cifar100_natural"`: TFF's CIFAR-100 by Pachinko allocation. The 500 train clients and the
      100 test clients are different clients; test clients are numbered after train clients.
    * `"tff_cifar100"`, `"tff_emnist"`, `"tff_autoencoder"`, `"tff_shakespeare"`, `"tff_tags"`,
      `"tff_words"`: the benchmark tasks of `tff.simulation.baselines` by client, with TFF's
      preprocessing; at most 1,000 clients. With `_synthetic` after the name, the small data that
      TFF ships for tests.
    * `"tiny_imagenet"`: the 200 classes of Tiny ImageNet, numbered in sorted order of their ids,
      from the unpacked archive; never downloaded. Its 10,000 validation images (`val`) are the
      test split, since the archive's own test images have no labels. See `image_folder`.

    Example:
        >>> images = tff_pfl.load("digits")
        >>> images.x.shape, images.num_classes, images.num_train
        ((1797, 8, 8, 1), 10, 1437)

    Args:
        name: A name in `DATASETS`: a data set above, or one that you registered.
        data_dir: The folder of the data set; missing data are downloaded to it.
            * TFDS: the folder of prepared data sets. Default: the environment variable
              TFDS_DATA_DIR, then TFDS' own default.
            * `"emnist"` and `"cifar100_natural"`: TFF's cache folder. Default: TFF's own.
            * Tiny ImageNet and CIFAR's binary files: the folder tiny-imagenet-200,
              cifar-10-batches-bin or cifar-100-binary, or its parent. Default: TFDS_DATA_DIR.

    Returns:
        The images, training split first.

    Raises:
        ValueError: The name is unknown, or files of Tiny ImageNet or CIFAR are damaged or missing.
        DataNotFoundError: The data set is not on disk, and was not or cannot be downloaded.
    """
    return DATASETS[name](None if data_dir is None else os.path.expanduser(data_dir))


def normalization(name: str) -> tuple[tuple[float, ...] | None, tuple[float, ...]]:
    """Returns the (mean, std) that normalise images, from `NORMALIZATIONS`.

    Returns:
        Two tuples with one number per channel, or with a single number for all channels, for
        images scaled to [0, 1]: the model's input is `(x / 255 - mean) / std`. If the mean is
        `None`, the input is `x`.

    Raises:
        ValueError: The name is unknown.
    """
    check_names("normalization", [name], NORMALIZATIONS)
    return NORMALIZATIONS[name]


@DATASETS.register("digits")
def _digits(data_dir):
    del data_dir  # part of scikit-learn
    x, y = _digits_of_sklearn()
    return LabelledImages("digits", x.copy(), y.copy(), 10, len(x) * 4 // 5)


@functools.cache
def _digits_of_sklearn():
    """Returns images and labels, cached because scikit-learn parses a text file."""
    from sklearn import datasets

    digits = datasets.load_digits()
    x = np.rint(digits.images[..., None] * (255 / 16)).astype(np.uint8)
    return x, digits.target.astype(np.int32)


def _tfds(name, data_dir):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    builder = tfds.builder(name, data_dir=data_dir or os.environ.get(_ENVIRONMENT))
    if not builder.is_prepared():
        logging.warning("%s is not prepared in %s, downloading it.", name, builder.data_dir)
        try:
            # By default, TFDS tries ten times, for over three minutes, without a network.
            retries = mock.patch.object(downloader, "MAX_RETRIES", _DOWNLOAD_RETRIES)
            with retries, without_new_folders(pathlib.Path(builder.data_dir).parents[1]):
                builder.download_and_prepare()
        except Exception as error:  # TFDS passes on the errors of all libraries that it uses
            raise DataNotFoundError(
                f"Data set {name!r} is not prepared in {builder.data_dir}, and downloading it "
                f"failed ({type(error).__name__}: {error}). Set data_dir (config.data.data_dir) or "
                f"{_ENVIRONMENT} to a folder that holds {name}/{builder.version}, or use a machine "
                "with a network."
            ) from error
    (x_train, y_train), (x_test, y_test) = tfds.as_numpy(
        builder.as_dataset(split=["train", "test"], batch_size=-1, as_supervised=True)
    )
    return LabelledImages(
        name,
        np.concatenate([x_train, x_test]),
        np.concatenate([y_train, y_test]).astype(np.int32),
        builder.info.features["label"].num_classes,
        len(x_train),
    )


for _name in ("mnist", "fashion_mnist", "cifar10", "cifar100"):
    DATASETS.register(_name)(functools.partial(_tfds, _name))


@DATASETS.register("emnist")
def _emnist(data_dir):
    from tensorflow_federated import simulation

    fetch = functools.partial(simulation.datasets.emnist.load_data, only_digits=False)
    train, test = _fetch("emnist", fetch, data_dir)
    writers = _numbered(set(train.client_ids) | set(test.client_ids))
    return _by_client("emnist", 62, "pixels", (train, writers), (test, writers))


@DATASETS.register("emnist_synthetic")
def _emnist_synthetic(data_dir):
    del data_dir  # part of TFF
    from tensorflow_federated import simulation

    clients = simulation.datasets.emnist.get_synthetic()
    pool = (clients, _numbered(clients.client_ids))
    return _by_client("emnist_synthetic", 62, "pixels", pool, pool)


@DATASETS.register("cifar100_natural")
def _cifar100_natural(data_dir):
    from tensorflow_federated import simulation

    load_data = simulation.datasets.cifar100.load_data
    train, test = _fetch("cifar100_natural", load_data, data_dir)
    # Equal ids in the two splits are different clients.
    numbers = _numbered(train.client_ids)
    test_numbers = _numbered(test.client_ids, first=len(numbers))
    return _by_client("cifar100_natural", 100, "image", (train, numbers), (test, test_numbers))


def _tff_task(name, data_dir, *, synthetic):
    """Reads a benchmark task of TFF."""
    from tff_pfl.datasets.tff_tasks import read_task
    from tff_pfl.models.tff_tasks import tff_task

    title = f"tff_{name}" + "_synthetic" * synthetic
    if synthetic:
        return read_task(name, tff_task(name), title)

    def load(cache_dir):
        return tff_task(name, data_dir=cache_dir, synthetic=False)

    return read_task(name, _fetch(title, load, data_dir), title)


for _name in TFF_TASKS:
    for _synthetic in (False, True):
        DATASETS.register(f"tff_{_name}" + "_synthetic" * _synthetic)(
            functools.partial(_tff_task, _name, synthetic=_synthetic)
        )


@DATASETS.register("tiny_imagenet")
def _tiny_imagenet(data_dir):
    find = find_tiny_imagenet
    folder = _unpacked("tiny_imagenet", data_dir, find, "tiny-imagenet-200.zip", "wnids.txt")
    return LabelledImages("tiny_imagenet", *read_tiny_imagenet(folder))


@DATASETS.register("cifar10_binary")
def _cifar10_binary(data_dir):
    return _cifar_binary("cifar10_binary", CIFAR10, "cifar-10-binary.tar.gz", data_dir)


@DATASETS.register("cifar100_binary")
def _cifar100_binary(data_dir):
    return _cifar_binary("cifar100_binary", CIFAR100, "cifar-100-binary.tar.gz", data_dir)


def _cifar_binary(name, layout, archive, data_dir):
    folder = _unpacked(name, data_dir, layout.find, archive, layout.test)
    x, y, num_train = read_cifar(folder, layout)
    return LabelledImages(name, x, y, layout.num_classes, num_train)


def _unpacked(name, data_dir, find, archive, file):
    """Returns the folder of an unpacked archive, searched in `data_dir` or TFDS_DATA_DIR."""
    data_dir = data_dir or os.environ.get(_ENVIRONMENT)
    folder = find(data_dir) if data_dir else None
    if folder is None:
        raise DataNotFoundError(
            f"Data set {name!r} is not in {data_dir or 'any folder'}, and cannot be downloaded. "
            f"Unpack its archive, {archive}, and set data_dir (config.data.data_dir) or "
            f"{_ENVIRONMENT} to the folder that has {file}, or to its parent."
        )
    return folder


def _fetch(name, load_data, data_dir):
    """Returns TFF's (train, test) `ClientData`, and downloads them if necessary."""
    try:
        with without_new_folders(data_dir or os.path.expanduser("~/.tff")):
            return load_data(cache_dir=data_dir)
    except Exception as error:  # errors of the network, the archive or the data base
        raise DataNotFoundError(
            f"Data set {name!r} is not in {data_dir or 'the default cache folder of TFF, ~/.tff'}, "
            f"and downloading it failed ({type(error).__name__}: {error}). Set data_dir "
            "(config.data.data_dir) to a folder that holds TFF's .sqlite file, or use a machine "
            "with a network, after deleting any files that an interrupted download left there."
        ) from error


def _numbered(client_ids, first=0):
    """Returns the number of each id, in sorted order; ids of digits are sorted by their values."""
    ids = sorted(client_ids, key=lambda i: (len(i), i) if i.isdigit() else (0, i))
    return {client: number for number, client in enumerate(ids, first)}


def _by_client(name, num_classes, image_key, *pools):
    """Reads two pools of (client data, `{id: number}`), the training and the test split."""
    train, test = (_read_clients(*pool, image_key) for pool in pools)
    x, y, writer = map(np.concatenate, zip(train, test, strict=True))
    return LabelledImages(name, x, y, num_classes, len(train[1]), writer)


def _read_clients(clients, numbers, image_key):
    """Reads all clients in one `tf.data` pipeline, since thousands of small pipelines are slow."""
    import tensorflow as tf

    def convert(number, example):
        image = example[image_key]
        if image.dtype.is_floating:
            image = tf.cast(tf.round(255.0 * image), tf.uint8)
        if image.shape.rank == 2:
            image = image[..., tf.newaxis]
        return image, tf.cast(example["label"], tf.int32), number

    ids = sorted(clients.client_ids, key=numbers.get)
    order = np.array([numbers[i] for i in ids], np.int32)
    examples = tf.data.Dataset.from_tensor_slices((order, ids))
    examples = examples.flat_map(
        lambda number, client: clients.serializable_dataset_fn(client).map(
            lambda example: convert(number, example)
        )
    )
    batches = list(examples.batch(4096).as_numpy_iterator())
    return tuple(np.concatenate(column) for column in zip(*batches, strict=True))
