"""PLGU-GRep: FedRep with layer-wise sharpness-aware steps (LWSAM) of the body.

Scheme II of Qu et al., "How to prevent the poor performance clients for personalized federated
learning?", CVPR 2023.

The layers of the model are split into a body `phi`, which is shared, and a head, which each client
keeps. A round:

    down    phi
    client  head_i <- LocalTraining(head_i), head_epochs, with the phi it received
            for each mini-batch b, in body_epochs, with the new head:
                g1    = grad loss(phi; b);             phi_1 = phi - eta g1                     (11)
                xi_l  ~ ||phi_1,l - phi_l|| / dim_l    (`sharpness.layer_scores`)               (10)
                g2    = grad loss(phi_1; b);           eps = LWSAM(g2, xi, rho)                 (12)
                g3    = grad loss(phi_1 + eps; b);     phi <- phi_1 - eta g3                    (13)
    up      change of phi
    server  phi <- phi + mean over the cohort of the changes

The paper prints (13) with the unperturbed gradient, which would leave `eps` without a use. The
personal model is the client's own head on the current body, for every client. Heads start from a
common initial value. There is no global model.

A step of the local training goes along `g1 + g3`. Each gradient is clipped, and has the weight
decay of the weights at which it is taken. With plain SGD this equals the two steps above.

The paper states the length of both phases twice, and differently: K epochs, or K mini-batches of
the head and one of the body. By default the head trains as long as `local` says and the body for
one epoch. head_steps=K, body_steps=1 is the other reading.

A normalisation layer shares the score of the layer it follows, as in PLGU-LF.

rho = 0: FedRep, whose body takes two steps on each batch.
"""

import dataclasses

from tff_pfl.algorithms.fedrep import fedrep
from tff_pfl.algorithms.registry import ALGORITHMS
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import above_or_infinite, at_least, takes
from tff_pfl.local import LocalTraining, sharpness, trees
from tff_pfl.models import Model, layer_groups, layer_parts
from tff_pfl.templates import Algorithm, Weighting


@ALGORITHMS.register("plgu_grep")
@extends(fedrep)
@takes(
    rho=at_least(0),
    xi_scale=at_least(0),
    norm_order=above_or_infinite(1),
)
def plgu_grep(
    model: Model,
    local: LocalTraining,
    *,
    rho: float = 0.05,
    body_epochs: int | None = 1,
    xi_scale: float = 1.0,
    norm_order: float = 2.0,
    weighting: Weighting = "uniform",
    **options,
) -> Algorithm:
    """Builds the PLGU-GRep algorithm.

    Args:
        model: The model, of weights `W`.
        local: The local training of head and body.
        rho: The radius of the perturbation; 0.05 in the paper.
        body_epochs: The epochs of the body; `None`: as in `local`.
        xi_scale: The sum of the layers' scores: 1 in the paper; the number of the body's layers
            gives the radius of SAM.
        norm_order: The order `p` of LWSAM's norm; `inf` is the largest entry.
        weighting: The weights of clients: "uniform" as in the paper, "num_examples", or a function
            of their examples; see `weighing`.
        **options: Options of `fedrep`.
    """
    parts = layer_parts(model, personal=options.get("personal_layers"))
    groups = layer_groups(model, parts.shared)
    if not parts.shared:
        raise ValueError(f"personal_layers has all layers of {model.name!r}: no body is left.")

    def lwsam_steps(body_model, context):
        rate = local.learning_rate(context.round_num)

        def gradient(body, batch, carry):
            first, totals = body_model.gradient(body, batch)
            first = local.direction(body, first)
            stepped = trees.subtract(body, trees.scale(first, rate))
            ascent, _ = body_model.gradient(stepped, batch)
            # The step is eta g1, but eta cancels in normalised scores.
            xi = xi_scale * sharpness.layer_scores(first, groups)
            eps = sharpness.perturbation(ascent, rho, xi, p=norm_order)
            last, _ = body_model.gradient(trees.add(stepped, eps), batch)
            return trees.add(first, local.direction(stepped, last)), totals, carry

        return {"gradient": gradient}

    options = {"body_epochs": body_epochs, "weighting": weighting, **options}
    options["personal_layers"] = parts.personal
    unclipped = dataclasses.replace(local, clip_norm=None, weight_decay=0.0)
    return fedrep(model, local, lwsam_steps, unclipped, **options)
