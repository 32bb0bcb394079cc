#!/bin/sh
# Makes .venv, a Python 3.11 with exactly what lock.txt lists and this project, from scratch.
# Run in the project's root; PYTHON may name the interpreter to use.
set -eu
need="tff_pfl needs Python 3.11: install python3.11 with its venv module, \
or run \`make PYTHON=/path/to/python3.11\`."

fail() {
    echo "error: $1" >&2
    exit 1
}

# A pyenv shim may answer "command not found", Debian's python3.11 may lack what makes a venv.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
}

find_python() {
    IFS=:
    for name in python3.11 python3; do
        for folder in $PATH; do
            if [ -x "$folder/$name" ] && usable "$folder/$name"; then
                echo "$folder/$name"
                return
            fi
        done
    done
    return 1
}

make_venv() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" || fail "PYTHON=$PYTHON is no Python 3.11 that can make a venv. $need"
        "$PYTHON" -m venv --clear .venv
    elif python=$(find_python); then
        "$python" -m venv --clear .venv
    else
        echo "No Python 3.11 here: asking uv for one."
        [ -n "$uv" ] || fail "$need"
        UV_PYTHON_INSTALL_DIR=$PWD/.venv-tools/python \
            "$uv" venv --clear --quiet --python 3.11 --seed .venv || fail "$need"
    fi
}

# uv takes less than half of pip's time; where it is not to be had, or fails, pip does it. Both ask
# the same index, and hold what they get against the hashes.
install() {
    if [ -n "$uv" ]; then
        "$uv" pip install --quiet --python .venv/bin/python --no-deps --compile-bytecode "$@" \
            2>/dev/null && return
        uv=
    fi
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps "$@"
}

index_of_pip() {
    echo "${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}"
}

sh requirements/own_venv.sh
uv=$(sh requirements/find_uv.sh) || uv=
make_venv
index=$(index_of_pip)
[ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
echo "Installing $(grep -c '==' requirements/lock.txt) packages into .venv (about a minute)."
# What builds the one dependency that has no wheel comes first, so that it need not be fetched.
awk '/^[^ #]/ { keep = /^(setuptools|wheel)==/ } keep' requirements/lock.txt >.venv/build.txt
install --require-hashes -r .venv/build.txt
install --require-hashes --no-build-isolation -r requirements/lock.txt
install --no-build-isolation --editable .
