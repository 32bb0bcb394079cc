"""Tests that experiments of named parts are written down, and made again as they were."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_pfl
from tests.marks import together
from tests.runs import train_run
from tff_pfl import attacks, privacy
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.clients.availability import ByClass
from tff_pfl.clients.selectors import PowerOfChoice
from tff_pfl.config import evaluate_program, experiment_of, export_program
from tff_pfl.config.check import config_of_run
from tff_pfl.experiment.changes import differences
from tff_pfl.experiment.recipe import NoRecipeError

AGGREGATORS, COMPRESSORS = tff_pfl.AGGREGATORS, tff_pfl.COMPRESSORS
OPTIMIZERS, SCHEDULES, TASKS = tff_pfl.OPTIMIZERS, tff_pfl.SCHEDULES, tff_pfl.TASKS
SGD = OPTIMIZERS["sgd"](0.1)


def data(partitioner="dirichlet", seed=4, **options):
    images, options = tff_pfl.load("digits"), {"num_clients": 6} | options
    return tff_pfl.federate(images, partitioner=partitioner, seed=seed, **options)


def model(**options):
    given = data().image_shape, data().num_classes
    return tff_pfl.models.build("mlp", *given, **{"hidden": (4,)} | options)


def local(optimizer=SGD, **options):
    return tff_pfl.LocalTraining(optimizer, **{"batch_size": 8} | options)


def ditto(made=None, trained=None, **options):
    return tff_pfl.make("ditto", made or model(), trained or local(), **options)


def experiment(algorithm=None, dataset=None, **fields):
    given = {"rounds": 2, "clients_per_round": 3, "seed": 5} | fields
    return tff_pfl.Experiment(algorithm or ditto(), dataset or data(), **given)


def fedavg(**options):
    return tff_pfl.make("fedavg", model(), local(), **options)


def central(**options):
    options = {"noise_multiplier": 0.1, "clients_per_round": 3, "seed": 5} | options
    return privacy.with_privacy(fedavg(), **options)


def attacked():
    return attacks.scaled_uploads(fedavg(), client_ids=(1, 2))


NAMED = {
    "options": lambda: experiment(ditto(lambda_=0.5, personal_epochs=2)),
    "model": lambda: experiment(ditto(model(hidden=(5, 3), segments=2, mean=(0.5,), std=(0.5,)))),
    "no normalization": lambda: experiment(ditto(model(mean=None))),
    "task": lambda: experiment(ditto(model(task=TASKS["classification"](top=(2,))))),
    "local training": lambda: experiment(
        ditto(None, local(epochs=None, steps=3, weight_decay=0.1, clip_norm=float("inf")))
    ),
    "optimizer, schedule and augmentation": lambda: experiment(
        ditto(
            None,
            local(
                OPTIMIZERS["adam"](0.01, beta_1=0.8),
                schedule=SCHEDULES["cosine"](rounds=9),
                augment=tff_pfl.AUGMENTATIONS["crop_and_flip"](padding=1),
            ),
        )
    ),
    "server": lambda: experiment(fedavg(server_optimizer=OPTIMIZERS["adam"](0.1))),
    "aggregator of a cohort": lambda: experiment(
        tff_pfl.with_aggregator(fedavg(), AGGREGATORS["krum"](clients_per_round=3, num_attackers=0))
    ),
    "privacy": lambda: experiment(central(clip_norm=0.2)),
    "delta": lambda: experiment(
        central(clipping="fixed"), accountant=privacy.Accountant(6, 3, 0.01)
    ),
    "distributed privacy": lambda: experiment(
        privacy.with_distributed_privacy(fedavg(), noise_multiplier=0.1, clients_per_round=3)
    ),
    "flipped labels": lambda: experiment(
        attacks.label_flip(fedavg(), num_classes=10, client_ids=(0,))
    ),
    "nobody attacks": lambda: experiment(attacks.scaled_uploads(fedavg())),
    "attack after privacy": lambda: experiment(
        attacks.scaled_uploads(central(), client_ids=(1,), factor=-2.0)
    ),
    "compression after an attack": lambda: experiment(
        tff_pfl.compressed(attacked(), COMPRESSORS["top_k"](share=0.2), error_feedback=True)
    ),
    "everybody": lambda: experiment(clients_per_round=None),
    "partition": lambda: experiment(
        None, data("classes_per_client", 1, partition_args={"classes": 3}, num_clients=5)
    ),
    "no options": lambda: experiment(None, data("iid")),
    "splits": lambda: experiment(None, data(merge=False, num_validation=200, imbalance=2.0)),
    "evaluation": lambda: experiment(
        evaluation=tff_pfl.Evaluation(every=1, further_models=("locally_trained",), clients=4)
    ),
    "participation": lambda: experiment(
        participation=tff_pfl.Participation(
            sampling="poisson",
            availability=ByClass(probabilities=(0.5, 1.0)),
            class_shares=(1, 2),
            dropout=(0.1, np.float64(0.0)),
        )
    ),
    "selector": lambda: experiment(
        participation=tff_pfl.Participation(selector=PowerOfChoice(candidates=4))
    ),
    "early stop": lambda: experiment(
        None,
        data(fractions=(0.6, 0.2, 0.2)),
        evaluation=tff_pfl.Evaluation(every=1, validation=True),
        early_stop=tff_pfl.EarlyStop(patience=2),
    ),
    "new clients": lambda: experiment(new_clients=tff_pfl.NewClients(2, fine_tune_epochs=3)),
}


def made_again(written):
    return experiment_of(config_of_run(written))


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("made", NAMED.values(), ids=NAMED)
def test_experiment_of_named_parts_is_made_again(made):
    written = made().recipe
    assert made_again(written).recipe == written


@pytest.mark.slow
@pytest.mark.parametrize("made", NAMED.values(), ids=NAMED)
def test_experiment_that_is_made_again_has_the_same_identity(made):
    first = made()
    assert differences(first.identity, made_again(first.settings).identity) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "fedbn"])
def test_each_method_is_made_again(name):
    federation = {"num_clients": 6, "clients_per_round": 3, "largest_cohort": 3}
    first = experiment(tff_pfl.make(name, model(), local(), **federation))
    assert differences(first.identity, made_again(first.settings).identity) == []


def test_modules_of_the_users_functions_are_imported():
    def own(model, local, *, strength: float = 1.0):
        return fedavg()

    registered = ALGORITHMS.register("own")(own)
    named = experiment(tff_pfl.make("own", model(), local(), strength=2.0))
    assert named.recipe["imports"] == [__name__]
    assert named.recipe["algorithm"] == {"name": "own", "strength": 2.0}
    own.__module__ = registered.__module__ = "__main__"
    in_a_script = experiment(tff_pfl.make("own", model(), local()))
    with pytest.raises(NoRecipeError, match="algorithm 'own' is registered in a script. Move it"):
        _ = in_a_script.recipe


def own_data():
    x = np.zeros([24, 8, 8, 1], np.uint8)
    return tff_pfl.federate((x, np.arange(24) % 10), num_clients=6, partitioner="iid", seed=0)


@together(
    ("made", "message"),
    [
        (
            lambda: experiment(ditto(dataclasses.replace(model(), name="own"))),
            "The model was not made by a name. tff_pfl.models.build makes one.",
        ),
        (
            lambda: experiment(dataclasses.replace(ditto(), name="own")),
            "The algorithm was not made by a name. tff_pfl.make makes one.",
        ),
        (
            lambda: experiment(ditto(None, local(tff.learning.optimizers.build_sgdm(0.1)))),
            r"optimizer of the local training was not .* tff_pfl.OPTIMIZERS\[.*\]\(0.1\) makes",
        ),
        (
            lambda: experiment(fedavg(weighting=lambda examples: 1.0)),
            "The weighting of the algorithm is '.*': no text, number or tuple",
        ),
        (lambda: experiment(None, data().of(range(6))), "The data set was not made by a name"),
        (lambda: experiment(None, own_data()), "data set 'custom' is not registered. tff_pfl.DATA"),
        (
            lambda: experiment(ditto(None, local(batch_size=4096))),
            "batch_size of the local training, 4096, is more than any client fills. Set it to 512",
        ),
        (lambda: experiment(central(seed=6)), "The noise has another seed than the run, 5"),
        (
            lambda: experiment(tff_pfl.with_aggregator(attacked(), AGGREGATORS["median"]())),
            "changed by its attack before its aggregator: a config changes aggregator, privacy",
        ),
        (
            lambda: experiment(new_clients=tff_pfl.NewClients(2, local=local(epochs=3))),
            "new clients have a local training of their own",
        ),
    ],
)
def test_part_without_a_name_is_named(made, message):
    with pytest.raises(NoRecipeError, match=message):
        _ = made().recipe
    assert made().settings["unnamed"]


@pytest.mark.thorough
def test_programs_take_a_run_of_python_as_that_of_a_config(tmp_path):
    written = experiment(ditto(lambda_=0.5))
    tff_pfl.train(written, tmp_path / "python", verbose=False)
    train_run(tmp_path / "config", config_of_run(written.recipe))
    outputs, x = [], tf.zeros([2, *data().image_shape], tf.uint8)
    for kind in ("python", "config"):
        run, output = str(tmp_path / kind), tmp_path / f"{kind}_evaluated"
        assert evaluate_program(run, str(output)) == 0
        assert export_program(run, str(tmp_path / f"{kind}_models"), clients=[1]) == 0
        (model,) = (tmp_path / f"{kind}_models").glob("*1*/saved_model.pb")
        saved = tf.saved_model.load(str(model.parent))
        outputs.append(saved(x).numpy().tobytes())
        files = tmp_path / kind / "metrics.csv", output.with_suffix(".csv")
        outputs.append([file.read_bytes() for file in files])
    assert outputs[:2] == outputs[2:]


def test_evaluation_of_a_run_says_which_part_has_no_name(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"unnamed": "The model has no name."}))
    assert evaluate_program(str(tmp_path), str(tmp_path / "evaluated")) == 1
    assert "not by names alone: The model has no name. In Python" in capsys.readouterr().err
