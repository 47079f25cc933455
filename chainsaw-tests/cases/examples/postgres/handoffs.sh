#!/bin/bash
# Hands the singleton postgres over by the causes that ../pgbouncer leaves out, and has its server crash in between. From the first
# handoff on the server keeps its journal on the volume, where it outlives the pods.
set -euo pipefail
. ../../../scripts/postgres.sh

# The kubelet ends a pod that has run for that long, and nobody deletes it.
complete() {
  kubectl patch pod -n "$NAMESPACE" "$(status activePod)" -p '{"spec": {"activeDeadlineSeconds": 1}}'
  handed_over Completion
}

# Scaled to zero it has no holder; the one that comes afterwards is a first one.
scale_down() {
  kubectl scale -n "$NAMESPACE" deployment/postgres --replicas=0
  kubectl wait -n "$NAMESPACE" stfs/postgres --for=jsonpath='{.status.lastTransition.cause}'=ScaleDown --timeout=90s
  kubectl scale -n "$NAMESPACE" deployment/postgres --replicas=1
  handed_over Created
}

# Such a server leaves everything as it is, and the next one recovers.
crash() {
  local holder
  holder=$(status activePod)
  kubectl exec -n "$NAMESPACE" "$holder" -c postgres -- sh -c 'kill -QUIT 1'
  kubectl wait -n "$NAMESPACE" "pod/$holder" --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 --timeout=60s
  kubectl wait -n "$NAMESPACE" "pod/$holder" --for=condition=Ready --timeout=60s
  client_is_served
}

client_is_served
kubectl patch -n "$NAMESPACE" deployment postgres -p '{"spec": {"template": {"spec": {"containers": [
  {"name": "postgres", "args": ["-c", "logging_collector=on", "-c", "log_filename=postgresql.log"]}]}}}}'
handed_over Rollout
crash
complete
scale_down
