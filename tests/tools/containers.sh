#!/usr/bin/env bash
# containers.sh: install what builds and runs images without a Docker engine. Debian or Ubuntu, as root.
#
# Everywhere else, install these packages by your own means; the tests look for the commands only.
set -euo pipefail
packages=(buildah podman runc uidmap fuse-overlayfs conmon catatonit mmdebstrap)
commands=(buildah podman runc conmon catatonit mmdebstrap)
have() { command -v "$@" >/dev/null; }
for command in "${commands[@]}"; do have "$command" || missing=1; done
[ "${missing:-}" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "containers: root is needed to install: ${packages[*]}" >&2; exit 1; }
have apt-get || { echo "containers: no apt-get here; install: ${packages[*]}" >&2; exit 1; }
apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends "${packages[@]}" >/dev/null
