"""Fine-tuning before evaluation: the protocol of pFedMB, of which no algorithm knows."""

import collections

import numpy as np
import tensorflow_federated as tff

from tff_pfl.local import LocalSGD
from tff_pfl.local.seeds import client_seed
from tff_pfl.models import Model
from tff_pfl.ranges import takes, whole
from tff_pfl.templates import ClientContext, PersonalizedProcess

_BLOCK = -1  # in the place of an exchange's index: what is drawn is drawn for nothing else


@takes(epochs=whole(0))
def fine_tuned(
    process: PersonalizedProcess, model: Model, local: LocalSGD, *, epochs: int, seed: int = 0
) -> PersonalizedProcess:
    """The process, but each client trains its own model on its examples before it is evaluated.

    Nothing is kept of that training: rounds are those of `process`, bit for bit.

    Args:
        process: Any algorithm.
        model: Its model.
        local: How clients fine-tune, with the learning rate of the round and a new optimizer.
        epochs: Passes over the client's training examples, 0 or more.
        seed: Of the order of batches.

    Returns:
        A process whose `personalize` returns the fine-tuned weights; all else is that of `process`.
    """
    state_type, clients_type = process.next.type_signature.parameter
    inputs_type = collections.OrderedDict(
        weights=model.weights_type,
        client_id=np.int32,
        data=process.client_type.data,
        round_num=np.int32,
    )

    @tff.tensorflow.computation(tff.types.to_type(inputs_type))
    def tune(inputs):
        round_num, client_id = inputs["round_num"], inputs["client_id"]
        drawn = client_seed((seed, _BLOCK), round_num, client_id)
        context = ClientContext(round_num, client_id, drawn)
        trained = local.train(
            model, inputs["weights"], inputs["data"], context, epochs=epochs, optimizer_state=()
        )
        return trained.weights

    @tff.federated_computation(state_type, clients_type)
    def personalize(state, clients):
        inputs = collections.OrderedDict(
            weights=process.personalize(state, clients),
            client_id=clients.client_id,
            data=clients.data,
            round_num=tff.federated_broadcast(state.round_num),
        )
        return tff.federated_map(tune, tff.federated_zip(inputs))

    return process.replace(personalize_fn=personalize)
