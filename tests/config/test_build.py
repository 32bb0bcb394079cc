"""Tests that runs are built from the values of their config."""

import functools
import importlib

import ml_collections
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.config.small import algorithm_of, run_client, small
from tests.federation import assert_close, leaves
from tests.marks import together
from tests.runs import ROOT
from tff_pfl import algorithms, models
from tff_pfl.attacks import drawn_attackers
from tff_pfl.config import (
    ConfigError,
    build_algorithm,
    build_dataset,
    build_local,
    build_model,
    check_config,
    complete,
    default_config,
    experiment_of,
)
from tff_pfl.config.errors import config_errors
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.capacity import fitted
from tff_pfl.templates import AGGREGATORS
from tff_pfl.templates.federation import Federation
from tff_pfl.testing import tiny_normalized_model

# Those of TFF's tasks have clients of their own, and are trained in `test_shipped_configs.py`.
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("[!_]*.py"))
CONFIGS.remove("tff_baselines")
# The text before the algorithm in `--config=configs/NAME.py:`.
CHOICES = {
    "fedpg": "dir,fmnist,",
    "pgfed": "cifar10,25,",
    "plgu": "cifar10,10,",
    "pfedmb": "dirichlet,15,",
}


def shrunk(name, algorithm):
    """Returns a config of `configs/`, with digits and a small network of enough layers."""
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
    """Builds the model of all shrunk configs once, because it takes longer than a config."""
    config = shrunk("digits", "fedavg")
    return build_model(config, build_dataset(config))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_every_config_builds_every_algorithm(name, algorithm):
    config = shrunk(name, algorithm)
    model = tiny_normalized_model() if algorithm == "fedbn" else model_of_shrunk()
    built = build_algorithm(config, model, build_dataset(config))
    assert built.exchanges and built.name == algorithm
    expected = config.algorithm.to_dict()
    del expected["name"]
    assert built.made_of.options == expected
    federation = {"num_clients": 5, "clients_per_round": 2, "largest_cohort": 2}
    needed = federation.keys() & algorithms.ALGORITHMS.parameters(algorithm)
    assert built.made_for == Federation(**{key: federation[key] for key in needed})


def test_model_has_the_task_of_the_config():
    config = default_config()
    dataset = build_dataset(config)
    config.task.name = "regression"
    complete(config)
    model = build_model(config, dataset)
    assert model.task.name == "regression"
    assert model.init(0)["head"]["bias"].shape == [1]
    config.task.name = "binary"
    complete(config)
    with pytest.raises(ConfigError, match="needs labels 0 or 1, but 'digits' has 10 classes"):
        build_model(config, dataset)
    ratings = FederatedDataset(dataset.x, dataset.y / 2, None, dataset.partition, "ratings")
    for wrong in (config, default_config()):
        with pytest.raises(ConfigError, match="^config.model: .*task '(binary|classification)'"):
            build_model(wrong, ratings)


def test_local_training_has_the_values_of_the_config():
    config = default_config()
    values = {"epochs": 3, "batch_size": 7, "weight_decay": 0.01, "steps": 5, "clip_norm": 2.0}
    values |= {"drop_remainder": True, "persist_optimizer_state": True}
    values |= {"learning_rate_decay": 0.9, "warm_up_rounds": 4}
    config.local.update(momentum=0.9, **values)
    local = build_local(config)
    assert {name: getattr(local, name) for name in values} == values
    state = local.optimizer.initialize(())
    assert local.optimizer.get_hparams(state) == {"learning_rate": 0.1, "momentum": 0.9}
    config.local.optimizer = "adam"
    assert "Adam" in type(build_local(config).optimizer).__name__


def test_batches_have_no_rows_that_no_client_fills():
    config = small()
    config.local.batch_size = 2000
    dataset = build_dataset(config)
    assert 256 < dataset.sizes().max() <= 512
    assert fitted(build_local(config), dataset).batch_size == 512


