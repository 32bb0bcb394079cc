import functools
import importlib
import itertools
import pathlib
import re
import types

import ml_collections
import numpy as np
import pytest

from tests.federation import assert_equal, make_client
from tff_pfl import algorithms, evaluation, models
from tff_pfl.data import partition
from tff_pfl.experiment import (
    ConfigError,
    build_dataset,
    build_local,
    build_model,
    build_process,
    check_config,
    default_config,
    with_algorithm,
)
from tff_pfl.experiment.config import check_split
from tff_pfl.experiment.run_directory import flatten

CONFIGS = sorted(
    path.stem for path in (pathlib.Path(__file__).parents[2] / "configs").glob("[!_]*.py")
)
# What stands before the algorithm in `--config=configs/NAME.py:`.
CHOICES = {
    "fedpg": "dir,fmnist,",
    "pgfed": "cifar10,25,",
    "plgu": "cifar10,10,",
    "pfedmb": "dirichlet,15,",
}


def small(algorithm="fedavg", **data) -> ml_collections.ConfigDict:
    config = default_config(algorithm)
    config.data.num_clients = 6
    config.clients_per_round = 3
    config.model.options.hidden = (4,)
    config.data.update(data)
    return config


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
    config.model = {"name": "mlp", "options": {"hidden": (4,) * 4}}
    return config


@functools.cache
def model_of_shrunk():
    """The model of all of them, which takes longer to make than to describe a run."""
    config = shrunk("digits", "fedavg")
    return build_model(config, build_dataset(config))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_every_config_describes_a_run_of_every_algorithm(name, algorithm, monkeypatch):
    """What it is built with is seen without building it."""
    monkeypatch.setattr(algorithms, "build", lambda *args, **options: (args, options))
    config = shrunk(name, algorithm)
    config.evaluation.fine_tune_epochs = 0
    dataset = build_dataset(config)
    (built, *_), options = build_process(config, model_of_shrunk(), dataset)
    assert built == algorithm
    expected = config.algorithm.to_dict() | {"num_clients": 5, "clients_per_round": 2}
    del expected["name"]
    assert options == expected | {"seed": config.seed}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("algorithm", ["ditto", "plgu_lf"])
def test_configs_build(name, algorithm):
    config = shrunk(name, algorithm)
    dataset = build_dataset(config)
    assert build_process(config, build_model(config, dataset), dataset).next is not None


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_every_algorithm_is_built_by_a_config(algorithm):
    config = small(algorithm)
    config.model.options.hidden = (4,) * 4
    dataset = build_dataset(config)
    assert build_process(config, build_model(config, dataset), dataset).next is not None


def test_hyperparameters_are_those_of_the_builder_and_typed():
    config = default_config("ditto")
    assert config.algorithm.lambda_ == 0.1
    assert config.algorithm.personal_epochs is None
    config.algorithm.personal_epochs = 3
    with pytest.raises(TypeError):
        config.algorithm.personal_epochs = "three"
    config = with_algorithm(config, "fedper")
    config.algorithm.personal_layers = ("head",)
    assert "lambda_" not in config.algorithm


def test_local_sgd_is_what_the_config_says():
    config = default_config()
    config.local.update(epochs=3, batch_size=7, momentum=0.9, weight_decay=0.01)
    local = build_local(config)
    assert (local.epochs, local.batch_size, local.weight_decay) == (3, 7, 0.01)
    state = local.optimizer.initialize(())
    assert local.optimizer.get_hparams(state) == {"learning_rate": 0.1, "momentum": 0.9}
    config.local.optimizer = "adam"
    with pytest.raises(ConfigError, match="momentum=0.9 is of sgd.*'adam'"):
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


