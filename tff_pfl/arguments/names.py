"""Checks the names that users type, and suggests a valid one."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

TFF_TASKS = ("cifar100", "emnist", "autoencoder", "shakespeare", "tags", "words")
"""The tasks of `tff.simulation.baselines`: images of CIFAR-100, characters of EMNIST and their
autoencoder, characters of Shakespeare, tags and words of Stack Overflow."""

_SHOWN = 40  # names in a message
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

IN_PARTS = "letters, digits, '_', '-' and '.'"
"""The characters that `is_part` accepts, for messages."""


class UnknownNameError(ValueError):
    """An error for an unknown name; the message suggests the most similar valid one."""


def unknown_name(kind: str, name: Any, valid: Iterable[str], most: int | None = None) -> str:
    """Returns the message for an unknown name: the most similar valid name, then all of them.

    Args:
        kind: The kind of the name, such as "column".
        name: The unknown name.
        valid: The valid names.
        most: The number of valid names to list, the most similar ones first; by default the first
            40 in order.
    """
    valid = list(valid)
    near = difflib.get_close_matches(str(name), valid, n=most or 1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed, shown = dict.fromkeys([*near, *valid] if most else valid), most or _SHOWN
    more = f", ... ({len(valid)} in all)" if len(valid) > shown else ""
    names = ", ".join(map(repr, list(listed)[:shown])) or "none"
    return f"Unknown {kind} {name!r}.{hint} Valid: {names}{more}."


def known_direction(quantity: str) -> int | None:
    """Returns 1 if more of a quantity is better, -1 if less is, and `None` if its name is unknown.

    The last words of the name tell it, such as "loss", "mae" or "auc", in letters of either case.
    A qualifier after them does not matter: "recall_at_5", "f1_macro", "auc_1", "error_in_degrees".

    Example:
        >>> from tff_pfl.arguments.names import known_direction
        >>> [known_direction(it) for it in ("test_auc", "mae", "within_half")]
        [1, -1, None]
    """
    words = re.sub(_QUALIFIERS, "", f"_{quantity.lower()}")
    if re.match(r"_neg(ative)?_(?!log_likelihood$)", words):
        return None
    if re.search(f"_({_LESS_IS_BETTER})$", words):
        return -1
    return 1 if re.search(f"^_num_|_({_MORE_IS_BETTER})$", words) else None


def is_part(name: Any) -> bool:
    """Returns whether a name may be part of a metric's name, such as `train/server/NAME`.

    Valid names consist of `IN_PARTS`. Letters are ASCII, as in TensorFlow's names.
    """
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None


def parts_of_choice(
    choice: str, *, optional: str | None = None, **valid: Iterable[str]
) -> list[str]:
    """Splits a choice such as "cifar10,25,pgfed" into its parts.

    Args:
        choice: The parts, separated by commas.
        optional: The name of an optional last part.
        **valid: The name of each part, in order, with its valid values.

    Raises:
        UnknownNameError: The number of parts is wrong, or a part is not valid.
    """
    parts = choice.split(",")
    valid = {kind: list(names) for kind, names in valid.items()}
    if len(parts) not in (len(valid), len(valid) + (optional is not None)):
        form = ",".join(valid) + (f"[,{optional}]" if optional else "")
        listed = "".join(f"\n  {kind}: {', '.join(names)}" for kind, names in valid.items())
        raise UnknownNameError(f"After the colon comes {form}, found {choice!r}.{listed}")
    for part, (kind, names) in zip(parts, valid.items(), strict=False):
        check_names(kind, [part], names)
    return parts


def check_names(
    kind: str,
    names: Iterable[str],
    valid: Iterable[str],
    *,
    error: type[Exception] = UnknownNameError,
    tip: str = "",
) -> None:
    """Raises `error`, with the message of `unknown_name` and `tip`, for the first unknown name."""
    valid = list(valid)
    for name in names:
        if name not in valid:
            raise error(" ".join(filter(None, [unknown_name(kind, name, valid), tip])))
