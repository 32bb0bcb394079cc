"""What a config says is what a run is made of."""

import functools
import importlib
import itertools
import pathlib
import re
import types
import unittest.mock

import ml_collections
import numpy as np
import pytest
import tensorflow as tf

from tests.experiment.config.small import run_client, small
from tests.federation import assert_equal, leaves
from tff_pfl import algorithms, data, models
from tff_pfl.data import FederatedDataset, partition
from tff_pfl.evaluation import sampled_clients
from tff_pfl.experiment import (
    ConfigError,
    build_dataset,
    build_local,
    build_model,
    build_process,
    check_config,
    default_config,
)
from tff_pfl.experiment.config import build_algorithm, check_split, complete
from tff_pfl.experiment.run_directory import flatten
from tff_pfl.testing import tiny_normalized_model

CONFIGS = sorted(
    path.stem for path in (pathlib.Path(__file__).parents[3] / "configs").glob("[!_]*.py")
)
# What stands before the algorithm in `--config=configs/NAME.py:`.
CHOICES = {
    "fedpg": "dir,fmnist,",
    "pgfed": "cifar10,25,",
    "plgu": "cifar10,10,",
    "pfedmb": "dirichlet,15,",
}


def shrunk(name, algorithm):
    """A config of `configs/`, with digits and a small network of as many layers as are personal."""
    choice = CHOICES.get(name, "") + algorithm
    config = importlib.import_module(f"configs.{name}").get_config(choice)
    assert isinstance(config, ml_collections.ConfigDict)
    check_config(config)
    assert config.algorithm.name == algorithm
    config.data.update(name="digits", num_clients=5, num_validation=0)
    config.data.dirichlet.min_examples = 1
    config.clients_per_round = 2
    if algorithm == "fedfomo":
        config.algorithm.num_models = 2
    config.model.name = "mlp"
    config.model.options = {"hidden": (4,) * 4}
    return config


@functools.cache
def model_of_shrunk():
    """The model of all of them, which takes longer to make than to describe a run."""
    config = shrunk("digits", "fedavg")
    return build_model(config, build_dataset(config))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_every_config_describes_a_run_of_every_algorithm(name, algorithm, monkeypatch):
    made = unittest.mock.Mock(wraps=algorithms.make)
    monkeypatch.setattr(algorithms, "make", made)
    config = shrunk(name, algorithm)
    model = tiny_normalized_model() if algorithm == "fedbn" else model_of_shrunk()
    assert build_algorithm(config, model, build_dataset(config)).exchanges
    ((built, *_), options) = made.call_args
    assert built == algorithm
    federation = {"num_clients": 5, "clients_per_round": 2, "largest_cohort": 2}
    expected = config.algorithm.to_dict() | federation
    del expected["name"]
    assert options == expected


def test_a_process_of_a_config():
    config = small("ditto")
    dataset = build_dataset(config)
    process = build_process(config, build_model(config, dataset), dataset)
    assert process.client_type.data.x.shape[1:] == (8, 8, 1)


def test_local_sgd_is_what_the_config_says():
    config = default_config()
    config.local.update(epochs=3, batch_size=7, momentum=0.9, weight_decay=0.01)
    local = build_local(config)
    assert (local.epochs, local.batch_size, local.weight_decay) == (3, 7, 0.01)
    state = local.optimizer.initialize(())
    assert local.optimizer.get_hparams(state) == {"learning_rate": 0.1, "momentum": 0.9}
    config.local.optimizer = "adam"
    with pytest.raises(ConfigError, match="momentum=0.9, but the optimizer 'adam' has none"):
        build_local(config)
    config.local.momentum = 0.0
    assert "Adam" in type(build_local(config).optimizer).__name__


def test_model_and_normalization():
    config = small(normalization="half")
    dataset = build_dataset(config)
    model = build_model(config, dataset)
    expected = models.build("mlp", (8, 8, 1), 10, mean=(0.5,), std=(0.5,), hidden=(4,))
    x = dataset.examples(0).x[:3]
    assert model.apply(model.init(0), x).numpy() == pytest.approx(
        expected.apply(expected.init(0), x).numpy()
    )


def test_inputs_that_are_no_bytes_are_not_divided_by_255():
    found = build_dataset(small())
    dataset = FederatedDataset(found.x.astype(np.float32), found.y, 10, found.partition, "measured")
    with pytest.raises(ConfigError, match="'unit' is of images of bytes.*'measured' are float32"):
        build_model(small(), dataset)
    model = build_model(small(normalization="none"), dataset)
    weights, x = model.init(0), dataset.examples(0).x[:3]
    of_bytes = build_model(small(), found)
    expected = of_bytes.apply(weights, x).numpy()
    assert model.apply(weights, x / 255).numpy() == pytest.approx(expected, abs=1e-5)


def test_what_does_not_fit_the_data_is_refused_in_its_section(monkeypatch):
    dataset = build_dataset(small())
    with pytest.raises(ConfigError, match="config.data: normalization='cifar' .* 3 channels"):
        build_model(small(normalization="cifar"), dataset)
    more = FederatedDataset(dataset.x, dataset.y, 11, dataset.partition)
    ten_logits = models.build("mlp", dataset.image_shape, 10)
    monkeypatch.setattr(models, "build", lambda *args, **options: ten_logits)
    with pytest.raises(ConfigError, match="config.model: .* has 10 logits, .* 11 classes"):
        build_model(small(), more)


