# What the scripts share; each sources this file. bash, not sh.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Only what is set from outside stays; everything else has a default here.
TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
case $TARGET_DIR in /*) ;; *) TARGET_DIR=$ROOT/$TARGET_DIR ;; esac
# /usr/sbin is not in every user's PATH, but ip, nft and iptables live there.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# shellcheck disable=SC2034 # the callers use them
if [[ -t 2 ]]; then
    BOLD=$'\e[1m' GREEN=$'\e[32m' RED=$'\e[31m' PLAIN=$'\e[0m'
else
    BOLD='' GREEN='' RED='' PLAIN=''
fi

# say WORDS: progress, on stderr, so that stdout stays for results.
say() { printf '%s==>%s %s\n' "$BOLD" "$PLAIN" "$*" >&2; }

# die WORDS: one clear sentence, and out.
die() {
    printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
    exit 1
}

need_root() {
    [[ $(id -u) -eq 0 ]] || die "this needs root (network namespaces): run it as root, or as: sudo --preserve-env=HOME env \"PATH=\$PATH\" $0"
}

# need_packages PACKAGE...: installs the Debian packages that are missing.
need_packages() {
    local package missing=()
    for package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    command -v apt-get >/dev/null || die "please install what these Debian packages hold: ${missing[*]}"
    [[ $(id -u) -eq 0 ]] || die "Debian packages are missing; as root: apt-get install ${missing[*]}"
    say "Installing Debian packages: ${missing[*]}"
    local log
    log=$(mktemp)
    # The package lists of a fresh machine are empty or old: refresh them if it fails at first.
    if ! apt_install "${missing[@]}" >"$log" 2>&1; then
        if ! { apt-get update && apt_install "${missing[@]}"; } >"$log" 2>&1; then
            tail -n 20 "$log" >&2
            rm -f "$log"
            die "could not install ${missing[*]}"
        fi
    fi
    rm -f "$log"
}

# need_idle_packages PACKAGE...: the same for packages with a service that must neither start now nor
# with the machine: firewalld would change its rules.
need_idle_packages() {
    local package missing=() policy=/usr/sbin/policy-rc.d
    for package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    # Whoever has a policy of his own keeps it, and the package is left out.
    [[ ! -e $policy ]] || return 0
    # invoke-rc.d(8): 101 forbids to start a service.
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    (need_packages "${missing[@]}") || true
    rm -f "$policy"
    for package in "${missing[@]}"; do
        ! command -v systemctl >/dev/null || systemctl --quiet disable "$package" >/dev/null 2>&1 || true
    done
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@"
}

# Cargo with a toolchain that is new enough, and what it needs for linking.
need_cargo() {
    # A rustup that was installed a moment ago is not in PATH yet.
    local bin=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    [[ ! -d $bin || :$PATH: == *:$bin:* ]] || PATH=$bin:$PATH
    local advice="get Rust with: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    command -v cargo >/dev/null || die "cargo is missing; $advice"
    local have want
    have=$(rustc --version | cut -d' ' -f2)
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
    [[ $(printf '%s\n%s\n' "$want" "${have%%-*}" | sort -V | head -n 1) == "$want" ]] ||
        die "Rust $have is too old, $want is needed; $advice"
    # A linker, and the static C library (its name alone is what cc prints if it has none).
    if ! command -v cc >/dev/null || [[ $(cc -print-file-name=libc.a) == libc.a ]]; then
        need_packages gcc libc6-dev
    fi
}

# build_plugins: the release of all plugins, static; sets PLUGINS_BINARY.
build_plugins() {
    need_cargo
    local host target
    host=$(rustc -vV | sed -n 's/^host: //p')
    # With musl a process starts without the questions that glibc asks the processor (cpuid),
    # each of which takes microseconds in a virtual machine: a tenth of a pod's ADD. A
    # toolchain that isn't rustup's, or a machine without a network, does with glibc.
    target=${host/-gnu/-musl}
    if ! command -v rustup >/dev/null ||
        ! { rustup target list --installed | grep -qx "$target" || rustup target add "$target" >/dev/null 2>&1; }; then
        target=$host
    fi
    say "Building the plugins ($target, static)"
    # Linked statically they run under any C library and start without a dynamic loader; at a
    # fixed address they need no relocation either, which for this many plugins in one file
    # is an eighth of the start-up. sha2 would ask the processor, too, for a few short hashes.
    # The explicit target keeps the flags away from procedural
    # macros, which can't be static.
    (
        cd "$ROOT"
        RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static --cfg sha2_backend=\"soft\"" \
            cargo build --quiet --locked --release --target "$target" --target-dir "$TARGET_DIR" -p cnimble-plugins
    ) || die "building the plugins failed"
    PLUGINS_BINARY=$TARGET_DIR/$target/release/cnimble-plugins
    is_static "$PLUGINS_BINARY" || die "$PLUGINS_BINARY is not static"
}

is_static() {
    # Its exit status is 1 for a static file.
    [[ $(LC_ALL=C ldd "$1" 2>&1 || true) =~ not\ a\ dynamic|statically ]]
}

# build_command: the command cnimble; sets COMMAND_BINARY.
# shellcheck disable=SC2034 # the callers use it
build_command() {
    need_cargo
    say "Building the command"
    (cd "$ROOT" && cargo build --quiet --locked --release --target-dir "$TARGET_DIR" -p cnimble) ||
        die "building the command failed"
    COMMAND_BINARY=$TARGET_DIR/release/cnimble
}

# plugin_names BINARY: one a line; the binary itself knows.
plugin_names() {
    "$1" --list-plugins || die "$1 does not name its plugins"
}

# link_plugins BINARY DIR: DIR afterwards holds the plugins, and nothing else, as hard links.
link_plugins() {
    local binary=$1 dir=$2 name names
    names=$(plugin_names "$binary")
    rm -rf "$dir.new"
    mkdir -p "$dir.new"
    cp "$binary" "$dir.new/.binary"
    for name in $names; do
        ln "$dir.new/.binary" "$dir.new/$name"
    done
    rm "$dir.new/.binary"
    rm -rf "$dir"
    mv "$dir.new" "$dir"
}
