"""Says when and how the models of a run are evaluated."""

import numpy as np

from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import at_least, between, each, one_of, whole
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
        5,
        whole(0),
        "The rounds between evaluations; 0: only after the last round, which is always evaluated.",
    )
    split: str = setting(
        "test", one_of(*SPLITS), 'The examples to evaluate on: "test", or "validation" for tuning.'
    )
    validation: bool = setting(
        False,
        meaning="Whether models are also evaluated on their own clients' validation examples.",
        idle={"split": "validation"},
    )
    late_share: float = setting(
        0.1,
        between(0, 1),
        "The share of a run's evaluations that its summary averages: the last ones, and at least "
        "one.",
        changes=RESULTS,
    )
    further_models: tuple[str, ...] = setting(
        (),
        meaning="Models that are evaluated beside each client's own and the global model: "
        '"locally_trained", the global model after local training, and "fine_tuned", the client\'s '
        "own model after fine-tuning.",
    )
    fine_tune_epochs: int = setting(
        0,
        whole(0),
        "The epochs for which clients fine-tune their own models before these are evaluated; with "
        'the further model "fine_tuned", the models before are evaluated, too.',
    )
    fine_tune_learning_rate: float | None = setting(
        None,
        at_least(0),
        "The learning rate of fine-tuning in all rounds, also for new clients; None: the rate of "
        "local training in its last round.",
    )
    clients: int = setting(
        0,
        whole(0),
        "The number of clients to evaluate; 0: all. The sample is drawn once (see "
        "`sampled_clients`) and is the same in all evaluations of all algorithms, so differences "
        "between them compare the same clients.",
    )
    clients_per_call: int = setting(
        25,
        whole(1),
        "The most clients evaluated at a time, which bounds memory. Fewer are, if their models "
        "have more than 2^24 outputs for a batch.",
        changes=NOTHING,
    )
    generalization: str = setting(
        "never",
        one_of(*GENERALIZATION),
        "The evaluations in which models are also evaluated on the examples of other clients: "
        '"never", after the "last" round, or "always". This costs about as many times as much as '
        "there are clients.",
        changes=RESULTS,
    )
    synthetic: tuple[float, ...] = setting(
        (0.5,),
        each(between(0, 1)),
        "Shares of the other clients whose examples are added, for the accuracy on a synthetic "
        "mixture; see `PooledEvaluation`.",
        changes=RESULTS,
        idle={"generalization": "never"},
    )
    subsample: bool = setting(
        False,
        meaning="Whether only as many examples of others are drawn as the client has.",
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
