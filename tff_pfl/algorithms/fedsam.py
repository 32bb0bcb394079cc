"""FedSAM: FedAvg whose clients also minimise the sharpness of their losses.

Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022; Caldarola
et al., "Improving generalization in federated learning by seeking flat minima", ECCV 2022. Each
step of a client, with both gradients on the same batch `b`:

    g = grad loss(w; b);    eps = rho g / ||g||;    w <- w - eta grad loss(w + eps; b)

Momentum and weight decay act on the second gradient only. Everything else is as in FedAvg,
including the options.

rho = 0: FedAvg.
"""

from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, takes
from tff_pfl.local import LocalTraining
from tff_pfl.local.sharpness import sharpness_aware_gradient
from tff_pfl.models import Model
from tff_pfl.templates import Algorithm


@ALGORITHMS.register("fedsam")
@extends(fedavg)
@takes(rho=at_least(0))
def fedsam(model: Model, local: LocalTraining, *, rho: float = 0.05, **options) -> Algorithm:
    """Builds the FedSAM algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training.
        rho: The radius of the perturbation; 0.05 in PLGU's comparison, 0.1 in Caldarola et al.
        **options: Options of `fedavg`.
    """
    gradient = sharpness_aware_gradient(model, rho)
    return fedavg(model, local, lambda received: {"gradient": gradient}, **options)