def test_model_has_the_normalization_of_the_config():
    config = small(normalization="half")
    dataset = build_dataset(config)
    model = build_model(config, dataset)
    expected = models.build("mlp", (8, 8, 1), 10, mean=(0.5,), std=(0.5,), hidden=(4,))
    x = dataset.examples(0).x[:3]
    assert model.apply(model.init(0), x).numpy() == pytest.approx(
        expected.apply(expected.init(0), x).numpy()
    )


def test_inputs_other_than_bytes_are_not_divided_by_255():
    found = build_dataset(small())
    dataset = FederatedDataset(found.x.astype(np.float32), found.y, 10, found.partition, "measured")
    with pytest.raises(ConfigError, match="'unit' divides uint8 images.*'measured' are float32"):
        build_model(small(), dataset)
    model = build_model(small(normalization="none"), dataset)
    weights, x = model.init(0), dataset.examples(0).x[:3]
    of_bytes = build_model(small(), found)
    expected = of_bytes.apply(weights, x).numpy()
    assert model.apply(weights, x / 255).numpy() == pytest.approx(expected, abs=1e-5)


def test_saved_partition_is_used(tmp_path):
    first = build_dataset(small())
    path = str(tmp_path / "partition.npz")
    first.partition.save(path)
    again = build_dataset(small(partition_file=path, partitioner="iid"))
    assert again.fingerprint == first.fingerprint


def test_splits_are_kept_without_merge():
    dataset = build_dataset(small(merge=False, num_validation=200))
    assert dataset.sizes("validation").sum() == 200
    assert dataset.sizes("test").sum() == 360
    assert dataset.sizes("train").sum() == 1797 - 360 - 200


@pytest.mark.thorough
@together(
    ("changes", "message"),
    [
        ({"data": {"name": "digit"}}, "config.data: Unknown data set 'digit'"),
        ({"data": {"num_clients": 2}}, "config.clients_per_round: A cohort of 3"),
        ({"data": {"normalization": "cifar"}}, "config.data: normalization='cifar' .* 3 channels"),
        ({"evaluation": {"split": "validation"}}, "config.evaluation: .*validation"),
        ({"new_clients": {"number": 6}}, "config.new_clients: number=6"),
        ({"new_clients": {"number": 4}}, "config.clients_per_round: A cohort of 3"),
        ({"attack": {"client_ids": (0, -1, 6)}}, r"client_ids has \[-1, 6\], .* are 0 to 5"),
        ({"model": {"compute_type": "float16"}}, "config.model: Unknown compute type"),
        ({"local": {"learning_rate": -1.0}}, "config.local: .*learning_rate"),
        ({"privacy": {"epsilon": 1e-5, "delta": 1e-9}}, "config.privacy: epsilon"),
        ({"aggregator": {"name": "mean"}, "algorithm": {"name": "local"}}, "config.aggregator: "),
        (
            {"server": {"optimizer": "sgd"}, "algorithm": {"name": "fedfomo"}},
            "config.server.optimizer='sgd', but the server of 'fedfomo' does not take steps",
        ),
    ],
)
def test_impossible_configs_are_refused(changes, message):
    config = small(changes.get("algorithm", {}).get("name", "fedavg"))
    for section, values in changes.items():
        config[section].update(values)
    with pytest.raises(ConfigError, match=message):
        experiment_of(config)


def test_local_training_has_the_schedule_and_augmentation_of_the_config():
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
    assert set(black.numpy()) == {0, 3, 5}
    plain = build_local(default_config())
    assert plain.augment is None
    assert float(plain.learning_rate(tf.constant(7))) == np.float32(0.1)


