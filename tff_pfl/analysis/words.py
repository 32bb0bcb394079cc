"""Names of metrics in words, for the labels of pictures and tables."""

import re

from tff_pfl.data.partition_file import SPLITS
from tff_pfl.evaluation import MetricName, direction

_STATISTICS = {
    "mean": "mean over clients",
    "std": "standard deviation over clients",
    "worst_5_percent": "mean of the lowest 5 % of clients",
    "best_5_percent": "mean of the top 5 % of clients",
    "mean_margin": "half of the 95 % interval of the mean over clients",
}
_SHORT_STATISTICS = {
    "mean": "",
    "std": "standard deviation",
    "worst_5_percent": "lowest 5 %",
    "best_5_percent": "top 5 %",
    "mean_margin": "95 %: ±",
}
# Where less is better, the worst values are the top ones.
_OTHER_TAIL = {"worst_5_percent": "best_5_percent", "best_5_percent": "worst_5_percent"}
# The examples of each pool, in words: for clients' own models, and for one model of all.
_POOLS = {
    r"local": ("its own {} examples", "each client's own {} examples"),
    r"generalization": ("the {} examples of all clients",) * 2,
    r"synthetic(?P<percent>[\d.]+)": (
        "its own {} examples and those of {percent} % of the other clients",
        "the {} examples of each client and of {percent} % of the others",
    ),
    r"new_clients": ("its own {} examples", "each new client's own {} examples"),
}


def in_words(name: MetricName) -> str:
    """Returns what is measured, in words for an axis.

    `personalized/local_test/accuracy` is "accuracy of each client's own model on its own test
    examples"; a statistic follows after a comma. Parts of unknown names stay as they are, without
    their underscores.
    """
    quantity = _plain(name.quantity)
    if not name.model:
        return quantity.removeprefix("num ")
    if name.quantity == "num_nonfinite":
        quantity = "number of clients with a loss that is not finite,"
    words = f"{quantity} of {_model(name)} on {_examples(name)}"
    return ", ".join(filter(None, [words, _statistic(name, _STATISTICS)]))


def in_short(name: MetricName) -> str:
    """Returns a head of a column: the differences from the mean accuracy on own examples."""
    pool, _, split = name.pool.rpartition("_")
    parts = [_plain(name.model) or _plain(name.quantity)]
    if name.model and name.quantity != "accuracy":
        parts.append(_plain(name.quantity))
    if pool != "local" or split != "test":
        parts.append(_plain(name.pool))
    parts.append(_statistic(name, _SHORT_STATISTICS))
    return ", ".join(filter(None, parts))


def _statistic(name, words):
    statistic = name.statistic
    if direction(name.quantity) < 0:
        statistic = _OTHER_TAIL.get(statistic, statistic)
    return words.get(statistic, _plain(statistic))


def _model(name):
    if name.model == "global":
        return "the global model"
    whose = "each new client's" if name.pool.startswith("new_clients") else "each client's"
    if name.model == "personalized":
        return f"{whose} own model"
    if name.model == "locally_trained":
        return f"{whose} locally trained global model"
    if name.model == "fine_tuned_best_epoch":
        return f"{whose} fine-tuned model after the epoch that was best on these"
    return f"{whose} {_plain(name.model).replace('fine tuned', 'fine-tuned')} model"


def _examples(name):
    pool, _, split = name.pool.rpartition("_")
    for pattern, (of_own_model, of_global_model) in _POOLS.items():
        found = re.fullmatch(pattern, pool)
        if found and split in SPLITS:
            words = of_global_model if name.model == "global" else of_own_model
            return words.format(split, **found.groupdict())
    return _plain(name.pool)


def _plain(part):
    return part.replace("_", " ")
