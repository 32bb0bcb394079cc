"""Finds which tensors of a client's graph differ between clients, before it is vectorized.

To vectorize a loop, one has to know which variables its body makes differ between clients. Tracing
the body to find out takes as long as vectorizing it, for each of the loops around it again.
"""

from collections.abc import Sequence

# Operations whose results are the same for all clients, since vectorized tensors share a shape.
_ALIKE = ("Rank", "Shape", "ShapeN", "Size")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf")
_LOOPS = ("While", "StatelessWhile")


class Differing:
    """Finds the tensors of functions that differ, and remembers them."""

    def __init__(self):
        """Makes a finder that knows no function."""
        self._known: dict[tuple, list[bool]] = {}

    def outputs(self, function, inputs: Sequence[bool]) -> list[bool]:
        """Returns whether each output of a function differs, given the same for its inputs."""
        key = function.graph, tuple(inputs)
        if key not in self._known:
            self._known[key] = self._outputs(function.graph, inputs)
        return self._known[key]

    def variables(self, body, variables: Sequence[bool]) -> list[bool]:
        """Returns which variables of a loop differ, given those that differ before it."""
        while True:
            after = self.outputs(body, variables)
            if all(was or not now for was, now in zip(variables, after, strict=True)):
                return list(variables)
            variables = [was or now for was, now in zip(variables, after, strict=True)]

    def _outputs(self, graph, inputs) -> list[bool]:
        differ = {tensor.ref() for tensor, flag in zip(graph.inputs, inputs, strict=True) if flag}
        found = -1
        while found < len(differ):  # until nothing is new, as operations may be in any order
            found = len(differ)
            for operation in graph.get_operations():
                flags = [tensor.ref() in differ for tensor in operation.inputs]
                if any(flags):
                    outputs = zip(
                        operation.outputs, self._of_operation(operation, flags), strict=True
                    )
                    differ |= {tensor.ref() for tensor, flag in outputs if flag}
        return [tensor.ref() in differ for tensor in graph.outputs]

    def _of_operation(self, operation, flags) -> list[bool]:
        def function(attribute):
            return operation.graph._get_function(operation.get_attr(attribute).name)

        kind, number = operation.type, len(operation.outputs)
        if kind in _ALIKE:
            return [False] * number
        if kind in _CALLS:
            return self.outputs(function("f"), flags)
        if kind in _BRANCHES and not flags[0]:
            branches = [function("then_branch"), function("else_branch")]
            outputs = [self.outputs(branch, flags[1:]) for branch in branches]
            return [any(either) for either in zip(*outputs, strict=True)]
        if kind in _LOOPS:
            variables = self.variables(function("body"), flags)
            if any(self.outputs(function("cond"), variables)):  # clients leave it one by one
                body = function("body")
                kept = [is_kept(body, index) for index in range(number)]
                return [flag or not same for flag, same in zip(variables, kept, strict=True)]
            return variables
        return [True] * number


def is_kept(function, index: int) -> bool:
    """Returns whether the body of a loop returns a variable as it is."""
    source, kept = function.graph.outputs[index], function.graph.inputs[index]
    while source is not kept and source.op.type == "Identity":
        source = source.op.inputs[0]
    return source is kept
