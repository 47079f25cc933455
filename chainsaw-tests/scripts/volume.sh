#!/bin/bash
# Creates the volumes of claims on the local cluster, which has no provisioner. The nodes share the machine's /tmp, so
# one directory is the volume on all nodes. Usage: volume.sh NAMESPACE CLAIM...
set -euo pipefail
namespace=$1
shift

parent=/tmp/statefulsingleton-tests
mkdir -p "$parent"
for claim; do
  directory=$(mktemp -d "$parent/volume-XXXXXXXX")
  chmod 755 "$directory"
  kubectl create -f - <<YAML
apiVersion: v1
kind: PersistentVolume
metadata:
  generateName: $claim-
  labels: {claim-namespace: $namespace}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce, ReadWriteMany]
  claimRef: {name: $claim, namespace: $namespace}
  local: {path: $directory}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: kubernetes.io/hostname, operator: Exists}
YAML
done
