"""An executor for TFF that runs each computation as one TensorFlow graph in this process.

The modules, from the outside to the inside:

    contexts       makes TFF's execution contexts with this executor, and has its options
    devices        finds devices of this machine
    executor       implements TFF's executor interface, and keeps the graphs of computations
    interruption   cancels computations after Ctrl-C or a cancelled task
    arguments      converts Python's values to tensors
    results        converts tensors to Python's values
    lowering       evaluates TFF's building blocks while a graph is built
    intrinsics, sequences
                   lower each intrinsic of TFF
    values         structures and sequences
    clients        maps client work over the clients of a cohort
    imported       makes the TensorFlow of a TFF computation a function of this process
    memory         makes tensors from arrays
    internals      private names of TFF and TensorFlow, and the versions they were checked with

A graph is built for a layout of arguments, not for their sizes: cohorts of all sizes, and clients
of all capacities, share it.
"""
