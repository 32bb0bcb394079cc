"""Says when and how the models of a run are evaluated."""

import numpy as np

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import among, at_least, between, each, whole
from tff_pfl.arguments.settings import NOTHING, RESULTS, setting, settings

SPLITS = ("test", "validation")
GENERALIZATION = ("never", "last", "always")
FURTHER_MODELS = ("locally_trained", "fine_tuned")
_SAMPLE_STREAM = 0x5A3B1E  # Separates this draw from others with the same seed.


@settings
class Evaluation:
    """The evaluations of a run: their rounds, models, examples and clients.

    Raises:
        ValueError: A name or a number is wrong, or "fine_tuned" has no epochs.
    """

    every: int = setting(
        "The rounds between evaluations; 0: only after the last round, which is always evaluated.",
        whole(0),
        default=5,
    )
    split: str = setting(
        'The examples to evaluate on: "test", or "validation" for tuning.',
        among(*SPLITS),
        default="test",
    )
    validation: bool = setting(
        "Whether models are also evaluated on their own clients' validation examples.",
        default=False,
        idle={"split": "validation"},
    )
    late_share: float = setting(
        "The share of a run's evaluations that its summary averages: the last ones, and at least "
        "one.",
        between(0, 1),
        default=0.1,
        changes=RESULTS,
    )
    further_models: tuple[str, ...] = setting(
        "Models that are evaluated beside each client's own and the global model: "
        '"locally_trained", the global model after local training, and "fine_tuned", the client\'s '
        "own model after fine-tuning.",
        default=(),
    )
    fine_tune_epochs: int = setting(
        "The epochs for which clients fine-tune their own models before these are evaluated; with "
        'the further model "fine_tuned", the models before are evaluated, too.',
        whole(0),
        default=0,
    )
    fine_tune_learning_rate: float | None = setting(
        "The learning rate of fine-tuning in all rounds, also for new clients; None: the rate of "
        "local training in its last round.",
        at_least(0),
        default=None,
    )
    clients: int = setting(
        "The number of clients to evaluate; 0: all. The sample is drawn once (see "
        "`sampled_clients`) and is the same in all evaluations of all algorithms, so differences "
        "between them compare the same clients.",
        whole(0),
        default=0,
    )
    clients_per_call: int = setting(
        "The most clients evaluated at a time, which bounds memory. Fewer are, if their models "
        "have more than 2^24 outputs for a batch.",
        whole(1),
        default=25,
        changes=NOTHING,
    )
    generalization: str = setting(
        "The evaluations in which models are also evaluated on the examples of other clients: "
        '"never", after the "last" round, or "always". This costs about as many times as much as '
        "there are clients.",
        among(*GENERALIZATION),
        default="never",
        changes=RESULTS,
    )
    synthetic: tuple[float, ...] = setting(
        "Shares of the other clients whose examples are added, for the accuracy on a synthetic "
        "mixture; see `PooledEvaluation`.",
        each(between(0, 1)),
        default=(0.5,),
        changes=RESULTS,
        idle={"generalization": "never"},
    )
    subsample: bool = setting(
        "Whether only as many examples of others are drawn as the client has.",
        default=False,
        changes=RESULTS,
        idle={"generalization": "never"},
    )

    def __post_init__(self):
        """Checks the further models."""
        object.__setattr__(self, "further_models", tuple(self.further_models))
        object.__setattr__(self, "synthetic", tuple(self.synthetic))
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
