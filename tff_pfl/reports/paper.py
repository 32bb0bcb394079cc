"""The numbers of papers that configs have in `config.paper`, by the metrics they are of."""

from collections.abc import Mapping

from tff_pfl.evaluation import MetricName

# FedPG's L, S (with c = 0.5), G and GM, as shares.
_FEDPG = {
    ("personalized", "local_test"): "l_acc",
    ("personalized", "synthetic50_test"): "s_acc",
    ("personalized", "generalization_test"): "g_acc",
    ("global", "generalization_test"): "gm_acc",
}


def paper_value(paper: Mapping[str, float], name: MetricName) -> float | None:
    """What a paper has for a metric, in the metric's own unit, or `None`.

    Args:
        paper: `config.paper`. `accuracy_percent`, `MODEL_accuracy_percent` and
            `MODEL_accuracy_percent_STATISTIC` are of clients' own test examples; FedPG's are
            `l_acc_mean` and so on. A paper's deviation is over seeds or clients, as it says: no
            statistic of this library is compared with it.
        name: Of the metric, with its statistic.
    """
    if name.quantity != "accuracy" or name.statistic == "std":
        return None
    model, pool, statistic = name.model, name.pool, name.statistic
    if pool == "local_test":
        keys = [f"{model}_accuracy_percent_{statistic}"]
        if statistic == "mean":
            keys.append(f"{model}_accuracy_percent")
            keys += ["accuracy_percent"] * (model == "personalized")
        for key in keys:
            if key in paper:
                return paper[key] / 100
    if statistic == "mean" and (model, pool) in _FEDPG:
        return paper.get(f"{_FEDPG[model, pool]}_mean")
    return None
