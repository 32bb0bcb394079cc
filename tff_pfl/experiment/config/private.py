"""`config.privacy`: what is promised to clients, and the noise that it takes."""

from collections.abc import Sequence

import ml_collections

from tff_pfl.clients import Participation
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.config.sections import values_of
from tff_pfl.names import check_names
from tff_pfl.privacy import (
    CLIPPINGS,
    Accountant,
    PrivacyLoss,
    check_participation,
    default_delta,
    with_distributed_privacy,
    with_privacy,
)
from tff_pfl.templates import Algorithm

_MECHANISMS = ("central", "distributed")


def check_privacy(
    config: ml_collections.ConfigDict,
    defaults: ml_collections.ConfigDict,
    participation: Participation,
) -> None:
    """Checks what needs no data.

    Args:
        config: The whole config.
        defaults: `config.privacy` with its defaults.
        participation: Of the config.

    Raises:
        ConfigError: If what is asked for excludes each other, or does nothing.
    """
    privacy = config.privacy
    check_names("config.privacy.clipping", [privacy.clipping], CLIPPINGS, error=ConfigError)
    check_names("config.privacy.mechanism", [privacy.mechanism], _MECHANISMS, error=ConfigError)
    if privacy.epsilon is not None and privacy.noise_multiplier is not None:
        raise ConfigError(
            f"config.privacy has epsilon={privacy.epsilon} and noise_multiplier="
            f"{privacy.noise_multiplier}: one follows from the other. Set one to None."
        )
    if is_private(config):
        with values_of("participation"):
            check_participation(participation)
        if config.aggregator.name:
            raise ConfigError(
                f"config.aggregator.name={config.aggregator.name!r}, but with config.privacy it is "
                "the mean of clipped uploads with noise. Set it to ''."
            )
        if _is_distributed(config):
            _check_distributed(config)
        elif privacy.bits != defaults.bits:
            raise ConfigError(
                f"config.privacy.bits={privacy.bits}, but config.privacy.mechanism='central': its "
                "uploads are no integers. Set the mechanism to 'distributed'."
            )
        return
    for key, default in defaults.items():
        if privacy[key] != default:
            raise ConfigError(
                f"config.privacy.{key}={privacy[key]}, but there is no privacy without epsilon or "
                "noise_multiplier. Set one of these."
            )


def check_same_promise(config: ml_collections.ConfigDict, changes: Sequence[str]) -> None:
    """Checks that a run which is resumed is not to be longer than its noise was made for.

    Args:
        config: The config.
        changes: See `RunDirectory`.

    Raises:
        ConfigError: If `epsilon` is of another number of rounds.
    """
    of_rounds = [change for change in changes if change.startswith("rounds")]
    if config.privacy.epsilon is not None and of_rounds:
        raise ConfigError(
            f"config.privacy.epsilon={config.privacy.epsilon} is of all rounds, and the noise of "
            f"this run was made for another number of them ({of_rounds[0]}). Only a run with "
            "config.privacy.noise_multiplier can be made longer: its epsilon grows."
        )


def _check_distributed(config) -> None:
    """Whoever does not report takes a part of the noise away, and epsilon counts on all of it."""
    chosen = "but with config.privacy.mechanism='distributed' "
    if config.privacy.clipping != "fixed":
        raise ConfigError(
            f"config.privacy.clipping={config.privacy.clipping!r}, {chosen}the server has no noise "
            "of its own to count clipped uploads with. Set it to 'fixed', and clip_norm."
        )
    participation = config.participation
    reason = "every client of a cohort has to report, as each adds a part of the noise."
    for key, is_right, right in (
        ("sampling", participation.sampling == "fixed", "'fixed'"),
        ("dropout", not any(participation.dropout), "(0.0,)"),
        ("deadline", participation.deadline is None, "None"),
    ):
        if not is_right:
            raise ConfigError(
                f"config.participation.{key}={participation[key]!r}, {chosen}{reason} "
                f"Set it to {right}."
            )


def _is_distributed(config) -> bool:
    return config.privacy.mechanism == "distributed"


def is_private(config: ml_collections.ConfigDict) -> bool:
    """Whether anything is promised."""
    return config.privacy.epsilon is not None or config.privacy.noise_multiplier is not None


def privacy_loss(config: ml_collections.ConfigDict, num_clients: int) -> PrivacyLoss | None:
    """What the rounds of a config reveal of its clients; `None` without privacy.

    Args:
        config: The config.
        num_clients: That train.

    Raises:
        ConfigError: If no noise is enough.
    """
    if not is_private(config):
        return None
    privacy = config.privacy
    with values_of("privacy"):
        delta = default_delta(num_clients) if privacy.delta is None else privacy.delta
        accountant = Accountant(
            num_clients, config.clients_per_round, delta, config.participation.sampling
        )
        noise = privacy.noise_multiplier
        if noise is None:
            noise = accountant.noise_multiplier(privacy.epsilon, config.rounds)
        return PrivacyLoss(accountant, noise)


def made_private(
    algorithm: Algorithm, config: ml_collections.ConfigDict, num_clients: int
) -> Algorithm:
    """The algorithm with the privacy of a config, if it has any.

    Raises:
        ConfigError: If the algorithm's server needs more than a mean, or the noise is impossible.
    """
    loss = privacy_loss(config, num_clients)
    if loss is None:
        return algorithm
    options = {
        "noise_multiplier": loss.noise_multiplier,
        "clients_per_round": config.clients_per_round,
        "clip_norm": config.privacy.clip_norm,
    }
    with values_of("privacy"):
        if _is_distributed(config):
            return with_distributed_privacy(algorithm, bits=config.privacy.bits, **options)
        return with_privacy(
            algorithm,
            clipping=config.privacy.clipping,
            secure_sums=config.privacy.secure_sums,
            seed=config.seed,
            **options,
        )
