"""FedBN: clients keep their normalisation layers and share the others.

Li et al., "FedBN: Federated learning on non-IID features via local batch normalization", ICLR 2021.

FedPer whose personal layers are the normalisation layers: each client keeps their scales and
shifts. A round:

    down    all but the normalisation layers
    client  (shared_i, norm_i) <- LocalTraining(shared, norm_i)                  jointly
    up      shared_i - shared
    server  shared <- shared + the mean over the cohort of (shared_i - shared)

The paper uses batch normalisation. Its clients keep the moving statistics, too, which are weights
of the normalisation layers here. Group and layer normalisation have no statistics.

The personal model is the client's own normalisation on the current shared part, for every client,
whether it took part or not. Scales and shifts start from the common initial values 1 and 0. There
is no global model.
"""

from tff_pfl.algorithms.fedper import fedper
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.local import LocalTraining
from tff_pfl.models import Model, normalization_layers
from tff_pfl.templates import Algorithm, Weighting


@ALGORITHMS.register("fedbn")
@extends(fedper, without=["personal_layers"])
def fedbn(
    model: Model,
    local: LocalTraining,
    *,
    weighting: Weighting = "uniform",
    **options,
) -> Algorithm:
    """Builds the FedBN algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training of all layers.
        weighting: The weights of clients: "uniform" as in the paper, "num_examples", or a function
            of their examples; see `weighing`.
        **options: Options of `fedper`.

    Raises:
        ValueError: The model has no normalisation layer.
    """
    norms = normalization_layers(model)
    if not norms:
        raise ValueError(
            f"fedbn keeps normalisation layers, but model {model.name!r} has none: none of its "
            f"layers {', '.join(map(repr, model.layers))} has only the weights gamma and beta, and "
            "moving statistics. Use a network with batch, group or layer normalisation, such as "
            "resnet18."
        )
    return fedper(model, local, personal_layers=norms, weighting=weighting, **options)
