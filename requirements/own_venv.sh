#!/bin/sh
# Refuses a .venv that is a link: what is made or installed here would replace another one's.
if [ -L .venv ]; then
    echo "error: .venv is a symbolic link to $(readlink .venv), which would be emptied or changed." \
        "Remove the link (rm .venv); make then makes a .venv here." >&2
    exit 1
fi
