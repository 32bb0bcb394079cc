"""Execution of TFF computations as one TensorFlow graph, vectorised over clients."""
