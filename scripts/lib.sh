# Shared by the scripts of this folder; source it, do not run it.
#
#   repo                          the repository's folder
#   ensure_environment dev,jpeg   a Python environment with fastdata and those extras; sets $python,
#                                 and $compiler to a C compiler that works, empty if there is none
#   ensure_chromium               a browser, if it can be had; then the tests demand it
#   use_python_as_it_is PYTHON    that Python, in which nothing is installed; sets $python and
#                                 $compiler, and PYTHONPATH so that it finds this fastdata
#   ensure_arm_compiler           a cross compiler for AArch64, if it can be had; succeeds if it can
#   link_package TREE             links in that folder, by which tools that only read find the package
#   require_compiled_library         has the tests demand the compiled library, where $compiler is one
#   ensure_dali                   NVIDIA DALI in that environment, if it can be had; then the tests
#                                 demand it
#   default_tests                 pytest's arguments for the tests that scripts/test runs by default
#
# Read from the environment:
#
#   FASTDATA_PYTHON   the Python to use.  If it belongs to a virtual environment, that environment is
#                     used and what is missing is installed there; if not, .venv is made with it.
#   FASTDATA_VENV     where the environment is made instead of .venv
#   FASTDATA_DALI     0 does without DALI, which takes 1 GB
#   FASTDATA_CHROMIUM 0 does without Chromium, which takes 400 MB
#   CC                the C compiler to use instead of the first of cc, gcc and clang that works
#
# Nothing here costs more than a moment once the environment is there: a stamp in it records the
# hash of what was asked for, C sources included, and neither pip nor apt runs while that is the same.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
oldest_python=3.10 # as requires-python in pyproject.toml says
newest_python=3.14 # the newest that the torch of constraints.txt has builds for
distribution=$(sed -n '/^name = /{s/.*"\(.*\)"/\1/p;q}' "$repo/pyproject.toml") # what pip calls this fastdata

# Marks that only `scripts/test --all` runs; docs/contributing.md explains them.  A smoke test represents its marked module.
# The clients are not even imported: that takes seconds in each process.
default_tests=(--ignore tests/clients
    -m "smoke or not (build or clients or dali or doctor or formats or fuzz or ranks or soak or timing)")

say() { printf '%s\n' "$*" >&2; }

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Prints the first Python of the oldest to newest version, else the first of any later one.
find_python() {
    local name newer=
    for name in python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
        # Run it: a name can be there and not work, such as a pyenv shim of a version not chosen.
        case $("$name" -c "$(python_age_code)" 2>/dev/null || true) in
            fits) command -v "$name" && return ;;
            newer) newer=${newer:-$(command -v "$name")} ;;
        esac
    done
    [[ -n $newer ]] && printf '%s\n' "$newer"
}

python_age_code() {
    printf 'import sys; v = sys.version_info[:2]; print("older" if v < (%s) else "newer" if v > (%s) else "fits")' \
        "${oldest_python/./, }" "${newest_python/./, }"
}

is_root_with_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# apt_install PACKAGE...: quietly; succeeds if apt did.
apt_install() {
    local log=$repo/.cache/apt.log
    # A fresh container has no package lists until the first update.
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >"$log" 2>&1 ||
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >>"$log" 2>&1
}

# make_venv PYTHON FOLDER
make_venv() {
    local base=$1 folder=$2 log=$repo/.cache/venv.log package
    say "Making the environment $folder with $("$base" -V)"
    if "$base" -m venv --clear "$folder" >"$log" 2>&1; then return; fi
    # Debian and Ubuntu keep what venv needs in a package of its own.
    package=python$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
    if is_root_with_apt && apt_install "$package" && "$base" -m venv --clear "$folder" >"$log" 2>&1; then
        return
    fi
    sed 's/^/    /' "$log" >&2
    rm -rf "$folder"
    fail "Python's venv module did not work (above). On Debian and Ubuntu: apt install $package." \
        "Or set FASTDATA_PYTHON to the python of a virtual environment that you have made."
}

