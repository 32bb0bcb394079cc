"""Who attacks, and how, is what a config says."""

import dataclasses
import functools
import unittest.mock

import numpy as np
import pytest

from tests.experiment.config.small import algorithm_of, run_client, small
from tests.federation import leaves
from tff_pfl.attacks import ATTACKS, drawn_attackers, label_flip
from tff_pfl.experiment import ConfigError, build_dataset, build_model, check_config
from tff_pfl.experiment.config import build_algorithm, complete


def test_attackers_that_are_no_clients():
    config = small()
    config.attack.client_ids = (0, -1, 5, 6)
    message = r"config.attack.client_ids has \[-1, 6\], but clients are 0 to 5"
    with pytest.raises(ConfigError, match=message):
        build_dataset(config)


@pytest.mark.parametrize(("client_id", "attacks"), [(1, False), (2, True)])
def test_attackers_are_those_of_the_config(client_id, attacks):
    config = small()
    config.attack.update(client_ids=(2, 4), factor=float("nan"))
    output, *_ = run_client(config, client_id)
    for leaf in leaves(output.upload):
        assert np.isnan(leaf).all() == attacks


def test_a_share_of_the_clients_attacks():
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


def test_flipped_labels_are_those_of_the_data():
    config = small()
    complete(config, {"attack.name": "label_flip"})
    config.attack.client_ids = (2,)
    with unittest.mock.patch.dict(ATTACKS._registered):
        called = unittest.mock.Mock(return_value=algorithm_of("fedavg"))
        ATTACKS._registered["label_flip"] = functools.wraps(label_flip)(called)
        dataset = build_dataset(config)
        build_algorithm(config, build_model(config, dataset), dataset)
    assert called.call_args.kwargs == {"client_ids": (2,), "num_classes": 10}


def test_an_attack_of_a_users_own_and_none(monkeypatch):
    def renamed(algorithm, *, name_of: str = "nobody"):
        return dataclasses.replace(algorithm, name=name_of)

    monkeypatch.setitem(ATTACKS._registered, "renamed", renamed)
    config = small()
    complete(config, {"attack.name": "renamed"})
    assert config.attack.to_dict() == {"name": "renamed", "name_of": "nobody"}
    config.attack.name_of = "somebody"
    check_config(config)
    assert run_client(config)[-1].name == "somebody"
    complete(config, {"attack.name": ""})
    check_config(config)
    assert run_client(config)[-1].name == "fedavg"