@pytest.mark.thorough
def test_uploads_are_compressed_with_the_options_of_the_config():
    config = small()
    complete(config, {"compression.name": "top_k"})
    assert config.compression.to_dict() == {"name": "top_k", "error_feedback": False, "share": 0.1}
    config.compression.update(share=0.01, error_feedback=True)
    config.attack.update(client_ids=(2,), factor=0.0)  # uploads of attackers are compressed, too
    check_config(config)
    output, *_ = run_client(config, 2)
    assert not np.any(output.upload.values)
    size = sum(leaf.size for leaf in leaves(output.state.residuals))
    assert output.upload.values.shape == (-(-size // 100),)
    config = small("fedpg")
    complete(config, {"compression.name": "half"})
    with pytest.raises(ConfigError, match="config.compression: Uploads of fedpg .* averaged by a"):
        run_client(config)


def test_model_has_the_segments_and_compute_type_of_the_config():
    @models.MODELS.register("own")
    def own(image_shape, num_classes) -> models.Model:
        return tiny_normalized_model()

    config = small()
    config.model.options = {}
    config.model.update({"name": "own", "segments": 3, "compute_type": "bfloat16"})
    with pytest.raises(ConfigError, match="config.model: segments=3 and compute_type='bfloat16'"):
        build_model(config, build_dataset(config))


@pytest.mark.thorough
def test_error_of_tracing_names_its_key():
    config = small("fedavg")
    config.privacy.update(
        mechanism="distributed", clipping="fixed", noise_multiplier=20.0, clip_norm=0.3, bits=8
    )
    message = "^config.privacy.bits=8 are too few for"
    with pytest.raises(ConfigError, match=message), config_errors(None):
        _ = experiment_of(config).process


@pytest.mark.thorough
def test_fraction_of_the_clients_attacks():
    config = small()
    complete(config, {"attack.name": "inner_product"})
    config.attack.fraction = 0.34
    config.local.epochs = 1
    check_config(config)
    attackers = drawn_attackers(0.34, 6, config.seed)
    assert len(attackers) == 2
    honest = min(set(range(6)) - set(attackers))
    for client_id, attacks in ((attackers[0], 1.0), (honest, 0.0)):
        output, *_ = run_client(config, client_id)
        assert output.upload.attacks == attacks


def test_label_flip_receives_the_classes_of_the_data():
    config = small()
    complete(config, {"attack.name": "label_flip"})
    config.attack.client_ids = (2,)
    config.local.epochs = 1
    output, received, examples, context, model, _ = run_client(config, 2)
    honest = algorithms.make("fedavg", model, build_local(config))
    flipped = examples._replace(y=9 - examples.y)
    expected = honest.exchanges[0].client_work(received, honest.client_init(2, 0), flipped, context)
    assert_close(output.upload, expected.upload)


def test_server_has_the_optimizer_of_the_config():
    assert algorithm_of("fedavg").server_init(0).optimizer == ()
    momentum = {"optimizer": "sgd", "learning_rate": 0.5, "momentum": 0.9}
    state = algorithm_of("ditto", server=momentum).server_init(0).optimizer
    assert (state["learning_rate"], state["momentum"]) == (0.5, 0.9)
    adam = {"optimizer": "adam", "options": {"beta_1": 0.7}}
    state = algorithm_of("fedper", server=adam).server_init(0).optimizer
    assert (state["learning_rate"], state["beta_1"], state["beta_2"]) == (1.0, 0.7, 0.999)


def test_algorithm_has_the_aggregator_of_the_config():
    factory, made = tff.aggregators.MeanFactory(), []

    @AGGREGATORS.register("own")
    def own(*, clients_per_round, share=0.5):
        made.append((clients_per_round, share))
        return factory

    chosen = {"name": "own", "options": {"share": 0.7}}
    (exchange,) = algorithm_of("fedavg", aggregator=chosen).exchanges
    assert exchange.aggregator is factory and made == [(3, 0.7)]


def test_largest_cohort_is_all_clients_with_poisson_sampling():
    for participation, largest in (({"sampling": "poisson"}, 6), ({"over_selection": 1.5}, 3)):
        (exchange,) = (algorithm := algorithm_of("pgfed", participation=participation)).exchanges
        server = algorithm.server_init(0)
        assert exchange.distribute(server).intercepts.shape == [largest]
        assert server.alpha.values[-1] == np.float32(1 / 3)
