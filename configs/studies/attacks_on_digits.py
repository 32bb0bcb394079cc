"""Five attacks by a fifth of the clients against six aggregators, for three methods on digits.

20 clients, of which 4 attack, 10 of them a round, 30 rounds, three seeds, with which the attackers
differ, too. The rows without an attack have the same attackers, who do as the others. Clients weigh
the same, so that attackers are a fifth of the weight. FedPG needs every upload by itself: its
server has one way to aggregate, its own. It takes one step a round, where the others take five
epochs, and has 300 rounds. The factor 100 was chosen after a look at test images of seed 0: scaled
by 10, FedAvg's mean did not suffer. So were the 300: after 30, FedPG without an attack was at 83 %.
"""

from tff_pfl.analysis import SEPARATOR, Study, Variant

_ATTACKS = {
    "none": {"attack.name": "scaled_uploads", "attack.factor": 1.0},
    "scaled by 100": {"attack.name": "scaled_uploads", "attack.factor": 100.0},
    "sign flipped": {"attack.name": "sign_flipped"},
    "noise": {"attack.name": "noise", "attack.standard_deviation": 1.0},
    "labels flipped": {"attack.name": "label_flip"},
    "inner product": {"attack.name": "inner_product", "attack.epsilon": 1.0},
}
# Of 10 clients, 3 attackers are expected at most, as are in 95 of 100 rounds.
_AGGREGATORS = {
    "mean": {"aggregator.name": "mean"},
    "robust": {"aggregator.name": "robust"},
    "trimmed mean": {"aggregator.name": "trimmed_mean", "aggregator.options.fraction": 0.3},
    "median": {"aggregator.name": "median"},
    "geometric median": {"aggregator.name": "geometric_median"},
    "multi-Krum": {"aggregator.name": "multi_krum", "aggregator.options.num_attackers": 3},
}


def get_study():
    """The study; hyper-parameters are those of `configs/digits.py` and the methods' defaults."""
    variants = {}
    for method, algorithm in (("FedAvg", "fedavg"), ("Ditto", "ditto")):
        for attack, attacks in _ATTACKS.items():
            for aggregator, aggregates in _AGGREGATORS.items():
                label = f"{method}, {attack}{SEPARATOR}{aggregator}"
                settings = {**attacks, **aggregates, "algorithm.weighting": "uniform"}
                variants[label] = Variant(f"configs/digits.py:{algorithm}", settings)
    for attack, attacks in _ATTACKS.items():
        label = f"FedPG, {attack}{SEPARATOR}its own"
        variants[label] = Variant("configs/digits.py:fedpg", {**attacks, "rounds": 300})
    return Study(
        title="Attacks on digits",
        variants=variants,
        seeds=(0, 1, 2),
        settings={"attack.fraction": 0.2},
    )
