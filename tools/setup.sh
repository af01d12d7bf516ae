#!/bin/sh
# Installs what building resat takes and the machine lacks: a C compiler and LLVM 22 with its headers. Needs Debian's apt (as
# root, or with sudo); elsewhere it says what to install.
#
#     setup.sh [tests] [python]    with `tests`, also a browser, in which a test opens a page, and oneDNN; without them such tests are
#                                  skipped; with `python`, what the wheel takes: LLVM's archives whole, zstd's, and Python itself
set -eu

asked() { case " $words " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
words="$*"

missing=""
command -v cargo >/dev/null 2>&1 || { echo "resat needs cargo (Rust 1.90 or later): see https://rustup.rs" >&2; exit 1; }
command -v cc >/dev/null 2>&1 || missing="$missing build-essential"
# A machine may have the tool without the headers and libraries, or the other way round.
if ! command -v llvm-config-22 >/dev/null 2>&1 || [ ! -e "$(llvm-config-22 --includedir)/llvm-c/Core.h" ]; then
    missing="$missing llvm-22-dev"
fi
if asked python; then
    # llvm-config counts Polly among LLVM's archives, which Debian keeps in a package of its own.
    [ -e "$(llvm-config-22 --libdir 2>/dev/null)/libPolly.a" ] || missing="$missing libpolly-22-dev"
    [ "$(cc -print-file-name=libzstd.a 2>/dev/null)" != libzstd.a ] && command -v cc >/dev/null || missing="$missing libzstd-dev"
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
fi
browser=""
if asked tests && ! command -v chromium >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
    browser="chromium"
fi
onednn=""
if asked tests && command -v apt-cache >/dev/null 2>&1 && ! /sbin/ldconfig -p 2>/dev/null | grep -q 'libdnnl\.so\.[23]'; then
    onednn="wanted"
fi
[ -n "$missing$browser$onednn" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    [ -z "$browser" ] || echo "no browser: the test that opens a page in one will be skipped" >&2
    [ -n "$missing" ] || exit 0
    echo "resat needs these Debian packages, or what corresponds to them here:$missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        [ -z "$missing$browser" ] || echo "please install (as root):$missing $browser" >&2
        [ -n "$missing" ] || exit 0
        exit 1
    fi
    sudo="sudo"
fi
echo "installing:$missing $browser"
$sudo apt-get update -qq || [ -z "$missing" ]
if [ -n "$browser" ] && ! DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $browser >/dev/null; then
    echo "could not install $browser: the test that opens a page in a browser will be skipped" >&2
fi
if [ -n "$onednn" ]; then
    # The package's name tells its version, which differs from one Debian to the next.
    onednn=$(apt-cache search --names-only '^libdnnl[23](\.[0-9]+)?$' 2>/dev/null | cut -d' ' -f1 | sort -V | tail -1)
    if [ -z "$onednn" ] || ! DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$onednn" >/dev/null; then
        echo "could not install oneDNN: tests of it will be skipped" >&2
    fi
fi
[ -n "$missing" ] || exit 0
# shellcheck disable=SC2086 # a list of packages
if ! DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
    echo "could not install:$missing" >&2
    echo "llvm-22-dev is in Debian's security updates (bookworm-security) and in later releases" >&2
    exit 1
fi