# pip_install ARGUMENT...: shows pip's own words and a likely cause when it fails.
pip_install() {
    local log=$repo/.cache/pip.log
    if "$python" -m pip install --disable-pip-version-check --no-input "$@" >"$log" 2>&1; then return; fi
    say ""
    grep -vE '^(Requirement already|Collecting|  Using cached)' "$log" | tail -n 15 | sed 's/^/    /' >&2
    say ""
    if grep -qiE 'no space left' "$log"; then
        fail "the disk is full: the environment needs 2 GB, or 7 GB where torch comes with CUDA."
    elif grep -qiE 'connection|resolution|timed out|proxy|ssl|max retries' "$log"; then
        fail "pip could not reach its package index. Check the network and pip's settings (pip config list)," \
            "then run the same command again; it continues where it was."
    elif grep -qiE 'no matching distribution|could not find a version' "$log"; then
        # "from versions: none" is what pip also says when an index refuses it without a word.
        fail "pip found no build of a package for $("$python" -V): its index is out of reach (pip config list)," \
            "or has none for this version. $oldest_python to $newest_python are known to work: if yours is another," \
            "remove $venv and set FASTDATA_PYTHON to one of those."
    fi
    fail "pip failed (above; all of it in ${log#"$repo"/})."
}

# jpeg4py is a binding to a library of the system, and of no use without it.
ensure_turbojpeg() {
    local look='import ctypes; ctypes.CDLL("libturbojpeg.so.0")'
    "$python" -c "$look" 2>/dev/null && return
    if is_root_with_apt; then
        say "Installing the system library libturbojpeg0 (apt)"
        apt_install libturbojpeg0 && "$python" -c "$look" 2>/dev/null && return
        say "apt could not install libturbojpeg0 (.cache/apt.log)."
    else
        say "The system library libturbojpeg0 is not here, and only root can install it:" \
            "sudo apt install libturbojpeg0"
    fi
    say "Lost without it: the jpeg4py decoder. Everything else works; the other decoders bring their own."
}

# Prints the C compiler to build with, if one works.
find_compiler() {
    local name names=(cc gcc clang)
    [[ -z ${CC:-} ]] || names=("$CC")
    for name in "${names[@]}"; do
        # Run it: Debian's gcc can be there without libc6-dev, and then compiles nothing.  Not
        # quoted: CC may have arguments.
        # shellcheck disable=SC2086
        if $name -std=c11 -fsyntax-only -x c - <<<'#include <stdlib.h>' >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
}

arm_compiler=aarch64-linux-gnu-gcc
ensure_arm_compiler() {
    local packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
    if [[ -n $(CC=$arm_compiler find_compiler) ]]; then return; fi
    if is_root_with_apt; then
        say "Installing a cross compiler for AArch64 (apt)"
        apt_install "${packages[@]}" && [[ -n $(CC=$arm_compiler find_compiler) ]] && return
        say "apt could not install ${packages[*]} (.cache/apt.log)."
    else
        say "There is no $arm_compiler that works: sudo apt install ${packages[*]} (Debian, Ubuntu)."
    fi
    return 1
}

