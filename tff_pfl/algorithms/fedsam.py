"""FedSAM: FedAvg whose clients minimise the sharpness of their losses, too.

Qu et al., "Generalized federated learning via sharpness aware minimization", ICML 2022; Caldarola
et al., "Improving generalization in federated learning by seeking flat minima", ECCV 2022. Each
step of a client, both gradients being of the same batch `b`:

    g = grad loss(w; b);    eps = rho g / ||g||;    w <- w - eta grad loss(w + eps; b)

Momentum and weight decay act on the second gradient only. Everything else is FedAvg's, and so are
its options.

rho = 0: FedAvg.
"""

import tensorflow_federated as tff

from tff_pfl.algorithms.extension import extends
from tff_pfl.algorithms.fedavg import build_fedavg
from tff_pfl.local import LocalSGD
from tff_pfl.local.sharpness import sharpness_aware_gradient
from tff_pfl.models import Model
from tff_pfl.ranges import at_least, takes
from tff_pfl.templates import PersonalizedProcess


@extends(build_fedavg)
@takes(rho=at_least(0))
def build_fedsam(
    model: Model, examples_type: tff.types.Type, local: LocalSGD, *, rho: float = 0.05, **options
) -> PersonalizedProcess:
    """Builds FedSAM.

    Args:
        model: The model, of weights `W`.
        examples_type: TFF type of a client's examples.
        local: The local training.
        rho: Radius of the perturbation; 0.05 in PLGU's comparison, 0.1 in Caldarola et al.
        **options: Those of FedAvg.
    """
    gradient = sharpness_aware_gradient(model, rho)
    return build_fedavg(
        model, examples_type, local, lambda received: {"gradient": gradient}, **options
    )
