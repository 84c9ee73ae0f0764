#!/usr/bin/env bash
# base-image.sh DEST.tar: a stand-in for the image python:3.13-slim, of Debian's own packages. Debian, as root.
#
# It has what the Dockerfile uses of the real one: the same Debian and Python, `python` in the path, the module venv.
set -euo pipefail
dest=$1
# The certificates of this machine: where it gets its packages, the build in the image will get them, too.
# shellcheck disable=SC2016  # "$1" is mmdebstrap's, the new root
mmdebstrap --quiet --format=tar --variant=minbase --include=python3,python3-venv,ca-certificates \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
  --customize-hook='cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/"' \
  trixie "$dest.part"
mv "$dest.part" "$dest"
