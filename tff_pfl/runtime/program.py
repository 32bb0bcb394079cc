"""A context for federated programs (`tff.program`) whose clients have states."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.tracing.structures import container_of, elements_of


class ProgramContext(tff.program.FederatedContext):
    """A `tff.program.NativeFederatedContext` that allows results placed at clients.

    TFF's own context refuses computations that return values placed at clients, such as `next` of
    a `PersonalizedProcess`. Here such a value is one reference. It materializes to a list with one
    value per client, in the order of the cohort, which `CohortIterator.update` takes. Values placed
    at the server are structures of references, as in TFF's context.

    Example:
        tff.framework.set_default_context(ProgramContext(create_async_cpp_context()))

        async def program(process, source, rounds):
            iterator, state = source.iterator(), process.initialize()
            for _ in range(rounds):
                output = process.next(state, iterator.select(10))
                state = output.state
                iterator.update(await tff.program.materialize_value(output.clients))
            return await tff.program.materialize_value(state)
    """

    def __init__(self, context: tff.framework.AsyncExecutionContext):
        """Makes a context that executes computations in `context`."""
        self._context = context

    def invoke(self, comp: tff.Computation, arg):
        """Starts a computation in the running event loop and returns references to its result."""

        async def run():
            if comp.type_signature.parameter is None:
                return await self._context.invoke(comp, arg)
            value = await _materialize(arg, comp.type_signature.parameter)
            return await self._context.invoke(comp, value)

        return _references(asyncio.create_task(run()), comp.type_signature.result)


def materialized(function: Callable[..., Any], *args) -> Any:
    """Calls a function that calls computations, and returns values instead of references.

    In a federated program, computations return references that only coroutines can await. There
    the function is called in a separate event loop, and the program waits until it returns. In
    any other context this is a plain call.
    """
    context = tff.framework.get_context_stack().current
    if not isinstance(context, tff.program.FederatedContext):
        return function(*args)

    async def call():
        return await tff.program.materialize_value(function(*args))

    def run():
        with tff.framework.get_context_stack().install(context):
            return asyncio.run(call())

    with concurrent.futures.ThreadPoolExecutor(1, "materialized") as thread:
        return thread.submit(run).result()


async def _materialize(value, type_signature):
    """Returns a value in which references are replaced by their values."""
    if isinstance(value, tff.program.MaterializableValueReference):
        return await value.get_value()
    if isinstance(type_signature, tff.types.FederatedType):
        if type_signature.placement is tff.CLIENTS:
            return value
        return await _materialize(value, type_signature.member)
    if not isinstance(type_signature, tff.types.StructType):
        return value
    given = elements_of(value, type_signature)
    elements = await asyncio.gather(*map(_materialize, given, type_signature))
    names = tff.structure.name_list_with_nones(type_signature)
    return tff.structure.Struct(zip(names, elements, strict=True))


def _references(result, type_signature):
    """Returns a structure of references to the result of a task or an `_Element`."""
    if isinstance(type_signature, tff.types.FederatedType):
        if type_signature.placement is tff.CLIENTS:
            return tff.program.NativeValueReference(result, type_signature)
        return _references(result, type_signature.member)
    if not isinstance(type_signature, tff.types.StructType):
        return tff.program.NativeValueReference(result, type_signature)
    elements = [
        _references(_Element(result, index), element_type)
        for index, element_type in enumerate(type_signature)
    ]
    return _container_of(type_signature)(elements)


class _Element:
    """An element of an awaitable structure; it can be awaited repeatedly.

    It is not a task, since asyncio would report an error again for each task that is not awaited.
    """

    def __init__(self, whole, index: int):
        self._whole = whole
        self._index = index

    def __await__(self):
        whole = yield from self._whole.__await__()
        return tff.structure.from_container(whole)[self._index]


def _container_of(struct_type: tff.types.StructType) -> Callable[[list], Any]:
    """Returns a function that packs references to a structure's elements into its container."""
    # Elements, which are in their containers already, are treated as scalars.
    scalars = [(name, np.int32) for name in tff.structure.name_list_with_nones(struct_type)]
    if struct_type.python_container is None:
        return container_of(tff.types.StructType(scalars))
    return container_of(tff.types.StructWithPythonType(scalars, struct_type.python_container))
