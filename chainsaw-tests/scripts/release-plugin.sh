#!/bin/bash
# Builds reproducible archives of kubectl stfs with its licences for each platform of .krew.yaml, their checksums and
# Krew's manifest. Usage: release-plugin.sh VERSION DIRECTORY
set -euo pipefail
umask 022
version=$1
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

cp LICENSE controller/cmd/kubectl-stfs/kubectl_complete-stfs "$scratch"
# fill replaces a placeholder with a value.
manifest=$(<.krew.yaml)
fill() { manifest=${manifest//"{{$1}}"/"$2"}; }
fill version "$version"
archives=$(grep -oE '\{\{kubectl-stfs-[a-z0-9-]+\.tar\.gz\}\}' .krew.yaml | tr -d '{}')
for archive in $archives; do
  IFS=- read -r _ _ os arch <<<"${archive%.tar.gz}"
  binary=kubectl-stfs
  if [ "$os" = windows ]; then binary=kubectl-stfs.exe; fi
  CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$version" -o "$scratch/$binary" ./controller/cmd/kubectl-stfs
  bin/licenses ./controller/cmd/kubectl-stfs "$os/$arch" >"$scratch/THIRD-PARTY-LICENSES"
  tar -C "$scratch" --mtime=@0 --owner=0 --group=0 --numeric-owner -c "$binary" kubectl_complete-stfs LICENSE THIRD-PARTY-LICENSES | gzip -n >"$out/$archive"
  fill "$archive" "$(sha256sum <"$out/$archive" | cut -d' ' -f1)"
  echo "built $out/$archive"
done
if grep -F '{{' <<<"$manifest"; then
  echo ".krew.yaml has marks that nothing fills in" >&2
  exit 1
fi
printf '%s\n' "$manifest" >"$out/stfs.yaml"
# Each name is one word.
# shellcheck disable=SC2086
(cd "$out" && sha256sum $archives >checksums.txt)