def test_a_saved_partition_is_used(tmp_path):
    first = build_dataset(small())
    path = str(tmp_path / "partition.npz")
    first.partition.save(path)
    again = build_dataset(small(partition_file=path, partitioner="iid"))
    assert again.fingerprint == first.fingerprint


def test_no_merge_distributes_the_original_splits():
    dataset = build_dataset(small(merge=False, num_validation=200))
    assert dataset.sizes("validation").sum() == 200
    assert dataset.sizes("test").sum() == 360
    assert dataset.sizes("train").sum() == 1797 - 360 - 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "digit"}, "config.data: Unknown data set 'digit'. Did you mean 'digits'"),
        ({"partitioner": "dirichlett"}, "config.data: Unknown partitioner.*'dirichlet'"),
        ({"num_clients": 500}, "config.data: .*min_examples=10 for 500 clients"),
        ({"num_clients": 2}, "clients_per_round=3, but the federation has only 2 clients"),
        ({"normalization": "halff"}, "config.data: Unknown normalization.*'half'"),
    ],
)
def test_impossible_data(changes, message):
    config = small(**changes)
    with pytest.raises(ConfigError, match=message):
        build_model(config, build_dataset(config))


def test_a_split_without_examples():
    config = small()
    config.evaluation.split = "validation"
    with pytest.raises(ConfigError, match="no client has validation examples"):
        build_dataset(config)


KEYS = {key.rpartition(".")[2] for key in flatten(default_config().to_dict(), ".")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dirichlet": {"min_examples": 290}}, "No draw .* Lower min_examples or num_clients, or"),
        ({"dirichlet": {"min_examples": 400}}, "Lower min_examples to at most 299, or num_clients"),
        (
            {"partitioner": "classes_per_client", "classes_per_client": {"classes": 11}},
            "classes must be within 1..10",
        ),
        ({"merge": False, "num_validation": 5000}, "num_validation must be within"),
    ],
)
def test_advice_names_keys_of_the_config(changes, message, monkeypatch):
    """A user of the command line has no other arguments."""
    # Time runs: two draws are all that the search for a partition has.
    clock = types.SimpleNamespace(monotonic=itertools.count(step=6).__next__)
    monkeypatch.setattr(partition, "time", clock)
    config = small()
    config.data.update(changes)
    with pytest.raises(ConfigError, match=message) as raised:
        build_dataset(config)
    named = set(re.findall(r"[a-z]+(?:_[a-z]+)+", str(raised.value).replace("data set", "")))
    assert named <= KEYS


def test_advice_for_a_run_that_is_finished_can_be_followed():
    """`evaluate.py --split=validation` cannot change how the run's data were distributed."""
    dataset = build_dataset(small())
    with pytest.raises(ConfigError, match="no client has validation examples.*Before a run"):
        check_split(dataset, "validation")


@pytest.mark.parametrize(
    ("with_tests", "changes", "message"),
    [
        ([0], {"evaluation.clients": 1}, "clients=1, but none of those that are drawn has test ex"),
        ([5], {"new_clients.number": 1}, "no client that trains has test examples"),
        ([0], {"new_clients.number": 1}, "no new client has test examples"),
        (range(6), {"evaluation.validation": True}, "no client has validation examples"),
        ([0], {"new_clients.number": 1, "new_clients.evaluated": False}, None),
        ([3], {"evaluation.clients": 1}, None),
    ],
)
def test_those_who_are_evaluated_have_examples(monkeypatch, with_tests, changes, message):
    assert sampled_clients(0, 6, 1) == [3]
    rng = np.random.default_rng(0)

    def arrays(has_tests):
        x, y = rng.integers(256, size=(9, 2, 2, 1), dtype=np.uint8), np.arange(9) % 3
        tests = slice(None if has_tests else 0)
        return x, y, x[tests], y[tests]

    clients = [arrays(i in with_tests) for i in range(6)]
    dataset = FederatedDataset.from_client_arrays(clients, 3)
    monkeypatch.setattr(data, "federate", lambda *_, **__: dataset)
    config = small()
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    if message is None:
        assert build_dataset(config) is dataset
        return
    with pytest.raises(ConfigError, match=message):
        build_dataset(config)


@pytest.mark.parametrize("learning_rate", [None, 0.02])
def test_models_are_fine_tuned_before_evaluation_as_the_config_says(learning_rate):
    config = small()
    config.evaluation.update(fine_tune_epochs=2, fine_tune_learning_rate=learning_rate)
    config.local.learning_rate_decay = 0.5
    _, received, examples, context, model, algorithm = run_client(config)
    context = context._replace(round_num=tf.constant(3))
    if learning_rate is not None:  # in all rounds
        config.local.update(learning_rate=learning_rate, learning_rate_decay=1.0)
    expected = build_local(config).train(model, received, examples, context, epochs=2)
    assert_equal(algorithm.personalize.fine_tune(received, examples, context), expected.weights)


