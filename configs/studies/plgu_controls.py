"""Compares PLGU with the same methods without perturbation: CIFAR-10, 3 labels, three seeds.

The setting is that of PLGU's tables with 10 of 100 clients a round, but with LeNet's 5 layers in
place of ResNet-18, 1 personal layer for PLGU-LF, and 60 rounds. A control is the same algorithm at
`rho` = 0, with the same steps, batches and hypernetworks. PLGU-LF's radius is divided among layers
by shares that add up to 1; with `xi_scale` = 5, the number of layers, it is the radius of SAM. Each
variant has the better of two learning rates, chosen on a tenth of each client's examples after 20
rounds.
"""

from tff_pfl.studies import Study, Tuning, Variant, grid

_WITHOUT = {"algorithm.rho": 0.0}
_VARIANTS = {
    "FedAvg": ("fedavg", {"algorithm.weighting": "uniform"}),
    "FedSAM": ("fedsam", {"algorithm.weighting": "uniform"}),
    "Ditto": ("ditto", {"algorithm.weighting": "uniform"}),
    "PLGU-LF": ("plgu_lf", {}),
    "PLGU-LF, xi_scale 5": ("plgu_lf", {"algorithm.xi_scale": 5.0}),
    "PLGU-LF, rho 0": ("plgu_lf", _WITHOUT),
    "FedRep": ("fedrep", {"algorithm.weighting": "uniform"}),
    "PLGU-GRep": ("plgu_grep", {}),
    "PLGU-GRep, rho 0": ("plgu_grep", _WITHOUT),
    "PLGU-GHN": ("plgu_ghn", {}),
    "PLGU-GHN, rho 0": ("plgu_ghn", _WITHOUT),
    "pFedHN, 3 hidden layers": ("pfedhn", {"algorithm.hidden_layers": 3}),
}


def get_study():
    """Returns a study with a variant for each method and control."""
    variants = {}
    for label, (method, settings) in _VARIANTS.items():
        if method == "plgu_lf":
            settings = {"algorithm.num_personal_layers": 1, **settings}
        variants[label] = Variant(f"configs/plgu.py:cifar10,10,{method}", settings)
    return Study(
        title="PLGU and controls on CIFAR-10, 3 labels a client, LeNet",
        variants=variants,
        seeds=(0, 1, 2),
        settings={"model.name": "lenet", "rounds": 60},
        tuning=Tuning(
            grid({"local.learning_rate": (0.03, 0.1)}),
            {"data.fractions": (0.73, 0.1, 0.17), "evaluation.every": 10},
            rounds=(20,),
        ),
    )
