"""Makes computations of users' functions: equality, randomness, structures, errors."""
