"""Maps client work over the clients of a cohort, inside one TensorFlow graph.

The modules, from the outside to the inside:

    mapping        applies a function to every client, in the fastest way that takes it
    ways           the ways to do so: compiled, vectorized or in a loop
    groups         sorts clients into groups of one shape, or into parts of similar ones
    compiled_loops compiles client work on CPUs as loops over clients
    loops          computes client work in a loop of TensorFlow
    vectorization  applies a function to stacked inputs, by TensorFlow's parallel-for
    flat           joins axes in compiled loops
    client_values, padded
                   clients' values: shared, stacked, ragged or padded
    pfor_rules, pfor_convolutions, pfor_random, pfor_checks
                   rules for operations that parallel-for lacks or gets wrong
"""
