#!/bin/sh
# The Python of this folder, with its packages, data set and caches; a Python that the machine has
# and the caller's packages play no part.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
unset PYTHONHOME PYTHONPATH PYTHONSTARTUP
export PYTHONNOUSERSITE=1
export LD_LIBRARY_PATH="$here/interpreter/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export TFDS_DATA_DIR="$here/data"
# What the driver compiles for this GPU, when it is first used, is kept.
export CUDA_CACHE_PATH="$here/cache"
export CUDA_CACHE_MAXSIZE=4294967296
exec "$here/interpreter/bin/python3.11" "$@"