def test_more_classes_a_client_than_there_are():
    config = small(partitioner="classes_per_client")
    config.data.classes_per_client.classes = 11
    with pytest.raises(ConfigError, match="config.data: .*11"):
        build_dataset(config)


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        (
            "ditto",
            {"lambda_": -1.0},
            "config.algorithm: lambda_ must be .* at least 0, got -1.0",
        ),
        ("fedavg", {"weighting": "size"}, "config.algorithm: Unknown weighting 'size'"),
        ("fedper", {"personal_layers": ("haed",)}, "config.algorithm: .*Did you mean 'head'"),
    ],
)
def test_wrong_hyperparameters(algorithm, changes, message):
    config = small(algorithm)
    config.algorithm.update(changes)
    dataset = build_dataset(config)
    with pytest.raises(ConfigError, match=message):
        build_algorithm(config, build_model(config, dataset), dataset)


def test_wrong_values_of_local_training_and_model():
    config = small()
    config.local.learning_rate = -1.0
    with pytest.raises(ConfigError, match="config.local: .*learning_rate"):
        build_local(config)


def test_rates_over_rounds_and_augmentation():
    config = default_config()
    config.local.schedule.name = "step"
    config.local.augmentation.name = "crop_and_flip"
    complete(config)
    config.local.update(learning_rate=0.5, learning_rate_decay=0.5, warm_up_rounds=2)
    config.local.schedule.every = 1
    config.local.augmentation.update(padding=1, flip=False)
    check_config(config)
    local = build_local(config)
    rates = [float(local.learning_rate(tf.constant(t))) for t in range(3)]
    np.testing.assert_allclose(
        rates, [0.5 * 0.5, 0.5 * 0.5 * 0.1, 0.5 * 0.5**2 * 0.1**2], rtol=1e-5
    )
    images = tf.ones([20, 3, 3, 1])
    black = tf.reduce_sum(1 - local.augment(images, tf.constant([1, 2])), axis=[1, 2, 3])
    assert set(black.numpy()) <= {0, 3, 5} and len(set(black.numpy())) == 3
    plain = build_local(default_config())
    assert plain.augment is None
    assert float(plain.learning_rate(tf.constant(7))) == np.float32(0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": {"name": "cosin"}}, "Unknown schedule 'cosin'. Did you mean 'cosine'"),
        ({"augmentation": {"name": "flip"}}, "Unknown augmentation 'flip'. .*'crop_and_flip'"),
        ({"schedule": {"name": "step", "evry": 2}}, "'evry'. Did you mean 'every'"),
        (
            {"warm_up_rounds": -1},
            "config.local.warm_up_rounds must be a whole number of at least 0",
        ),
    ],
)
def test_rates_and_augmentations_that_there_are_not(changes, message):
    config = default_config()
    with config.unlocked():
        config.local.update(changes)
    with pytest.raises(ValueError, match=message):
        complete(config)
        check_config(config)


def test_uploads_are_compressed_as_the_config_says():
    config = small()
    complete(config, {"compression.name": "top_k"})
    assert config.compression.to_dict() == {"name": "top_k", "error_feedback": False, "share": 0.1}
    config.compression.update(share=0.01, error_feedback=True)
    config.attack.update(client_ids=(2,), factor=0.0)  # an attack is compressed as other changes
    check_config(config)
    output, *_ = run_client(config, 2)
    assert not np.any(output.upload.values)
    size = sum(leaf.size for leaf in leaves(output.state.residuals))
    assert output.upload.values.shape == (-(-size // 100),)
    config = small("fedpg")
    complete(config, {"compression.name": "half"})
    with pytest.raises(ConfigError, match="config.compression: Uploads of fedpg .* averaged by a"):
        run_client(config)


def test_segments_and_the_type_of_computation_are_the_models(monkeypatch):
    built = unittest.mock.Mock()
    monkeypatch.setattr(models, "build", built)
    config = small()
    build_model(config, build_dataset(config))
    assert {"segments": 1, "compute_type": "float32"}.items() <= built.call_args.kwargs.items()
    config.model.update(segments=3, compute_type="bfloat16")
    build_model(config, build_dataset(config))
    assert {"segments": 3, "compute_type": "bfloat16"}.items() <= built.call_args.kwargs.items()


def test_another_type_of_computation():
    config = small()
    config.model.compute_type = "float16"
    with pytest.raises(ConfigError, match="Unknown compute type 'float16'"):
        check_config(config)


def test_a_partition_that_is_not_there():
    with pytest.raises(ConfigError, match="config.data.partition_file: there is no file 'no.npz'"):
        build_dataset(small(partition_file="no.npz"))


def test_what_tracing_finds_is_said_of_its_own_key():
    config = small("fedavg")
    config.privacy.update(
        mechanism="distributed", clipping="fixed", noise_multiplier=20.0, clip_norm=0.3, bits=8
    )
    dataset = build_dataset(config)
    with pytest.raises(ConfigError, match="^config.privacy.bits=8 are too few for"):
        build_process(config, build_model(config, dataset), dataset)
