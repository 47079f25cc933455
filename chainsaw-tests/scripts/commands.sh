#!/bin/bash
# Runs the commands of a page in the cluster with the chart. The default namespace of kubectl is NAMESPACE. Usage:
# commands.sh NAMESPACE PAGE
set -euo pipefail
cd "$(dirname "$0")/../.."
namespace=$1
page=$2

commands=$(awk -f chainsaw-tests/scripts/commands.awk "$page")
[ -n "$commands" ] || { echo "$page has no block of sh, so nothing would be run" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
kubectl config view --raw --minify --flatten >"$scratch/config"
export KUBECONFIG=$scratch/config
kubectl config set-context --current --namespace="$namespace" >/dev/null

echo "== $page"
before=$SECONDS
bash -eux -o pipefail -c "$commands"
echo "== $page: done in $((SECONDS - before)) s"
