#!/bin/bash
# Runs the commands of pages as written, in the cluster with the chart. For the commands, it creates StatefulSingleton db
# with a holder in namespace prod, from the quickstart, and sets $namespace and $name. The local cluster needs the images of
# make example-images.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A stopped run may have left its namespace. A namespace of the same name without the label is not deleted.
ours=app.kubernetes.io/part-of=statefulsingleton-pages
kubectl delete namespace -l "$ours" --timeout=90s
kubectl create namespace prod
kubectl label namespace prod "$ours"
# For the claims of examples/cluster. Elsewhere the default storage class provides.
kubectl delete persistentvolume -l claim-namespace=prod
[ "${CLUSTER:-}" = current ] || chainsaw-tests/scripts/volume.sh prod data-cache-{0,1,2,4}

export namespace=prod name=db
for page; do
  grep -q '^```sh$' "$page" || continue
  sed 's/quickstart/db/g' examples/quickstart/quickstart.yaml | kubectl apply -n prod -f -
  kubectl rollout status -n prod deployment/db --timeout=2m
  kubectl wait -n prod stfs/db --for=jsonpath='{.status.phase}'=Running --timeout=1m
  chainsaw-tests/scripts/commands.sh prod "$page"
done
kubectl delete namespace prod --timeout=90s
kubectl delete persistentvolume -l claim-namespace=prod
