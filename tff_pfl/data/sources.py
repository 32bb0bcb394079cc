"""Where images come from: scikit-learn, TFDS, TFF's natural clients, files in a folder."""

import functools
import os
from typing import NamedTuple
from unittest import mock

import numpy as np
from absl import logging

from tff_pfl.data.cifar_binary import CIFAR10, CIFAR100, read_cifar
from tff_pfl.data.image_folder import find_tiny_imagenet, read_tiny_imagenet
from tff_pfl.names import check_names
from tff_pfl.registry import Registry

DATASETS = Registry("data set", "data_dir")
"""Functions `(data_dir: str | None) -> LabelledImages`."""

_ENVIRONMENT = "TFDS_DATA_DIR"
_DOWNLOAD_RETRIES = 4  # within some seconds

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
"""(mean, std) by name; see `normalization`. Add your own here."""


class DataNotFoundError(FileNotFoundError):
    """A data set is not on disk, and could not be downloaded."""


class LabelledImages(NamedTuple):
    """A whole data set; arrays may be memory-mapped.

    Attributes:
        name: Its name, as given to `load`.
        x: uint8 `[n, height, width, channels]`, 0..255; or inputs that are no images, of another
            type or shape.
        y: int32 `[n]` class labels, 0..num_classes-1.
        num_classes: Number of classes.
        num_train: The first `num_train` rows are the original training split, the rest the test
            split.
        writer: int32 `[n]`, from 0 the natural client of each row, in both splits, whom the
            partitioner `natural` gives it to; or `None` where there is none.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    num_classes: int
    num_train: int
    writer: np.ndarray | None = None


def load(name: str, data_dir: str | os.PathLike | None = None) -> LabelledImages:
    """Loads a data set into memory.

    * `"digits"`: scikit-learn's 1,797 handwritten digits of 8x8 pixels; needs no download. It has
      no original split: here the last 20 % of its rows (360) are the test split.
    * `"mnist"`, `"fashion_mnist"`, `"cifar10"`, `"cifar100"`: TFDS, in the order TFDS reads them.
    * `"cifar10_binary"`, `"cifar100_binary"`: the same images as `"cifar10"` and `"cifar100"`, in
      the order of the publisher's binary files, `cifar-10-binary.tar.gz` and
      `cifar-100-binary.tar.gz` unpacked; never downloaded. See `cifar_binary`.
    * `"emnist"`: the 62 classes of Federated EMNIST by writer, in sorted order of writer ids; a
      writer has the same number in train and test. As in TFF, 255 is the background and 0 ink.
    * `"emnist_synthetic"`: TFF's stand-in for it in tests: 2 writers with one drawing of each
      digit 0..9, the same ones in train and test (40 rows). Labels are among 62 classes.
    * `"cifar100_natural"`: TFF's CIFAR-100 by Pachinko allocation. Train clients (500) and
      test clients (100) are different ones: test clients are numbered after the train clients.
    * `"tiny_imagenet"`: the 200 classes of Tiny ImageNet, numbered in sorted order of their ids,
      from the unpacked archive; never downloaded. Its 10,000 validation images (`val`) are the
      test split: the archive's own test images have no labels. See `image_folder`.

    Args:
        name: One of `DATASETS`; those above, and what users register.
        data_dir: Folder of prepared TFDS data sets (default: the environment variable
            TFDS_DATA_DIR, then TFDS' own default), for the federated ones TFF's cache folder
            (default: TFF's own). Missing data are downloaded to it. For Tiny ImageNet the
            folder that holds tiny-imagenet-200, or that one (default: TFDS_DATA_DIR), and likewise
            for the binary files of CIFAR cifar-10-batches-bin and cifar-100-binary.

    Returns:
        The images, training split first.

    Raises:
        ValueError: The name is unknown, or files of Tiny ImageNet or CIFAR are damaged or missing.
        DataNotFoundError: The data set is not there, and downloading it failed or is not possible.
    """
    return DATASETS[name](os.fspath(data_dir) if data_dir is not None else None)


def normalization(name: str) -> tuple[tuple[float, ...] | None, tuple[float, ...]]:
    """Returns the (mean, std) to normalise images by, from `NORMALIZATIONS`.

    Returns:
        Two tuples with one number per channel, or a single one for all channels, in units of an
        image scaled to [0, 1]: the model's input is `(x / 255 - mean) / std`. With a mean of
        `None` it is `x`.

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
    """Images and labels, from a file of text."""
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
            # TFDS tries ten times, for over three minutes, before it says that there is no network.
            with mock.patch.object(downloader, "MAX_RETRIES", _DOWNLOAD_RETRIES):
                builder.download_and_prepare()
        except Exception as error:  # TFDS lets errors of every library below it through
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
    # Equal ids in the two are different clients.
    numbers = _numbered(train.client_ids)
    test_numbers = _numbered(test.client_ids, first=len(numbers))
    return _by_client("cifar100_natural", 100, "image", (train, numbers), (test, test_numbers))


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


def _unpacked(name, data_dir, find, archive, holds):
    """Returns the folder of an unpacked archive, in `data_dir` or where TFDS has its data sets."""
    data_dir = data_dir or os.environ.get(_ENVIRONMENT)
    folder = find(data_dir) if data_dir else None
    if folder is None:
        raise DataNotFoundError(
            f"Data set {name!r} is not in {data_dir or 'any folder'}, and is not downloaded: "
            f"unpack its archive, {archive}, and set data_dir (config.data.data_dir) or "
            f"{_ENVIRONMENT} to the folder that then has {holds}, or to the one above."
        )
    return folder


def _fetch(name, load_data, data_dir):
    """Returns TFF's (train, test) `ClientData`, downloaded if needed."""
    try:
        return load_data(cache_dir=data_dir)
    except Exception as error:  # of the network, of the archive, of the data base
        raise DataNotFoundError(
            f"Data set {name!r} is not in {data_dir or 'the default cache folder of TFF, ~/.tff'}, "
            f"and downloading it failed ({type(error).__name__}: {error}). Set data_dir "
            "(config.data.data_dir) to a folder that holds TFF's .sqlite file, or use a machine "
            "with a network, after deleting what an interrupted download left there."
        ) from error


def _numbered(client_ids, first=0):
    """Numbers ids in their order; ids that are digits, in the order of their values."""
    ids = sorted(client_ids, key=lambda i: (len(i), i) if i.isdigit() else (0, i))
    return {client: number for number, client in enumerate(ids, first)}


def _by_client(name, num_classes, image_key, *pools):
    """Gathers pools of (client data, `{id: number}`): the training split, then the test split."""
    train, test = (_read_clients(*pool, image_key) for pool in pools)
    x, y, writer = map(np.concatenate, zip(train, test, strict=True))
    return LabelledImages(name, x, y, num_classes, len(train[1]), writer)


def _read_clients(clients, numbers, image_key):
    """Reads all clients in one `tf.data` pipeline: thousands of small ones are slow."""
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
