# Sourced by the scripts beside it: makes .venv, and installs into it what changed.
# usage: environment GROUP...   (dependency groups of pyproject.toml)

environment() {
    local python=${PYTHON:-python3} stamp=.venv/.installed
    local wanted="$* $(cksum < pyproject.toml)"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "Nestling needs Python 3.11 or newer; set PYTHON to one" >&2
        exit 2
    fi
    if [ ! -x .venv/bin/python ]; then
        "$python" -m venv .venv
    fi
    if [ ! -f "$stamp" ] || ! grep -qxF "$wanted" "$stamp"; then
        echo "installing into .venv …" >&2
        local groups=()
        for group in "$@"; do groups+=(--group "$group"); done
        # Dependency groups need a pip that knows them.
        [ $# -eq 0 ] || .venv/bin/python -m pip install -q --upgrade 'pip>=25.1'
        .venv/bin/python -m pip install -q -e . "${groups[@]}"
        echo "$wanted" >> "$stamp"
    fi
}
