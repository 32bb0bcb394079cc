"""The columns of a table: which metric, and of which evaluation of a run."""

from collections.abc import Iterable
from typing import NamedTuple

from tff_pfl.evaluation import MetricName
from tff_pfl.names import check_names
from tff_pfl.reports.comparison import Comparison
from tff_pfl.reports.words import in_short, in_words

# Of which evaluation, by the names of `summary.json`: in short for heads, and in words.
_EVALUATIONS = {
    "final": ("", ""),
    "best_on_validation": (
        "best on validation",
        "at the evaluation that is best on validation examples",
    ),
    "best_on_test": (
        "best on test",
        "at the evaluation that is best on test examples, which is chosen on what it reports",
    ),
    "late_mean": ("late mean", "mean of the late evaluations of a run"),
}


class Column(NamedTuple):
    """A metric of an evaluation.

    Attributes:
        name: The metric.
        evaluation: Which one, by its name in `summary.json`; "final" is the last.
    """

    name: MetricName
    evaluation: str = "final"

    @property
    def head(self) -> str:
        """What differs from the mean accuracy on own examples after the last round."""
        return ", ".join(filter(None, [in_short(self.name), _EVALUATIONS[self.evaluation][0]]))

    @property
    def in_words(self) -> str:
        """What is measured, and when."""
        return ", ".join(filter(None, [in_words(self.name), _EVALUATIONS[self.evaluation][1]]))


def default_columns(comparison: Comparison) -> list[Column]:
    """Personalized and global accuracy after the last round, in the first pool that has it; else
    the losses.
    """
    names = [column.name for column in _columns(comparison) if column.evaluation == "final"]
    for quantity in ("accuracy", "loss"):
        found = {}
        for name in names:
            if (name.quantity, name.statistic) == (quantity, "mean"):
                found.setdefault(name.model, Column(name))
        if columns := [found[model] for model in ("personalized", "global") if model in found]:
            return columns
    return []


def named_columns(comparison: Comparison, texts: Iterable[str]) -> list[Column]:
    """The columns of a command line, each `NAME` or `EVALUATION:NAME`.

    A name without a statistic is that of the mean, without an evaluation that of the last one.

    Raises:
        UnknownNameError: If no finished run has it, with the nearest one.
    """
    columns = {f"{column.evaluation}:{column.name}": column for column in _columns(comparison)}
    columns |= {str(c.name): c for c in columns.values() if c.evaluation == "final"}
    found = []
    for text in texts:
        full = f"{text}_mean" if f"{text}_mean" in columns else text
        check_names("column", [full], columns)
        found.append(columns[full])
    return found


def _columns(comparison):
    """All that some finished run has, each once."""
    return dict.fromkeys(
        Column(name, evaluation)
        for results in comparison.results.values()
        for run in results
        for evaluation, evaluated in run.evaluations.items()
        for name in evaluated.metrics
    )
