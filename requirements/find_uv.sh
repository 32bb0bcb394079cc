#!/bin/sh
# Prints the path of a `uv`: the one on the PATH, or one taken from the package registry with
# whatever pip there is, into .venv-tools. Fails, silently on stdout, where there is none to be had.
set -u
tools=$PWD/.venv-tools

install() {
    for pip in "python3 -m pip" "python -m pip" pip3 pip; do
        $pip install --quiet --target "$tools" uv && return
    done
    python3 -m venv --clear "$tools" && "$tools/bin/python" -m pip install --quiet uv && return
    PIPX_HOME=$tools/pipx PIPX_BIN_DIR=$tools/bin pipx install --quiet uv
}

command -v uv && exit
[ -x "$tools/bin/uv" ] || install >/dev/null 2>&1 || exit 1
echo "$tools/bin/uv"
