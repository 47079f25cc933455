#!/bin/bash
# Runs the commands of pages as they are written, in the cluster that the chart is installed in. What the pages
# speak of is there: StatefulSingleton db in namespace prod, which is the quickstart by another name, and its holder.
# Some speak of it as $namespace and $name.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A run that was ended may have left its namespace. One of that name that is somebody else's is left alone.
ours=app.kubernetes.io/part-of=statefulsingleton-pages
kubectl delete namespace -l "$ours" --timeout=90s
kubectl create namespace prod
kubectl label namespace prod "$ours"

export namespace=prod name=db
for page; do
  grep -q '^```sh$' "$page" || continue
  sed 's/quickstart/db/g' examples/quickstart/quickstart.yaml | kubectl apply -n prod -f -
  kubectl rollout status -n prod deployment/db --timeout=2m
  kubectl wait -n prod stfs/db --for=jsonpath='{.status.phase}'=Running --timeout=1m
  chainsaw-tests/scripts/commands.sh prod "$page"
done
kubectl delete namespace prod --timeout=90s
