"""Everything that is measured of a federation's models, chosen by one set of options."""

import dataclasses
from typing import Any

import numpy as np

from tff_pfl.clients import CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.evaluation.federated import build_evaluation, evaluate_federation
from tff_pfl.evaluation.metrics import ClientMetrics
from tff_pfl.evaluation.pooled import PooledEvaluation
from tff_pfl.models import Model
from tff_pfl.names import check_names
from tff_pfl.ranges import between, each, takes, whole
from tff_pfl.templates import PersonalizedProcess

EVALUATED_SPLITS = ("test", "validation")
GENERALIZATION = ("never", "last", "always")
_SAMPLE_STREAM = 0x5A3B1E  # tells the draw of the sample from others of the same seed


def sampled_clients(seed: int, num_clients: int, number: int) -> np.ndarray:
    """Draws the clients to evaluate, uniformly without replacement: int64 `[number]`, ascending.

    Args:
        seed: The seed of the draw.
        num_clients: Clients of the federation.
        number: Clients to evaluate, 0 or more.

    Raises:
        ValueError: If there are not so many clients.
    """
    if number > num_clients:
        raise ValueError(
            f"clients={number} are to be evaluated, but the federation has only {num_clients} that "
            f"train. Choose 1 to {num_clients}, or 0 for all."
        )
    rng = np.random.default_rng([seed, _SAMPLE_STREAM])
    return np.sort(rng.choice(num_clients, number, replace=False))


@takes(
    clients=whole(0),
    clients_per_call=whole(1),
    synthetic=each(between(0, 1)),
    late_share=between(0, 1),
    seed=whole(0),
)
@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation.

    Attributes:
        split: "test" or "validation".
        validation: Whether models are also evaluated on validation examples of their own clients,
            where the split is "test".
        clients: The number of clients to evaluate; 0: all. The sample is drawn once, see
            `sampled_clients`, and is the same at all evaluations and of all algorithms: differences
            between them are those of the same clients.
        clients_per_call: Clients evaluated at a time; bounds memory.
        generalization: At which evaluations models are evaluated on the examples of other clients,
            which costs as many times more as there are clients: "never", "last", "always".
        synthetic: See `PooledEvaluation`.
        subsample: See `PooledEvaluation`.
        late_share: The share of a run's evaluations, the last ones and one at least, whose mean its
            summary has.
        seed: The seed of the draws of the sample and of other clients.
    """

    split: str = "test"
    validation: bool = False
    clients: int = 0
    clients_per_call: int = 25
    generalization: str = "never"
    synthetic: tuple[float, ...] = (0.5,)
    subsample: bool = False
    late_share: float = 0.1
    seed: int = 0

    def __post_init__(self):
        check_names("split", [self.split], EVALUATED_SPLITS)
        check_names("generalization", [self.generalization], GENERALIZATION)


class Evaluator:
    """Evaluates the clients of a federation, all of them or a sample.

    Attributes:
        client_ids: int64, those of the sample, in ascending order; `None`: all are evaluated.
    """

    def __init__(
        self,
        process: PersonalizedProcess,
        model: Model,
        dataset: FederatedDataset,
        options: EvaluationOptions,
    ):
        """Draws the sample.

        Raises:
            ValueError: If the federation has fewer clients than are to be evaluated, or none of
                those that were drawn has examples.
        """
        self.client_ids = None
        if options.clients:
            self.client_ids = sampled_clients(options.seed, dataset.num_clients, options.clients)
            if not np.any(dataset.sizes(options.split)[self.client_ids]):
                raise ValueError(
                    f"None of the clients={options.clients} that were drawn has {options.split} "
                    "examples. Evaluate more of them."
                )
        self._dataset = dataset
        self._options = options
        self._local = build_evaluation(process, model)
        self._pooled = None
        if options.generalization != "never":
            self._pooled = PooledEvaluation(
                process,
                model,
                dataset,
                split=options.split,
                synthetic=options.synthetic,
                subsample=options.subsample,
                seed=options.seed,
            )

    def __call__(
        self, server_state: Any, source: CohortDataSource, *, is_last: bool
    ) -> ClientMetrics:
        """Evaluates on clients' own examples, and on others' where that is due.

        Args:
            server_state: The process's `ServerState`.
            source: The source of the clients' states and training examples.
            is_last: Whether this is the last evaluation of a run.
        """
        clients = self.on_own_examples(server_state, source)
        return self.with_others(clients, server_state, source, is_last=is_last)

    def on_own_examples(
        self, server_state: Any, source: CohortDataSource, split: str | None = None
    ) -> ClientMetrics:
        """Evaluates on each client's own examples; see `evaluate_federation`.

        Args:
            server_state: See `__call__`.
            source: See `__call__`.
            split: Another one than that of the options.
        """
        return evaluate_federation(
            self._local,
            server_state,
            source,
            self._dataset,
            split=split or self._options.split,
            clients_per_call=self._options.clients_per_call,
            client_ids=self.client_ids,
        )

    def with_others(
        self,
        clients: ClientMetrics,
        server_state: Any,
        source: CohortDataSource,
        *,
        is_last: bool,
    ) -> ClientMetrics:
        """Adds to `clients` what is measured on others' examples, where that is due.

        Args:
            clients: The result of `on_own_examples`.
            server_state: See `__call__`.
            source: See `__call__`.
            is_last: See `__call__`.
        """
        options = self._options
        if options.generalization == "always" or (is_last and options.generalization == "last"):
            pooled = self._pooled(
                server_state,
                source,
                clients_per_call=options.clients_per_call,
                client_ids=self.client_ids,
            )
            clients = clients._replace(values={**clients.values, **pooled})
        return clients
