"""Provides an experiment all of whose parts have names."""

import tff_pfl


def experiment(method="ditto", **fields):
    """States an experiment on digits, all of whose parts have names."""
    dataset = tff_pfl.federate(
        tff_pfl.load("digits"), num_clients=8, partitioner="dirichlet", seed=0
    )
    model = tff_pfl.models.build("mlp", dataset.image_shape, dataset.num_classes, hidden=(4,))
    local = tff_pfl.LocalTraining(tff_pfl.OPTIMIZERS["sgd"](0.1), epochs=1, batch_size=50)
    fields = {
        "rounds": 4,
        "clients_per_round": 5,
        "evaluation": tff_pfl.Evaluation(every=2),
        **fields,
    }
    needs = "num_clients" in tff_pfl.ALGORITHMS.parameters(method)
    made = tff_pfl.make(method, model, local, **({"num_clients": 8} if needs else {}))
    return tff_pfl.Experiment(made, dataset, **fields)