def changed(**changes):
    config = small()
    config.unlock()
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (config[section] if section else config)[name] = value
    return config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "Unknown config key 'round'. Did you mean 'rounds'"),
        ({"local__epoch": 3}, "Unknown config key 'epoch'. Did you mean 'epochs'"),
        ({"algorithm__lambda_": 1}, "Unknown hyper-parameter of 'fedavg' 'lambda_'.*py:fedavg"),
        ({"algorithm__name": "fedawg"}, "Unknown algorithm 'fedawg'. Did you mean 'fedavg'"),
        ({"model__name": "lennet"}, "Unknown model 'lennet'. Did you mean 'lenet'"),
        ({"local__optimizer": "sgdd"}, "Unknown optimizer 'sgdd'. Did you mean 'sgd'"),
        ({"evaluation__split": "tset"}, "Unknown split 'tset'. Did you mean 'test'"),
        ({"rounds": 0}, "config.rounds must be a whole number of at least 1, got 0"),
        ({"rounds": None}, "config.rounds is None, but must be of type int"),
        ({"local__momentum": None}, "config.local.momentum is None, but must be of type float"),
        ({"algorithm__weighting": None}, "config.algorithm.weighting is None, .* of type str"),
        (
            {"local__batch_size": 0},
            "local.batch_size must be a whole number of at least 1, got 0",
        ),
        (
            {"evaluation__every": -1},
            "evaluation.every must be a whole number of at least 0, got -1",
        ),
        (
            {"evaluation__fine_tune_epochs": -1},
            "config.evaluation.fine_tune_epochs must be a whole number of at least 0, got -1",
        ),
        ({"data__fractions": None}, "config.data.fractions is None, but must be of type tuple"),
        ({"model__options": {"hidden": None}}, "model.options.hidden is None, .* of type tuple"),
        (
            {"model__options": {"hiden": (4,)}},
            "Unknown option of model 'mlp' 'hiden'. Did",
        ),
        ({"model__name": "lenet"}, "Unknown option of model 'lenet' 'hidden'. Valid: none"),
        (
            {"evaluation__generalization": "lats"},
            "config.evaluation: Unknown generalization 'lats'. Did you mean 'last'",
        ),
        ({"attack__factors": 3.0}, "Unknown config key 'factors'. Did you mean 'factor'"),
    ],
)
def test_wrong_configs(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_config(changed(**changes))


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


def test_the_advice_to_choose_another_config_is_taken_by_it():
    for algorithm in algorithms.ALGORITHMS:
        config = default_config(algorithm)
        with config.unlocked():
            config.algorithm.whatever = 1
        with pytest.raises(ConfigError) as raised:
            check_config(config)
        (name, choice) = re.search(r"--config=configs/(\w+).py:(\w+)", str(raised.value)).groups()
        chosen = importlib.import_module(f"configs.{name}").get_config(choice)
        assert chosen.algorithm.name == algorithm


def test_attackers_that_are_no_clients():
    config = small()
    config.attack.client_ids = (0, -1, 5, 6)
    message = r"config.attack.client_ids has \[-1, 6\], but clients are 0 to 5"
    with pytest.raises(ConfigError, match=message):
        build_dataset(config)


def test_attackers_are_those_of_the_config():
    config = small()
    config.attack.update(client_ids=(2, 4), factor=float("nan"))
    dataset = build_dataset(config)
    process = build_process(config, build_model(config, dataset), dataset)
    clients = [make_client(process, i, dataset.examples(i)) for i in range(6)]
    assert process.next(process.initialize(), clients).metrics["train"]["num_nonfinite"] == 2


@pytest.mark.parametrize("learning_rate", [None, 0.02])
def test_models_are_fine_tuned_before_evaluation_as_the_config_says(learning_rate):
    config = small()
    config.seed = 3
    dataset = build_dataset(config)
    model = build_model(config, dataset)
    plain = build_process(config, model, dataset)
    config.evaluation.update(fine_tune_epochs=2, fine_tune_learning_rate=learning_rate)
    process = build_process(config, model, dataset)
    config.local.learning_rate = learning_rate or config.local.learning_rate
    expected = evaluation.fine_tuned(plain, model, build_local(config), epochs=2, seed=3)
    state, client = plain.initialize(), make_client(plain, 1, dataset.examples(1))
    (weights,) = process.personalize(state, [client])
    assert_equal([weights], expected.personalize(state, [client]))
    assert np.any(weights["head"]["bias"] != plain.global_weights(state)["head"]["bias"])


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
        build_process(config, build_model(config, dataset), dataset)


def test_wrong_values_of_local_training_and_model():
    config = small()
    config.local.learning_rate = -1.0
    with pytest.raises(ConfigError, match="config.local: .*learning_rate"):
        build_local(config)
