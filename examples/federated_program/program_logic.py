"""Defines the logic of a federated program that trains a model for every client.

The logic depends on the abstract interfaces of `tff.program` alone. The program decides where
computations are executed, where clients' data and states come from, and where metrics and the
program's state go. `program.py` is such a program.

One step is not in `tff.program`: the program gives the new states of clients, `C@CLIENTS`, back to
the iterator that selected them, by its method `update`. In a simulation, states pass through the
program for that; in a deployment they would stay at the clients.
"""

from typing import NamedTuple

import tensorflow_federated as tff
from absl import logging


class UnexpectedTypeError(TypeError):
    """A computation does not have the type that the program logic states."""


class TooFewRoundsError(ValueError):
    """The saved state has more rounds than the program was asked for."""


class ProgramState(NamedTuple):
    """The state from which the program resumes after a failure.

    Attributes:
        state: The server's state after `round_num` rounds.
        round_num: The number of rounds done.
        data_iterator: The iterator of the next round's cohort, with the current client states.
    """

    state: object
    round_num: int
    data_iterator: tff.program.FederatedDataSourceIterator


async def train_personalized_models(
    *,
    initialize: tff.Computation,
    train: tff.Computation,
    train_data_source: tff.program.FederatedDataSource,
    evaluation: tff.Computation,
    evaluation_data_source: tff.program.FederatedDataSource,
    total_rounds: int,
    cohort_size: int,
    train_metrics_manager: tff.program.ReleaseManager,
    evaluation_metrics_manager: tff.program.ReleaseManager,
    model_output_manager: tff.program.ReleaseManager,
    program_state_manager: tff.program.ProgramStateManager,
) -> None:
    """Trains for some rounds, then evaluates all clients; resumes where it was stopped.

        initialize             : ( -> S@SERVER)
        train                  : (<S@SERVER, D@CLIENTS>
                                  -> <state=S@SERVER, clients=C@CLIENTS, metrics=M@SERVER>)
        train_data_source      : D@CLIENTS
        evaluation             : (<S@SERVER, E@CLIENTS> -> N@SERVER)
        evaluation_data_source : E@CLIENTS

    A round's metrics are released before the program's state is saved. A program that stops between
    the two repeats the round when it resumes, and releases the same numbers under the same key.

    Args:
        initialize: Computes the server state before the first round.
        train: Computes one round.
        train_data_source: Selects cohorts. Its iterators have a method `update`, see above.
        evaluation: Evaluates the clients' models after the last round.
        evaluation_data_source: Selects the clients to evaluate.
        total_rounds: The number of rounds, including those before a failure.
        cohort_size: The number of clients in a round.
        train_metrics_manager: Receives the metrics of each round under its number, from 1.
        evaluation_metrics_manager: Receives the metrics of the evaluation, under `total_rounds`.
        model_output_manager: Receives the last server state, under `total_rounds`.
        program_state_manager: Receives a `ProgramState` after each round.

    Raises:
        UnexpectedTypeError: A computation or a source does not have the type above.
        ValueError: The default context is not a federated context.
        TooFewRoundsError: More rounds are done than `total_rounds`.
    """
    tff.program.check_in_federated_context()
    _check_types(initialize, train, train_data_source, evaluation, evaluation_data_source)

    initial_state = await tff.program.materialize_value(initialize())
    beginning = ProgramState(initial_state, 0, train_data_source.iterator())
    saved, version = await program_state_manager.load_latest(beginning)
    state, rounds_done, iterator = beginning if saved is None else saved
    if rounds_done > total_rounds:
        raise TooFewRoundsError(
            f"{rounds_done} rounds are already done, but total_rounds is {total_rounds}."
        )
    logging.info("The program starts after round %d (version %d).", rounds_done, version)

    for round_num in range(int(rounds_done) + 1, total_rounds + 1):
        output = train(state, iterator.select(cohort_size))
        state = await tff.program.materialize_value(output.state)
        iterator.update(await tff.program.materialize_value(output.clients))
        await train_metrics_manager.release(output.metrics, key=round_num)
        program_state = ProgramState(state, round_num, iterator)
        await program_state_manager.save(program_state, version=round_num)

    metrics = evaluation(state, evaluation_data_source.iterator().select())
    await evaluation_metrics_manager.release(metrics, key=total_rounds)
    await model_output_manager.release(state, key=total_rounds)


def _check_types(initialize, train, train_data_source, evaluation, evaluation_data_source):
    state_type = initialize.type_signature.result
    _check_placement(state_type, tff.SERVER, "The result of `initialize`")
    _check_arguments(train, "train", state_type, train_data_source)
    _check_arguments(evaluation, "evaluation", state_type, evaluation_data_source)
    result = train.type_signature.result
    placements = {"state": tff.SERVER, "clients": tff.CLIENTS, "metrics": tff.SERVER}
    is_struct = isinstance(result, tff.types.StructType)
    if not is_struct or tff.structure.name_list(result) != list(placements):
        raise UnexpectedTypeError(f"`train` must return <state, clients, metrics>, found {result}.")
    for name, placement in placements.items():
        _check_placement(result[name], placement, f"`{name}` of the result of `train`")
    if not state_type.is_assignable_from(result["state"]):
        raise UnexpectedTypeError(
            f"`train` must return a state of the type of `initialize`, {state_type}, found "
            f"{result['state']}."
        )
    _check_placement(evaluation.type_signature.result, tff.SERVER, "The result of `evaluation`")


def _check_placement(found, placement, what):
    if not isinstance(found, tff.types.FederatedType) or found.placement is not placement:
        raise UnexpectedTypeError(f"{what} must be placed at {placement}, found {found}.")


def _check_arguments(computation, name, state_type, data_source):
    expected = tff.types.StructType([(None, state_type), (None, data_source.federated_type)])
    found = computation.type_signature.parameter
    if found is None or not found.is_assignable_from(expected):
        raise UnexpectedTypeError(
            f"`{name}` must take the state and clients of its source, {expected}, found {found}."
        )
