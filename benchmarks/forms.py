"""Prints a table of TFF's forms of each method: bytes of a client's messages, seconds to compile.

    PYTHONPATH=. python -m benchmarks.forms > table.md

The methods have their default configs on scikit-learn's digits; FedBN has a resnet18. "In the form"
is what a `MapReduceForm` sends: clients receive what their own message is selected from, and send
the report and the id besides the upload. Tensors with a row for each client of the last cohort
count 0.
"""

import time

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from tff_pfl import config as configs  # noqa: E402
from tff_pfl import deployment  # noqa: E402
from tff_pfl.algorithms import ALGORITHMS  # noqa: E402

HEADER = (
    *("method", "exchange", "down", "down in the form", "up", "up in the form"),
    *("MapReduceForm, s", "DistributeAggregateForm, s", "BroadcastForm, s"),
)


def rows(name):
    """Yields the table's row of each exchange of a method."""
    config = configs.default_config(name)
    if name == "fedbn":  # needs normalization layers
        config.model.name = "resnet18"
    process = configs.experiment_of(config).process
    for form in deployment.forms(process):
        seconds = [
            _seconds(lambda kind=kind, form=form: getattr(form, kind))
            for kind in ("map_reduce", "distribute_aggregate", "on_clients")
        ]
        exchange = form.exchange
        numbers = (exchange.down_bytes, form.down_bytes, exchange.up_bytes, form.up_bytes)
        yield name, form.name, *(f"{number:,}" for number in numbers), *seconds


def _seconds(compile_form) -> str:
    started = time.perf_counter()
    try:
        compile_form()
    except deployment.FormError:
        return "no form"
    return f"{time.perf_counter() - started:.2f}"


def main():
    """Prints the table."""
    print("|", " | ".join(HEADER), "|")
    print("|" + " --- |" * 2 + " ---: |" * (len(HEADER) - 2))
    for name in ALGORITHMS:
        for row in rows(name):
            print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