# What the environment was made of: any change of it, or a loss of the file built, makes it anew.
fingerprint_of_install() {
    {
        cat "$repo/pyproject.toml" "$repo/setup.py" "$repo/constraints.txt" "$repo"/fastdata/native/*.[ch]
        # The folder's name is part of it: an editable install points to where the repository was.
        printf '%s\n' "$repo" "${compiler:+has a compiler}" "$repo"/fastdata/native/*.so
    } | cksum
}

# Where an editable install leaves the compiled library, for whatever Python.
compiled_library=$repo/fastdata/native/_native.so

# check_compiled_library LOG: it is optional, so pip succeeds and says nothing where it was not built.
check_compiled_library() {
    if [[ -f $compiled_library ]]; then return; fi
    if [[ -n $compiler ]]; then
        grep -E 'error: |build_ext: ' "$1" | tail -n 15 | sed -E 's/^[0-9T:,-]+ */    /' >&2 || true
        say "fastdata's compiled library did not build with $compiler (above; all of it in ${1#"$repo"/})." \
            "Lost without it: speed. Everything else works."
    elif [[ -n ${CC:-} ]]; then
        say "fastdata's compiled library is not built: CC is $CC, which does not work as a C compiler." \
            "Lost without it: speed. To have it: set CC to one that works, or unset it, and run this again."
    else
        say "fastdata's compiled library is not built: there is no C compiler here. Lost without it: speed." \
            "To have it: sudo apt install gcc libc6-dev (Debian, Ubuntu), then run this again."
    fi
}

# converters/ is fastdata.converters only once installed, which tools that read the sources (mypy, mkdocstrings)
# cannot see: they follow neither the mapping in pyproject.toml nor an editable install's import hook.
link_package() {
    rm -rf "$1"
    mkdir -p "$1/fastdata"
    ln -s "$repo"/fastdata/* "$1/fastdata/"
    ln -sfn "$repo/converters" "$1/fastdata/converters" # -n: an earlier link is replaced, not followed
}

# Where a compiler works, tests must fail without the compiled library: else a build that broke, which
# the install lets pass, would only show as lost speed.
require_compiled_library() {
    if [[ -n $compiler && ${FASTDATA_NATIVE:-1} != 0 ]]; then export FASTDATA_REQUIRE_NATIVE=1; fi
}

# What is called fastdata on package indexes is another project's, and this one was called so before its first
# release: either would share the folder fastdata/ with what is installed here, or the names of source formats.
remove_other_fastdata() {
    rm -rf "$repo/fastdata.egg-info"
    if (cd / && "$python" -c 'from importlib.metadata import version; version("fastdata")' 2>/dev/null); then
        say "Removing what pip calls fastdata from $venv: here that is $distribution"
        "$python" -m pip uninstall --disable-pip-version-check --quiet --yes fastdata
    fi
}

# ensure_environment EXTRAS: sets $python and $compiler
ensure_environment() {
    local extras=$1 base= stamp build_log=$repo/.cache/build.log
    mkdir -p "$repo/.cache"
    # Two scripts started together must not both make the environment.
    if command -v flock >/dev/null; then
        exec 9>"$repo/.cache/environment.lock"
        flock 9
    fi

    venv=${FASTDATA_VENV:-$repo/.venv}
    if [[ -n ${FASTDATA_PYTHON:-} ]]; then
        base=$(command -v "$FASTDATA_PYTHON") || fail "FASTDATA_PYTHON is $FASTDATA_PYTHON, which is not a program"
        [[ $("$base" -c "$(python_age_code)") != older ]] ||
            fail "FASTDATA_PYTHON is $("$base" -V); fastdata needs Python $oldest_python or later"
        if "$base" -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)'; then
            venv=$("$base" -c 'import sys; print(sys.prefix)')
        fi
    fi
    python=$venv/bin/python
    # Also made anew when half made, or when the Python under it has gone.
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        base=${base:-$(find_python)} ||
            fail "no Python $oldest_python or later found. Install one, or set FASTDATA_PYTHON to one."
        make_venv "$base" "$venv"
    fi

    stamp=$venv/.fastdata-installed-${extras//,/-}
    compiler=$(find_compiler)
    if [[ ! -f $stamp || $(<"$stamp") != "$(fingerprint_of_install)" ]]; then
        say "Installing $distribution[$extras] and what it needs in $venv (minutes the first time: torch is large)"
        pip_install 'pip>=21.3' # the first that can install a pyproject.toml in editable mode
        # A build that fails leaves the file of an earlier one in place.
        rm -f "$compiled_library" "$build_log"
        remove_other_fastdata
        if [[ -n $compiler ]]; then local -x CC=$compiler; fi
        pip_install --log "$build_log" --constraint "$repo/constraints.txt" --editable "$repo[$extras]"
        check_compiled_library "$build_log"
        [[ ,$extras, != *,jpeg,* ]] || ensure_turbojpeg
        fingerprint_of_install >"$stamp" # now, when the file built is there
    fi
    if command -v flock >/dev/null; then exec 9>&-; fi
}

# After ensure_environment.  Not one of its extras: DALI exists for Linux only, and what is tested with
# it is the smaller part.  Where it cannot be had, its tests are skipped.
ensure_dali() {
    local stamp=$venv/.fastdata-dali wanted log=$repo/.cache/dali.log
    [[ ${FASTDATA_DALI:-1} != 0 ]] || return 0
    wanted=$(grep -m1 '^nvidia-dali' "$repo/constraints.txt")
    if [[ ! -f $stamp || $(<"$stamp") != *"$wanted" ]]; then
        say "Installing NVIDIA DALI, to test what uses it (1 GB; FASTDATA_DALI=0 does without)"
        if "$python" -m pip install --disable-pip-version-check --no-input \
            --constraint "$repo/constraints.txt" "$wanted" >"$log" 2>&1; then
            echo "has $wanted" >"$stamp"
        else
            echo "lacks $wanted" >"$stamp" # not tried again each time
            say "It cannot be installed here (${log#"$repo"/}): its tests are skipped. To try again: rm $stamp"
        fi
    fi
    if [[ $(<"$stamp") == has* ]]; then export FASTDATA_REQUIRE_DALI=1; fi
}

# After ensure_environment.  HTML pages are tested in it.  Where it cannot be had, those tests are
# skipped.
ensure_chromium() {
    local stamp=$venv/.fastdata-lacks-chromium
    [[ ${FASTDATA_CHROMIUM:-1} != 0 ]] || return 0
    if ! has_chromium && [[ ! -f $stamp ]]; then
        if is_root_with_apt; then
            say "Installing Chromium (apt), to test HTML pages in (400 MB; FASTDATA_CHROMIUM=0 does without)"
            apt_install chromium || true
            has_chromium || say "apt could not install a Chromium that works (.cache/apt.log):" \
                "tests of HTML pages are skipped. To try again: rm $stamp"
        else
            say "Chromium is not here, and only root can install it (sudo apt install chromium):" \
                "tests of HTML pages are skipped."
        fi
        has_chromium || : >"$stamp" # not tried, or said, again each time
    fi
    if has_chromium; then export FASTDATA_REQUIRE_CHROMIUM=1; fi
}

# Whether the browser that tests/browser.py would take works.
has_chromium() {
    local name
    for name in chromium chromium-browser google-chrome; do
        # Run it: on Ubuntu the name may be a script that asks for a snap.
        if command -v "$name" >/dev/null; then
            "$name" --version >/dev/null 2>&1
            return
        fi
    done
    return 1
}

# use_python_as_it_is PYTHON: for machines without a network.  Sets $python and $compiler.  Where this
# fastdata is not installed in it, PYTHONPATH gets a folder that looks as if it were: links to the
# sources, the compiled library, and the metadata that names the source formats.
use_python_as_it_is() {
    local tree=$repo/.cache/as-it-is entry version metadata built
    python=$(command -v "$1") || fail "$1 is not a program"
    [[ $("$python" -c "$(python_age_code)") != older ]] ||
        fail "$1 is $("$python" -V); fastdata needs Python $oldest_python or later"
    compiler=$(find_compiler)
    if (cd / && "$python" - "$repo" "$distribution") <<<"$(is_installed_code)" 2>/dev/null; then return; fi

    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$repo/pyproject.toml")
    metadata=$tree/${distribution//-/_}-$version.dist-info
    mkdir -p "$tree/fastdata/native" "$metadata"
    for entry in "$repo"/fastdata/*; do
        [[ ${entry##*/} == native ]] || ln -sfn "$entry" "$tree/fastdata/"
    done
    ln -sfn "$repo/converters" "$tree/fastdata/converters"
    ln -sfn "$repo"/fastdata/native/*.py "$tree/fastdata/native/"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$distribution" "$version" >"$metadata/METADATA"
    # The tables of entry points, which have the same form there.
    awk '/^\[/ { name = ""; if (match($0, /entry-points\."[^"]*"/)) name = substr($0, RSTART + 14, RLENGTH - 15) }
        /^\[/ && name != "" { print "[" name "]" }
        /^[a-z].*=/ && name != "" { gsub(/"/, ""); print }' "$repo/pyproject.toml" \
        >"$metadata/entry_points.txt"

    built=$tree/fastdata/native/_native.so
    if [[ -n $compiler ]] && { [[ ! -f $built ]] ||
        [[ -n $(find "$repo/fastdata/native" -name '*.[ch]' -newer "$built") ]]; }; then
        # The arguments of pyproject.toml.  Not quoted: CC may have arguments.
        # shellcheck disable=SC2086
        $compiler -std=c11 -O3 -fwrapv -fvisibility=hidden -falign-functions=64 -fPIC -shared \
            -o "$built.$$" "$repo"/fastdata/native/*.c 2>"$repo/.cache/build.log" && mv "$built.$$" "$built" ||
            say "fastdata's compiled library could not be built (.cache/build.log). Lost without it: speed."
    fi
    export PYTHONPATH=$tree${PYTHONPATH:+:$PYTHONPATH}
    (cd / && "$python" -c 'import fastdata, fastdata.loading, fastdata.converters') ||
        fail "$1 cannot import fastdata (above): it needs the dependencies of pyproject.toml, installed"
}

# Ends well where the Python has the fastdata of the folder given, converters included, under the name given.
is_installed_code() {
    cat <<'END'
import importlib.metadata, os, sys
importlib.metadata.version(sys.argv[2])
import fastdata, fastdata.converters
here = os.path.dirname(os.path.realpath(fastdata.__file__))
sys.exit(here != os.path.realpath(os.path.join(sys.argv[1], "fastdata")))
END
}
