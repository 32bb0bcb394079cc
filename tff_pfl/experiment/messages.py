"""Texts for the progress of a run: warnings, evaluations, and the figures beside its bar."""

from collections.abc import Mapping
from typing import Any

from tff_pfl.evaluation import MARGIN, MetricName


def warnings_of(metrics: Mapping[str, Any]) -> list[str]:
    """Returns what a user should know of a round at once, by the metrics of its process."""
    warnings = []
    for exchange, measured in _exchanges(metrics).items():
        if number := measured.get("num_nonfinite"):
            warnings.append(
                f"{exchange}: {int(number)} clients left out, for a result that is not finite, a "
                "negative weight or a number of examples that their rows cannot hold"
            )
        if measured.get("server_kept"):
            warnings.append(f"{exchange}: the server keeps its state, no sound update came")
    return warnings


def one_line(metrics: Mapping[MetricName, float]) -> str:
    """Returns the means of an evaluation."""
    parts = []
    for name, value in metrics.items():
        if name.statistic == "mean":
            margin = metrics.get(name._replace(statistic=MARGIN))
            parts.append(f"{name._replace(statistic='')} {value:.4f}")
            parts[-1] += "" if margin is None else f" ± {margin:.4f}"
    return ", ".join(parts)


def postfix(metrics: Mapping[str, Any], timings: Mapping[str, float]) -> dict[str, str]:
    """Returns the figures that matter, short enough for one line."""
    shown = {"s/round": f"{timings['round_seconds']:.2f}"}
    for quantity in ("loss", "accuracy"):
        for exchange, measured in _exchanges(metrics).items():
            if quantity in measured:
                shown[f"{exchange}/{quantity}"] = f"{float(measured[quantity]):.3f}"
                break
    return shown


def _exchanges(metrics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: value for name, value in metrics.items() if isinstance(value, Mapping)}
