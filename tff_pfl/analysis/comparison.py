"""Shows the runs of several methods as a table, as data frames and as figures."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from tff_pfl.analysis import curves, frames, paired
from tff_pfl.analysis.metric_text import EVALUATIONS
from tff_pfl.analysis.results import method_table
from tff_pfl.analysis.runs import Runs, read
from tff_pfl.arguments.names import check_names
from tff_pfl.evaluation import MetricName
from tff_pfl.experiment import Run

_MAIN = (
    "gain",
    "gain_low",
    "gain_high",
    "p_value",
    "p_holm",
    "hurt",
    "helped",
    "rounds",
    "epsilon",
)


class Comparison:
    """The runs of several methods, as a table, as data frames and as figures.

        compared = tff_pfl.Comparison("runs/compare")     # or what tff_pfl.compare returns
        compared.table()
        compared.plot_clients()
        compared.run("Ditto").export("deployed")          # see `Run`

    Arguments `column` name a quantity as "MODEL/POOL/QUANTITY", such as "global/local_test/loss",
    or as "loss" for each client's own model. By default it is the main one. Arguments `baseline`
    are labels, by default the baseline of the runs. Arguments `evaluation` name one of
    `summary.json`: "final", after the last round, or "best_on_validation", "best_on_test" or
    "late_mean".

    Attributes:
        runs: The runs by labels. All functions of `tff_pfl.analysis` that read runs take them.
    """

    def __init__(self, runs: Any, trained: Mapping[tuple[str, int], Run] = {}):
        """Finds the finished runs.

        Args:
            runs: The runs, or what names them; see `read`.
            trained: The runs of a call of `compare` by label and seed, which `run` returns.
        """
        self.runs = (runs if isinstance(runs, Runs) else read(runs)).finished
        self._trained = trained

    def table(
        self,
        column: str | None = None,
        *,
        baseline: str | None = None,
        evaluation: str = "final",
    ) -> pd.DataFrame:
        """Returns a row for each method, indexed by label.

        A method exactly as good as the baseline hurts about as many clients as it helps, because
        few test examples make single values noisy: compare `hurt` with `helped`. The interval and
        the p values assume independent seeds. Seeds on one partition do not show what another one
        would give; if seeds cut the same rows anew, they share most training rows, and the interval
        is too narrow. Seeds that repeat one run count once. The columns' name says when it is not
        the last evaluation that is shown, and that "best_on_test" is chosen on the examples that it
        reports.

        Returns:
            The quantity, such as `accuracy`: its mean over clients, averaged over seeds, or NaN if
            a run's mean is not finite. `std`: the standard deviation of these means over seeds.
            `median`: its median over clients, averaged over seeds. `gain`: the mean improvement of
            the same clients over the baseline, positive if they are better, for errors, too;
            `gain_low` and `gain_high`, its 95 % interval, and `p_value`, by `paired_test`;
            `p_holm`, if there are several p values: corrected for their number, by `holm`. `hurt`
            and `helped`: the shares of clients, over all seeds, that are worse and better than
            under the baseline; the rest are equal. `clients`: the number of clients with a value,
            averaged over seeds; clients without test examples have none. `seeds`: the number of
            seeds. `rounds`, if runs differ in it: their number, averaged over seeds. `bytes_up`:
            bytes that a client sends in a round. `round_seconds`: median seconds of a round.
            `epsilon`, if a method has noise: the largest of its runs, for all rounds; infinite
            without privacy.
        """
        column, baseline = self._column(column), self._baseline(baseline)
        return method_table(self.runs, column, baseline, evaluation)

    def clients(self, column: str | None = None, *, evaluation: str = "final") -> pd.DataFrame:
        """Returns the quantity of each client.

        Returns:
            A row for each client of each seed, indexed by `seed` and `client_id`, and a column for
            each method; see `client_values`.
        """
        return paired.client_values(self.runs, self._column(column), evaluation)

    def plot(self, column: str | None = None):
        """Draws the quantity against the round, with a line for each method; see `plot_curves`."""
        return curves.plot_curves(self.runs.metrics, self._column(column))

    def plot_clients(
        self,
        column: str | None = None,
        *,
        baseline: str | None = None,
        evaluation: str = "final",
    ):
        """Draws each client's quantity against that under the baseline, a panel for each method.

        Circles are clients that are not worse than under the baseline, triangles those that are:
        below the diagonal, for errors above it. Axes of errors that differ by more than a factor
        of 10 are logarithmic.
        """
        column, baseline = self._column(column), self._baseline(baseline)
        pairs = paired.against(self.clients(column, evaluation=evaluation), baseline)
        quantity = self.runs.quantities[MetricName.parse(column).quantity]
        when = EVALUATIONS[evaluation][1]
        return paired.plot_against_local(pairs, quantity, baseline, when)

    def run(self, label: str, *, seed: int | None = None) -> Run:
        """Returns the run of a label, by default of the first seed, to evaluate or export it.

        Only a comparison that `compare` returned knows its experiments.

        Raises:
            ValueError: The label or the seed does not exist, or `compare` did not return this.
        """
        if not self._trained:
            raise ValueError(
                "A comparison of folders knows no experiments. Repeat the call of "
                "tff_pfl.compare, which trains nothing again, and use what it returns."
            )
        check_names("label", [label], dict.fromkeys(label for label, _ in self._trained))
        runs = {str(number): run for (of, number), run in self._trained.items() if of == label}
        chosen = next(iter(runs)) if seed is None else str(seed)
        check_names("seed", [chosen], runs)
        return runs[chosen]

    def _column(self, column: str | None) -> str:
        of_models = self.runs.clients("final").query("model != ''")
        return frames.column_of(of_models, column)

    def _baseline(self, baseline: str | None) -> str:
        check_names("baseline", filter(None, [baseline]), self.runs.folders)
        return baseline or self.runs.baseline

    def __repr__(self) -> str:
        """Returns the main columns of the table, and notes, as text."""
        shown, notes = self._in_short()
        return "\n".join([shown.to_string(float_format=_text_of(shown), na_rep=""), *notes])

    def _repr_html_(self) -> str:
        """Returns the main columns of the table, and notes, for notebooks."""
        shown, notes = self._in_short()
        html = shown.to_html(float_format=_text_of(shown), na_rep="")
        return html + "".join(f"<p>{note}</p>" for note in notes)

    def _in_short(self) -> tuple[pd.DataFrame, list[str]]:
        table = self.table()
        main = [table.columns[0], *_MAIN]
        known = [name for name in main if name in table and table[name].notna().any()]
        notes = [f"table() has further columns: {', '.join(table.columns.drop(known))}."]
        gains = table["gain"].dropna()
        if len(gains) and not (gains > 0).any():
            notes.insert(0, f"No method is better than {self.runs.baseline} on average.")
        return table[known], notes


def _text_of(table: pd.DataFrame) -> Callable[[float], str]:
    """Returns the format of numbers: three decimals, or three digits of a small quantity."""
    return ("{:.3f}" if table.iloc[:, 0].abs().max() >= 0.1 else "{:.3g}").format
