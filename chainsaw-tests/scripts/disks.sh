#!/bin/bash
# Runs a command while the local cluster has the CSI driver csi-disk, with storage class disk. Usage: disks.sh COMMAND...
set -euo pipefail
command -v mkfs.xfs >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends xfsprogs; } >/dev/null
programs=$(dirname "$(readlink -f "$(cluster tools csi)/csi-disk")")
driver=$(sed "s|PROGRAMS|$programs|; s|IMAGE|$APP_IMAGE|" "$(dirname "$0")/../cases/disks/driver.yaml")
remove() {
  # Without the driver, nothing would detach and delete the disks.
  kubectl get persistentvolumes -o jsonpath='{range .items[?(@.spec.storageClassName=="disk")]}{.metadata.name}{"\n"}{end}' |
    xargs --no-run-if-empty kubectl wait persistentvolume --for=delete --timeout=1m || echo "these disks stay" >&2
  kubectl delete -f - --timeout=2m <<<"$driver"
}
trap remove EXIT
kubectl apply -f - <<<"$driver"
kubectl rollout status -n csi-disk daemonset/node --timeout=1m
kubectl rollout status -n csi-disk deployment/controller --timeout=1m
kubectl wait csinode --all --for=jsonpath='{.spec.drivers[*].name}'=disk.csi.test --timeout=3m
"$@"
