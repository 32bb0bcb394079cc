"""An executor for TFF: a computation becomes one TensorFlow graph, run in this process.

From the outside to the inside:

    contexts       the executor behind TFF's execution contexts; its options
    devices        names of devices, of this machine and of others
    executor       TFF's executor interface; programs, and their graphs for arguments of a layout
    interruption   the end of a computation that nobody waits for any more
    arguments, results, layout
                   Python's values into tensors, and back
    lowering       evaluates TFF's building blocks while a graph is built
    intrinsics, sequences
                   what each intrinsic is in a graph
    values         structures, sequences, and what clients have: shared, stacked or ragged
    mapping        a function on every client: vectorized, or in a loop
    imported       the TensorFlow of a TFF computation as a function of this process
    vectorization  one function on stacked inputs, by TensorFlow's parallel-for
    pfor_rules, pfor_random
                   rules for operations that parallel-for lacks or gets wrong
    concurrency    client work that must not run for two clients at the same time
    internals      names of TFF and TensorFlow that are not public, with the versions that have them

A graph is built for a layout of arguments, not for their sizes: cohorts of all sizes, and clients
of all capacities, share it.
"""
