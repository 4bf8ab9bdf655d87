# Fetches packages of any Debian suite; scripts source this file. bash, not sh.
# shellcheck shell=bash

# debian_mirror: where this machine's apt gets Debian from.
debian_mirror() {
    # shellcheck disable=SC2016 # apt's own placeholder
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        grep -m 1 '/debian/$' || echo http://deb.debian.org/debian/
}

# fetch_packages SUITE MIRROR DIR PACKAGE...: the .deb files of the packages, in DIR/deb. The suite
# need not be this machine's. apt checks the signatures; it has lists, a cache and settings of its
# own. It ignores the machine's lists, preferences and hooks, and honours its proxies and logins.
# DEBIAN_ARCH names another architecture than this machine's. On failure it says why on stderr and returns 1.
fetch_packages() {
    local suite=$1 mirror=$2 dir=$3 arch keys=/usr/share/keyrings/debian-archive-keyring.gpg
    shift 3
    local log=$dir/log
    if [[ ! -e $keys ]]; then
        echo "error: $keys is missing (Debian package debian-archive-keyring)" >&2
        return 1
    fi
    arch=${DEBIAN_ARCH:-$(dpkg --print-architecture)} || return 1
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/deb" || return 1
    echo "deb [arch=$arch signed-by=$keys] $mirror $suite main" >"$dir/sources"
    cat >"$dir/conf" <<END
#clear APT::Update;
#clear APT::Default-Release;
#clear Acquire::IndexTargets;
Acquire::IndexTargets::deb::Packages {
    MetaKey "\$(COMPONENT)/binary-\$(ARCHITECTURE)/Packages";
    flatMetaKey "Packages";
    ShortDescription "Packages";
    Description "\$(RELEASE)/\$(COMPONENT) \$(ARCHITECTURE) Packages";
};
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "root";
Dir::Etc::SourceList "$dir/sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$dir";
Dir::State::Lists "$dir/lists";
Dir::State::Status "/dev/null";
Dir::Cache "$dir/cache";
END
    if ! apt-get --config-file "$dir/conf" -q --error-on=any update >"$log" 2>&1 ||
        ! (cd "$dir/deb" && apt-get --config-file "$dir/conf" -q download "$@" >"$log" 2>&1); then
        grep -E '^(E|W|Err):' "$log" >&2 || tail -n 5 "$log" >&2
        echo "error: could not fetch $* of Debian $suite from $mirror" >&2
        return 1
    fi
}
