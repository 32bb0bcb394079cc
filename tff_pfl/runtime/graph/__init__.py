"""An executor for TFF that runs each computation as one TensorFlow graph in this process.

The modules, from the outside to the inside:

    contexts       makes TFF's execution contexts with this executor, and has its options
    devices        finds devices of this machine and of workers
    executor       implements TFF's executor interface, and keeps the graphs of computations
    interruption   cancels computations after Ctrl-C or a cancelled task
    arguments      converts Python's values to tensors
    results        converts tensors to Python's values
    lowering       evaluates TFF's building blocks while a graph is built
    intrinsics, sequences
                   lower each intrinsic of TFF
    values, client_values, padded
                   structures, sequences, and clients' values: shared, stacked, ragged or padded
    groups         sorts clients into groups of one shape, or into parts of similar ones
    mapping        applies a function to every client, in the fastest way that takes it
    ways           the ways to do so: compiled, vectorized or in a loop
    compiled_loops compiles client work on CPUs as loops over clients
    loops          computes client work in a loop of TensorFlow
    imported       makes the TensorFlow of a TFF computation a function of this process
    vectorization  applies a function to stacked inputs, by TensorFlow's parallel-for
    flat           joins axes in compiled loops
    pfor_rules, pfor_convolutions, pfor_random, pfor_checks
                   rules for operations that parallel-for lacks or gets wrong
    memory         makes tensors from arrays
    internals      private names of TFF and TensorFlow, and the versions they were checked with

A graph is built for a layout of arguments, not for their sizes: cohorts of all sizes, and clients
of all capacities, share it.
"""
