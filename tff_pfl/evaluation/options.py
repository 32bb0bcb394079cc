"""Says when and how the models of a run are evaluated."""

import dataclasses

import numpy as np

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, between, each, takes, whole

SPLITS = ("test", "validation")
GENERALIZATION = ("never", "last", "always")
FURTHER_MODELS = ("locally_trained", "fine_tuned")
_SAMPLE_STREAM = 0x5A3B1E  # Separates this draw from others with the same seed.


@takes(
    every=whole(0),
    clients=whole(0),
    clients_per_call=whole(1),
    synthetic=each(between(0, 1)),
    late_share=between(0, 1),
    fine_tune_epochs=whole(0),
    fine_tune_learning_rate=at_least(0),
)
@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The evaluations of a run: their rounds, models, examples and clients.

    Attributes:
        every: The rounds between evaluations; 0: only after the last round, which is always
            evaluated.
        split: "test" or "validation".
        validation: Whether models are also evaluated on their own clients' validation examples, if
            the split is "test".
        late_share: The share of a run's evaluations that its summary averages: the last ones, and
            at least one.
        further_models: Models that are evaluated beside each client's own and the global model:
            "locally_trained", see `tff_pfl.locally_trained`, and "fine_tuned", the client's own
            model after `fine_tune_epochs`.
        fine_tune_epochs: The epochs for which clients fine-tune their own models before these are
            evaluated; if "fine_tuned" is a further model, the models before are evaluated, too.
        fine_tune_learning_rate: The learning rate of fine-tuning in all rounds, also for new
            clients. `None`: the rate of local training in its last round.
        clients: The number of clients to evaluate, or 0 for all. The sample is drawn once (see
            `sampled_clients`) and is the same in all evaluations of all algorithms, so differences
            between them compare the same clients.
        clients_per_call: The most clients evaluated at a time, which bounds memory. Fewer are, if
            their models have more than 2^24 outputs for a batch.
        generalization: The evaluations in which models are also evaluated on the examples of other
            clients: "never", "last" or "always". This costs about `num_clients` times as much.
        synthetic: See `PooledEvaluation`.
        subsample: See `PooledEvaluation`.

    Raises:
        ValueError: A name or a number is wrong, or "fine_tuned" has no epochs.
    """

    every: int = 5
    split: str = "test"
    validation: bool = False
    late_share: float = 0.1
    further_models: tuple[str, ...] = ()
    fine_tune_epochs: int = 0
    fine_tune_learning_rate: float | None = None
    clients: int = 0
    clients_per_call: int = 25
    generalization: str = "never"
    synthetic: tuple[float, ...] = (0.5,)
    subsample: bool = False

    def __post_init__(self):
        """Checks the names."""
        object.__setattr__(self, "further_models", tuple(self.further_models))
        object.__setattr__(self, "synthetic", tuple(self.synthetic))
        check_names("split", [self.split], SPLITS)
        check_names("generalization", [self.generalization], GENERALIZATION)
        check_names("further model", self.further_models, FURTHER_MODELS)
        if "fine_tuned" in self.further_models and not self.fine_tune_epochs:
            raise ValueError(
                "further_models has 'fine_tuned', but fine_tune_epochs=0. Set it to the epochs of "
                "fine-tuning."
            )

    @property
    def fine_tunes_own_models(self) -> bool:
        """Whether each client's own model is fine-tuned, not a further model beside it."""
        return bool(self.fine_tune_epochs) and "fine_tuned" not in self.further_models


def sampled_clients(seed: int, num_clients: int, number: int) -> np.ndarray:
    """Draws the clients to evaluate, uniformly without replacement: int64 `[number]`, ascending.

    Args:
        seed: The seed of the draw.
        num_clients: The number of clients in the federation.
        number: The number of clients to evaluate, 0 or more.

    Raises:
        ValueError: `number` exceeds `num_clients`.
    """
    if number > num_clients:
        raise ValueError(
            f"clients={number} are to be evaluated, but the federation has only {num_clients} that "
            f"train. Choose 1 to {num_clients}, or 0 for all clients."
        )
    rng = np.random.default_rng([seed, _SAMPLE_STREAM])
    return np.sort(rng.choice(num_clients, number, replace=False))
