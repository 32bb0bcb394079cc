"""States what quantities say about a model: whether more is better, and how they are written."""

import re
from typing import NamedTuple

EVALUATED_MODELS = (
    "personalized",
    "global",
    "locally_trained",
    "fine_tuned",
)
"""The models that are evaluated, with which names of metrics begin."""

# The last words of names of metrics, as patterns.
_LESS_IS_BETTER = (
    "loss|error|errors|error_rate|entropy|crossentropy|negative_log_likelihood|"
    "mse|rmse|mae|mape|smape|msle|rmsle|"
    "medae|mre|nll|logloss|log_loss|perplexity|hinge|huber|brier|brier_score|logcosh|poisson|"
    "deviance|divergence|kld|kl|nonfinite|false_positives|false_negatives|"
    "false_positive_rate|false_negative_rate|fpr|fnr|eer|ece|wer|cer|distance"
)
_MORE_IS_BETTER = (
    "accuracy|acc|auc|auroc|auprc|precision|recall|f1|f1_score|fbeta_score|f_score|fscore|r2|"
    "r2_score|iou|dice|jaccard|sensitivity|specificity|map|ap|mrr|ndcg|bleu|rouge|mcc|kappa|"
    "correlation|similarity|likelihood|true_positives|true_negatives|tpr|tnr"
)
_QUALIFIERS = r"_(at|in|no|of|micro|macro|weighted)(_.*)?$|_\d+$"


class Quantity(NamedTuple):
    """A quantity by which models are evaluated, such as an accuracy.

    Attributes:
        name: The name, a part of the names of metrics.
        better: 1 if more of it is better, -1 if less is.
        is_share: Whether tables show it in percent.
        is_partial: Whether it can be undefined for a client with examples, as the area under the
            curve is for examples of one class.
    """

    name: str
    better: int
    is_share: bool = False
    is_partial: bool = False

    @classmethod
    def named(cls, name: str) -> "Quantity":
        """Returns what a name says; more is better of unknown names, such as of counts."""
        return cls(name, known_direction(name) or 1, is_share=name == "accuracy")

    @property
    def words(self) -> str:
        """The name without underscores."""
        return self.name.replace("_", " ")


class Quantities(dict[str, Quantity]):
    """The quantities of a task by name. A quantity that nobody states is what its name says."""

    def __missing__(self, name: str) -> Quantity:
        """Returns the quantity of a name that has no entry, without adding it."""
        return Quantity.named(name)


BY_NAME = Quantities()
"""Quantities of which only the names say something."""


def known_direction(quantity: str) -> int | None:
    """Returns 1 if more of a quantity is better, -1 if less is, and `None` if its name is unknown.

    The last words of the name tell it, such as "loss", "mae" or "auc", in letters of either case.
    A qualifier after them does not matter: "recall_at_5", "f1_macro", "auc_1", "error_in_degrees".

    Example:
        >>> from tff_pfl.arguments.quantities import known_direction
        >>> [known_direction(it) for it in ("test_auc", "mae", "within_half")]
        [1, -1, None]
    """
    words = re.sub(_QUALIFIERS, "", f"_{quantity.lower()}")
    if re.match(r"_neg(ative)?_(?!log_likelihood$)", words):
        return None
    if re.search(f"_({_LESS_IS_BETTER})$", words):
        return -1
    return 1 if re.search(f"^_num_|_({_MORE_IS_BETTER})$", words) else None
