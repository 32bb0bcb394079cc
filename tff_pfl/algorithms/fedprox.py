"""FedProx: FedAvg whose clients stay near the model they received.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020. A client minimises

    f_i(w) + mu / 2 ||w - w_t||^2

where `w_t` is the model it received, which is constant while the client trains. Everything else is
as in FedAvg, including the options.

mu = 0: FedAvg.
"""

from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining, trees
from tff_pfl.models import Model
from tff_pfl.templates import Algorithm


@ALGORITHMS.register("fedprox")
@extends(fedavg)
@takes(mu=at_least(0))
def fedprox(model: Model, local: LocalTraining, *, mu: float = 0.01, **options) -> Algorithm:
    """Builds the FedProx algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training; its learning rate times `mu` should be below 1.
        mu: The pull towards the received model; the usual grid is 0.001, 0.01, 0.1, 1, and FedPG's
            comparison has 0.5.
        **options: Options of `fedavg`.
    """

    def objective(received):
        return {"reg": lambda w: trees.scale(trees.subtract(w, received), mu)}

    return fedavg(model, local, objective, **options)
