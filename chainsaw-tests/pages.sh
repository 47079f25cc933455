#!/bin/bash
# Runs the commands of pages as they are written, in the cluster that the chart is installed in. What the pages
# speak of is there: StatefulSingleton db in namespace prod, which is the quickstart by another name, and its holder.
# Some speak of it as $namespace and $name.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
kubectl config view --raw --minify --flatten >"$scratch/config"
export KUBECONFIG=$scratch/config
kubectl config set-context --current --namespace=prod >/dev/null

# A run that was ended may have left its namespace. One of that name that is somebody else's is left alone.
ours=app.kubernetes.io/part-of=statefulsingleton-pages
kubectl delete namespace -l "$ours" --timeout=90s
kubectl create namespace prod
kubectl label namespace prod "$ours"

export namespace=prod name=db
sed 's/quickstart/db/g' examples/quickstart/quickstart.yaml >"$scratch/db.yaml"
for page; do
  commands=$(awk -f chainsaw-tests/commands.awk "$page")
  [ -n "$commands" ] || continue
  echo "== $page"
  kubectl apply -f "$scratch/db.yaml"
  kubectl rollout status deployment/db --timeout=2m
  kubectl wait stfs/db --for=jsonpath='{.status.phase}'=Running --timeout=1m
  before=$SECONDS
  bash -eux -o pipefail -c "$commands"
  echo "== $page: done in $((SECONDS - before)) s"
done
kubectl delete namespace prod --timeout=90s
