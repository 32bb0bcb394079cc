"""Defines a data set: noisy images of 6x6 pixels with a bright stripe, labelled by its place."""

import numpy as np

import tff_pfl

NUM_TRAIN, NUM_TEST, SIDE = 480, 120, 6


@tff_pfl.DATASETS.register("stripes")
def stripes(data_dir):
    """Returns the data for `config.data.name`; a file is read from `data_dir`."""
    del data_dir
    rng = np.random.default_rng(0)
    y = rng.integers(0, SIDE, NUM_TRAIN + NUM_TEST)
    x = rng.integers(0, 160, [len(y), SIDE, SIDE, 1])
    x[np.arange(len(y)), y] += 80
    return tff_pfl.LabelledImages(
        "stripes", x.astype(np.uint8), y.astype(np.int32), num_classes=SIDE, num_train=NUM_TRAIN
    )
