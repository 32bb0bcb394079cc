"""How a user's function becomes a computation: equality, randomness, structures, errors."""
