# What the scripts share; each sources this file. bash, not sh.
# shellcheck shell=bash

set -euo pipefail
# Root executes what the scripts install. So only root may write to it, with any umask of the caller.
umask 022

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/debian.sh
source "$ROOT/scripts/debian.sh"
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

# missing_packages PACKAGE...: those that are not installed, one a line.
missing_packages() {
    local package
    for package; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || printf '%s\n' "$package"
    done
}

# need_packages PACKAGE...: installs the Debian packages that are missing. Their services neither start now nor with
# the machine: firewalld would change its rules, a DHCP server would answer on its networks.
need_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    [[ ${#missing[@]} -gt 0 ]] || return 0
    command -v apt-get >/dev/null || die "please install what these Debian packages hold: ${missing[*]}"
    [[ $(id -u) -eq 0 ]] || die "Debian packages are missing; as root: apt-get install ${missing[*]}"
    say "Installing Debian packages: ${missing[*]}$(apt_space "${missing[@]}")"
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

# apt_space PACKAGE...: the disk space that they take, in apt's words; nothing if apt does not know them yet.
apt_space() {
    local said
    said=$(LC_ALL=C apt-get --assume-no --no-install-recommends install "$@" 2>/dev/null | grep -o '[0-9.,]* [kMG]B of additional disk space' || true)
    [[ -z $said ]] || printf ' (%s)' "$said"
}

# services STATE...: the units in this state: enabled, or running.
services() {
    ! command -v systemctl >/dev/null || case $1 in
        enabled) systemctl --root=/ --no-legend --no-pager list-unit-files --state=enabled 2>/dev/null | cut -d' ' -f1 ;;
        running) systemctl --no-legend --no-pager --plain list-units --state=running 2>/dev/null | cut -d' ' -f1 ;;
    esac | sort
}

# apt_install PACKAGE...: installs them without their services. invoke-rc.d asks policy-rc.d, which forbids each start
# with 101 (invoke-rc.d(8)). A policy of the machine's own stays; what it lets start is stopped.
apt_install() {
    local policy=/usr/sbin/policy-rc.d status=0 enabled running unit
    enabled=$(services enabled) running=$(services running)
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy.$$"
        chmod 755 "$policy.$$"
        mv "$policy.$$" "$policy"
        local made=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        -o DPkg::Lock::Timeout=120 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@" || status=$?
    [[ -z ${made:-} ]] || rm -f "$policy"
    for unit in $(comm -13 <(printf '%s\n' "$enabled") <(services enabled)); do
        systemctl --quiet disable "$unit" || true
    done
    for unit in $(comm -13 <(printf '%s\n' "$running") <(services running)); do
        systemctl --quiet stop "$unit" || true
    done
    return "$status"
}

# need_go_plugins: the Go plugins to compare with; exports REFERENCE_DIR and sets REFERENCE_NAME.
# These are, in this order, those that REFERENCE_DIR names, the newest of Debian (suite forky;
# fetched once into ~/.cache/cnimble/go-plugins, not installed; remove that directory to fetch them
# anew), and the package of this machine's own suite. With DEBIAN_ARCH they are those of another kind of machine.
# shellcheck disable=SC2034 # the callers use REFERENCE_NAME
need_go_plugins() {
    REFERENCE_NAME=reference
    [[ -z ${REFERENCE_DIR:-} ]] || return 0
    local version dir=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cnimble/go-plugins${DEBIAN_ARCH:+-$DEBIAN_ARCH}
    if [[ -e $dir/.version ]] || fetch_go_plugins "$dir"; then
        version=$(<"$dir/.version")
    elif [[ -n ${DEBIAN_ARCH:-} ]]; then
        die "there are no Go plugins to compare with"
    else
        say "Comparing with the Go plugins of this machine's own suite"
        need_packages containernetworking-plugins
        dir=/usr/lib/cni
        version=$(dpkg-query -W -f '${Version}' containernetworking-plugins)
    fi
    REFERENCE_NAME=go-${version%%[!0-9.]*}
    export REFERENCE_DIR=$dir
}

# fetch_go_plugins DIR: in a subshell, so that what it sets and traps ends with it.
fetch_go_plugins() (
    dir=$1
    say "Fetching the newest Go plugins of Debian"
    mkdir -p "$(dirname "$dir")"
    # One at a time. A process that had to wait finds the work done.
    exec {lock}>"$dir.lock"
    flock "$lock"
    [[ ! -e $dir/.version ]] || exit 0
    work=$(mktemp -d "$dir.new.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    fetch_packages forky "$(debian_mirror)" "$work" containernetworking-plugins || exit 1
    dpkg-deb --extract "$work"/deb/*.deb "$work/tree" || exit 1
    dpkg-deb --field "$work"/deb/*.deb Version >"$work/tree/usr/lib/cni/.version" || exit 1
    rm -rf "$dir"
    # The directory appears whole or not at all.
    mv -T "$work/tree/usr/lib/cni" "$dir"
)

# need_netavark: the program netavark as podman of Debian 12 has it; sets NETAVARK, empty if it can't be had. It is
# fetched once into ~/.cache/cnimble/netavark, not installed: podman would take it in the place of CNI.
# shellcheck disable=SC2034 # the callers use NETAVARK
need_netavark() {
    local dir=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cnimble/netavark
    NETAVARK=
    [[ -x $dir/netavark ]] || fetch_netavark "$dir" || return 0
    NETAVARK=$dir/netavark
}

fetch_netavark() (
    dir=$1
    say "Fetching netavark of Debian"
    mkdir -p "$dir"
    work=$(mktemp -d "$dir.new.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    fetch_packages bookworm "$(debian_mirror)" "$work" netavark || exit 1
    dpkg-deb --extract "$work"/deb/*.deb "$work/tree" || exit 1
    # Whole or not at all.
    mv "$work/tree/usr/lib/podman/netavark" "$dir/netavark"
)

# need_cargo: cargo with a Rust that is new enough, and what it needs for linking. A toolchain that is there is never
# replaced, and nothing is installed before its version is known to be new enough.
need_cargo() {
    # A rustup that was installed a moment ago is not in PATH yet.
    local bin=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    [[ ! -d $bin || :$PATH: == *:$bin:* ]] || PATH=$bin:$PATH
    local have want
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
    if command -v cargo >/dev/null && command -v rustc >/dev/null; then
        have=$(rustc --version | cut -d' ' -f2)
        is_at_least "${have%%-*}" "$want" || die "Rust $have is too old, $want is needed; $(rust_update "$want")"
    else
        install_rust "$want"
    fi
    # A linker, and the static C library (its name alone is what cc prints if it has none).
    if ! command -v cc >/dev/null || [[ $(cc -print-file-name=libc.a) == libc.a ]]; then
        need_packages gcc libc6-dev
    fi
}

RUSTUP="get Rust with: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"

# is_at_least VERSION LEAST
is_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# candidate PACKAGE: the upstream version that apt would install; nothing if apt has no such package.
candidate() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null |
        sed -n 's/^ *Candidate: \(.*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p'
}

# rust_package LEAST: Debian's package of a Rust that is at least as new; nothing if there is none. Debian 12 and 13 build
# browsers with rustc-web, which is newer than rustc.
rust_package() {
    local package version
    for package in rustc rustc-web; do
        version=$(candidate "$package")
        if [[ -n $version ]] && is_at_least "$version" "$1"; then
            printf '%s\n' "$package"
            return 0
        fi
    done
}

# rust_update LEAST: the command that replaces a toolchain that is too old, for its user to decide.
rust_update() {
    local package replaced
    if command -v rustup >/dev/null; then
        echo "update it with: rustup update stable"
        return 0
    fi
    package=$(rust_package "$1")
    if [[ -z $package ]]; then
        echo "$RUSTUP"
        return 0
    fi
    # rustc-web conflicts with the packages rustc, cargo and rustup.
    replaced=$(LC_ALL=C apt-get --simulate install "${package/rustc/cargo}" "$package" 2>/dev/null |
        sed -n 's/^Remv \([^ ]*\).*/\1/p' | paste -sd' ')
    echo "update it with: apt-get install ${package/rustc/cargo} $package${replaced:+ (this removes: $replaced)}"
}

# install_rust LEAST: Debian's packages of a Rust that is at least as new.
install_rust() {
    local package
    command -v apt-get >/dev/null || die "cargo is missing; $RUSTUP"
    # The package lists of a fresh machine are empty.
    [[ -n $(candidate rustc) ]] || [[ $(id -u) -ne 0 ]] || apt-get update >/dev/null 2>&1 || true
    package=$(rust_package "$1")
    [[ -n $package ]] || die "Rust $1 is needed, and apt has none that is new enough (rustc $(candidate_or_none rustc), rustc-web $(candidate_or_none rustc-web)); $RUSTUP"
    # Crates come over https.
    need_packages "${package/rustc/cargo}" "$package" ca-certificates
}

candidate_or_none() {
    local version
    version=$(candidate "$1")
    printf '%s' "${version:-missing}"
}

# need_cross MACHINE: what builds for another kind of machine (x86_64, aarch64) takes; sets BUILD_FOR, and RUN_BY, which
# runs what was built. All of it is static: rustup's musl and a C compiler of Debian are enough.
need_cross() {
    local target=$1-unknown-linux-musl name variable arch
    arch=$(sed 's/x86_64/amd64/; s/aarch64/arm64/' <<<"$1")
    need_cargo
    command -v rustup >/dev/null || die "building for $arch takes rustup, which has the standard library for it"
    rustup target list --installed | grep -qx "$target" || rustup target add "$target" >/dev/null 2>&1 ||
        die "rustup can't get the standard library: rustup target add $target"
    need_packages "gcc-${1//_/-}-linux-gnu" "libc6-dev-$arch-cross"
    name=${target//-/_}
    variable=CARGO_TARGET_${name^^}_LINKER
    export LINKER_BEHIND=$1-linux-gnu-gcc "$variable=$ROOT/scripts/static-pie" "CC_$name=$1-linux-gnu-gcc" "AR_$name=$1-linux-gnu-ar"
    BUILD_FOR=$1-unknown-linux-gnu
    need_runner "$1"
}

# need_runner MACHINE: sets RUN_BY to what runs programs of that kind of machine; empty if this machine does.
need_runner() {
    RUN_BY=''
    [[ $(uname -m) != "$1" ]] || return 0
    need_packages qemu-user-static
    RUN_BY=qemu-$1-static
}

# need_protoc: for cluster-local-store, and so for the whole workspace: the crate etcd-client makes its messages of
# etcd's own descriptions of them. Neither the plugins nor the command take it.
need_protoc() {
    [[ -n ${PROTOC:-} ]] || command -v protoc >/dev/null || need_packages protobuf-compiler
}

# need_cargo_tools: cargo fmt and cargo clippy, which a minimal Rust lacks.
need_cargo_tools() {
    local tool
    for tool in fmt:rustfmt:rustfmt-web clippy:clippy:rust-web-clippy; do
        local name component package
        IFS=: read -r name component package <<<"$tool"
        ! cargo "$name" --version >/dev/null 2>&1 || continue
        if command -v rustup >/dev/null; then
            rustup component add "$component"
        elif [[ -n $(dpkg-query -W -f '${Package}' cargo-web 2>/dev/null) ]]; then
            need_packages "$package"
        fi
        cargo "$name" --version >/dev/null 2>&1 || die "cargo $name is missing"
    done
}

# need_crate NAME: a program that cargo installs, such as cargo-deny.
need_crate() {
    ! command -v "$1" >/dev/null || return 0
    say "Installing $1"
    cargo install --quiet --locked "$1" || die "could not install $1: cargo install --locked $1"
    # Cargo's directory is none of PATH's on a machine where rustup isn't.
    PATH=$PATH:${CARGO_INSTALL_ROOT:-${CARGO_HOME:-${HOME:-/root}/.cargo}}/bin
}

# build_plugins: the release of all plugins, static; sets PLUGINS_BINARY. BUILD_FOR is another kind of machine
# than this one, by the name that rustc has for its system with glibc.
build_plugins() {
    need_cargo
    local host target
    host=${BUILD_FOR:-$(rustc -vV | sed -n 's/^host: //p')}
    # With musl a process starts without the questions that glibc asks the processor (cpuid),
    # each of which takes microseconds in a virtual machine: a tenth of a pod's ADD. A
    # toolchain that isn't rustup's (Debian has no libstd for musl), or a machine without a network,
    # does with glibc.
    target=${host/-gnu/-musl}
    if ! command -v rustup >/dev/null ||
        ! { rustup target list --installed | grep -qx "$target" || rustup target add "$target" >/dev/null 2>&1; }; then
        target=$host
    fi
    say "Building the plugins ($target, static)"
    # Linked statically they run under any C library and start without a dynamic loader. What runs as
    # root is at a random address all the same (static-pie); packed, the relocations which that takes are
    # some 700 bytes instead of 56,000. musl's start unpacks them; glibc's does so from 2.36 on.
    # sha2 would ask the processor, too, for a few short hashes.
    # The explicit target keeps the flags away from procedural macros, which can't be static. Names of the
    # form v0 say in full what a function is, and plugins/multicall/order.ld names functions.
    local flags='-C target-feature=+crt-static -C relocation-model=pic -C symbol-mangling-version=v0 --cfg sha2_backend="soft"'
    [[ $target != *-musl* ]] || flags+=' -C link-arg=-Wl,-z,pack-relative-relocs'
    (
        cd "$ROOT"
        CARGO_ENCODED_RUSTFLAGS=${flags// /$'\x1f'}$'\x1f'$(remap) \
            cargo build --quiet --locked --release --target "$target" --target-dir "$TARGET_DIR" -p cnimble-plugins
    ) || die "building the plugins failed"
    PLUGINS_BINARY=$TARGET_DIR/$target/release/cnimble-plugins
    is_static "$PLUGINS_BINARY" || die "$PLUGINS_BINARY is not static"
    [[ -z ${BUILD_FOR:-} || $(readelf --file-header "$PLUGINS_BINARY") == *DYN* ]] || die "$PLUGINS_BINARY is at a fixed address"
}

# remap: flags for rustc, as CARGO_ENCODED_RUSTFLAGS has them, so that no path of this machine is in a binary:
# the same commit then gives the same bytes in any directory, with any cargo home.
remap() {
    printf -- '--remap-path-prefix=%s=/cargo\x1f--remap-path-prefix=%s=/cnimble' "${CARGO_HOME:-${HOME:-/root}/.cargo}" "$ROOT"
}

# is_static FILE: no dynamic loader is named in it. ldd would not do: it takes every file of another machine for static.
is_static() { [[ $(LC_ALL=C readelf --program-headers --wide "$1") != *INTERP* ]]; }

# build_command: the command cnimble; sets COMMAND_BINARY. For another kind of machine (BUILD_FOR) it is static, too.
# shellcheck disable=SC2034 # the callers use it
build_command() {
    need_cargo
    say "Building the command"
    local target=${BUILD_FOR:+${BUILD_FOR/-gnu/-musl}}
    (
        cd "$ROOT"
        CARGO_ENCODED_RUSTFLAGS=$(remap) \
            cargo build --quiet --locked --release ${target:+--target "$target"} --target-dir "$TARGET_DIR" -p cnimble
    ) || die "building the command failed"
    COMMAND_BINARY=$TARGET_DIR/${target:+$target/}release/cnimble
}

# The program that the plugin cluster-local starts, and the name that it had before. For one release a link has that
# name, so that a plugin or command of an earlier build finds the program.
CLUSTER_NAME=cluster-local-store CLUSTER_FORMER=cluster-local-etcd

# build_cluster: the program cluster-local-store; sets CLUSTER_BINARY. Another kind of machine as in build_command.
build_cluster() {
    need_cargo
    need_protoc
    say "Building $CLUSTER_NAME"
    local target=${BUILD_FOR:+${BUILD_FOR/-gnu/-musl}}
    (
        cd "$ROOT"
        CARGO_ENCODED_RUSTFLAGS=$(remap) \
            cargo build --quiet --locked --release ${target:+--target "$target"} --target-dir "$TARGET_DIR" -p cnimble-blocks
    ) || die "building $CLUSTER_NAME failed"
    CLUSTER_BINARY=$TARGET_DIR/${target:+$target/}release/$CLUSTER_NAME
}

# build_static_cluster: the same, static, for an image: its nodes may have any C library, or none. Without rustup's musl it
# is linked with glibc, whose static resolver reads /etc/hosts and asks DNS by itself from 2.34 on.
build_static_cluster() {
    need_cargo
    local BUILD_FOR=${BUILD_FOR:-$(rustc -vV | sed -n 's/^host: //p')} target name flags
    target=${BUILD_FOR/-gnu/-musl}
    name=${target//-/_}
    if rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target" >/dev/null 2>&1; then
        # The C of the crate ring asks nothing of a C library.
        export "CC_$name=cc"
        build_cluster
    else
        need_protoc
        say "Building $CLUSTER_NAME ($BUILD_FOR, static)"
        flags=-Ctarget-feature=+crt-static$'\x1f'$(remap)
        (cd "$ROOT" && CARGO_ENCODED_RUSTFLAGS=$flags cargo build --quiet --locked --release --target "$BUILD_FOR" \
            --target-dir "$TARGET_DIR" -p cnimble-blocks) || die "building $CLUSTER_NAME failed"
        CLUSTER_BINARY=$TARGET_DIR/$BUILD_FOR/release/$CLUSTER_NAME
    fi
    is_static "$CLUSTER_BINARY" || die "$CLUSTER_BINARY is not static"
}

# package_version: the version in Cargo.toml. Behind its tag, or without one, with the number of commits since and the
# commit: 0.1.0+12.g1a2b3c4, which dpkg and rpm take for newer than 0.1.0 and 0.1.0+11.
package_version() {
    local version since commits
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
    since=HEAD
    ! git -C "$ROOT" rev-parse --quiet --verify "refs/tags/v$version" >/dev/null 2>&1 || since=v$version..HEAD
    # A source without a repository is a release.
    commits=$(git -C "$ROOT" rev-list --count "$since" 2>/dev/null || echo 0)
    [[ $commits == 0 ]] || version+=+$commits.g$(git -C "$ROOT" rev-parse --short=7 HEAD)
    printf '%s\n' "$version"
}

# add_cluster DIR: builds that program, and puts it beside the plugins in DIR.
add_cluster() {
    build_cluster
    put_cluster "$CLUSTER_BINARY" "$1"
}

# put_cluster BINARY DIR: the program in DIR, and the link by its former name. What runs there goes on.
put_cluster() {
    install -m 755 "$1" "$2/.$CLUSTER_NAME.new"
    mv -fT "$2/.$CLUSTER_NAME.new" "$2/$CLUSTER_NAME"
    ln -sfn "$CLUSTER_NAME" "$2/.$CLUSTER_FORMER.new"
    mv -fT "$2/.$CLUSTER_FORMER.new" "$2/$CLUSTER_FORMER"
}

# plugin_names BINARY: one a line; the binary itself knows. RUN_BY runs that of another kind of machine.
plugin_names() {
    ${RUN_BY:+"$RUN_BY"} "$1" --list-plugins || die "$1 does not name its plugins"
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
