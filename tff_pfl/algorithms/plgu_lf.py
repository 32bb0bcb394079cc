"""PLGU-LF: layer-wise sharpness-aware generalization with a global model.

Scheme I of Qu et al., "How to prevent the poor performance clients for personalized federated
learning?", CVPR 2023.

Each client trains two models together. The personal model `theta` keeps its own values in the `D`
layers that differ most from the global model. The global model is trained on perturbed weights. A
round:

    down    w
    client  xi  = scores of the layers, by how far theta_i is from w   (`sharpness.layer_scores`)
            Per = the D layers of the highest scores
            theta = theta_i on Per, w elsewhere;   w_i = w
            for each mini-batch b, in all epochs:
                g     = grad loss(theta; b)
                eps   = LWSAM(g, xi, rho)                          (`sharpness.perturbation`)
                theta <- a step along g
                w_i   <- a step along grad loss(w_i + eps; b)
            theta_i <- theta
    up      w_i - w
    server  w <- w + mean over the cohort of (w_i - w)

The personal model is `theta_i` of the last round the client took part in; a client that never took
part has the current `w`. In a client's first round, `theta_i` is the `w` it receives.

The paper leaves three choices open: where the second gradient is taken (`perturb_at`), which
gradient makes `eps` (`eps_from`), and which layers it perturbs (`perturb_layers`). The defaults
cost two gradients a step and perturb the model that is updated, by Algorithm 1, (5) and Theorem 1.

A normalisation layer counts as part of the layer it follows, which agrees with the paper's number
of layers. By itself, its few weights would give it most of the scores and most of the D places.

rho = 0: `w` is FedAvg's with uniform weights, whatever D; with D = all layers, `theta_i` is
Local's. eps_from="global", scores="equal": `w` is FedSAM's. perturb_layers="universal", D = all
layers: `w` is FedAvg's.
"""

import dataclasses

import tensorflow as tf

from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import above_or_infinite, at_least, takes, whole
from tff_pfl.local import LocalTraining, sharpness, trees
from tff_pfl.models import Model, layer_groups
from tff_pfl.templates import (
    Algorithm,
    ClientOutput,
    OwnModel,
    Weighting,
    averaging,
    last_own_model,
)


@ALGORITHMS.register("plgu_lf")
@extends(averaging)
@takes(
    rho=at_least(0),
    num_personal_layers=whole(0),
    xi_scale=at_least(0),
    norm_order=above_or_infinite(1),
)
def plgu_lf(
    model: Model,
    local: LocalTraining,
    *,
    rho: float = 0.05,
    num_personal_layers: int = 1,
    scores: str = "distance",
    xi_scale: float = 1.0,
    norm_order: float = 2.0,
    perturb_at: str = "global",
    eps_from: str = "personal",
    perturb_layers: str = "all",
    weighting: Weighting = "uniform",
    **options,
) -> Algorithm:
    """Builds the PLGU-LF algorithm.

    Args:
        model: The model, of weights `W` and `L` layers.
        local: The local training of both models; the paper has 5 epochs and batches of 50.
        rho: The radius of the perturbation; 0.05 in the paper.
        num_personal_layers: The number of personal layers, `D`; 5 of about 23 layers in the paper,
            1 or 2 for small networks.
        scores: The scores of the layers: by "distance", or "equal", 1 for all layers, which turns
            LWSAM into SAM.
        xi_scale: The sum of scores by distance: 1 in the paper; `L` gives the radius of SAM.
        norm_order: The order `p` of LWSAM's norm; `inf` is the largest entry.
        perturb_at: The weights of the gradient for `w_i`: "global" (`w_i + eps`) or "personal"
            (`theta + eps`).
        eps_from: The model whose gradient makes `eps`: "personal" (`theta`), or "global" (`w_i`),
            which costs a third gradient.
        perturb_layers: The layers that are perturbed: "all", or "universal", all outside Per.
        weighting: The weights of clients: "uniform" as in the paper, "num_examples", or a function
            of their examples; see `weighing`.
        **options: Options of `averaging`.
    """
    check_names("scores", [scores], ("distance", "equal"))
    check_names("perturb_at", [perturb_at], ("global", "personal"))
    check_names("eps_from", [eps_from], ("global", "personal"))
    check_names("perturb_layers", [perturb_layers], ("all", "universal"))
    groups = layer_groups(model)
    num_layers = max(groups) + 1
    if num_personal_layers > num_layers:
        raise ValueError(
            f"num_personal_layers must be in 0 to {num_layers}, the number of layers of "
            f"{model.name!r}, got {num_personal_layers}."
        )

    # `local` would clip both gradients as one vector; `lwsam_gradient` clips each by itself.
    unclipped = dataclasses.replace(local, clip_norm=None)

    def client_init(client_id, seed):
        weights = model.init(seed)
        return OwnModel(weights, tf.constant(0), local.optimizer_state((weights, weights)))

    def lwsam_gradient(layer_factors):
        """Returns a `gradient` for `LocalTraining.train`: the directions of both models."""

        def gradient(models, batch, carry):
            theta, shared = models
            direction, totals = model.gradient(theta, batch)
            ascent = direction if eps_from == "personal" else model.gradient(shared, batch)[0]
            eps = sharpness.perturbation(ascent, rho, layer_factors, p=norm_order)
            centre = shared if perturb_at == "global" else theta
            perturbed, _ = model.gradient(trees.add(centre, eps), batch)
            directions = direction, perturbed
            if local.clip_norm is not None:
                directions = tuple(trees.clip(d, local.clip_norm) for d in directions)
            return directions, totals, carry

        return gradient

    def client_work(weights, state, examples, context):
        own = trees.select(state.participations > 0, state.model, weights)
        xi = sharpness.layer_scores(trees.subtract(own, weights), groups)
        is_personal = sharpness.highest_layers(xi, num_personal_layers, groups)
        factors = xi_scale * xi if scores == "distance" else tf.ones_like(xi)
        if perturb_layers == "universal":
            factors = tf.where(is_personal, 0.0, factors)
        trained = unclipped.train(
            model,
            (sharpness.select_layers(is_personal, own, weights), weights),
            examples,
            context,
            optimizer_state=state.optimizer,
            gradient=lwsam_gradient(factors),
            assign=lambda models, batch, _: tuple(model.assigned(w, batch) for w in models),
        )
        theta, shared = trained.weights
        return ClientOutput(
            state=OwnModel(theta, state.participations + 1, trained.optimizer_state),
            upload=trees.subtract(shared, weights),
            metrics=trained.totals,
        )

    return averaging(
        model.init,
        client_work,
        last_own_model,
        client_init,
        global_weights=lambda weights: weights,
        weighting=weighting,
        **options,
    )
