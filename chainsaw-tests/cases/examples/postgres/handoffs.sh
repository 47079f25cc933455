#!/bin/bash
# Hands the singleton postgres over ten times, by every cause, and has its server crash twice in between. After each
# it waits until the client, the pod writer, is served again. From the first handoff on the server keeps its journal
# on the volume, where it outlives the pods.
set -euo pipefail

status() { kubectl get stfs postgres -n "$NAMESPACE" -o jsonpath="{.status.$1}"; }

rows() {
  kubectl exec -n "$NAMESPACE" "$(status activePod)" -c postgres -- \
    psql --username=postgres --no-align --tuples-only --command='select count(*) from written' 2>/dev/null || echo 0
}

client_is_served() {
  local before
  before=$(rows)
  for _ in $(seq 60); do
    [ "$(rows)" -le "$before" ] || return 0
    sleep 0.5
  done
  echo "epoch $epoch: the client has written nothing for 30 s: see kubectl logs -n $NAMESPACE writer" >&2
  exit 1
}

# handed_over CAUSE
handed_over() {
  epoch=$((epoch + 1))
  kubectl wait -n "$NAMESPACE" stfs/postgres --for=jsonpath='{.status.epoch}'="$epoch" --timeout=90s
  kubectl wait -n "$NAMESPACE" stfs/postgres --for=condition=Ready --timeout=60s
  local cause
  cause=$(status lastTransition.cause)
  if [ "$cause" != "$1" ]; then
    echo "epoch $epoch was handed over by $cause, not by $1" >&2
    exit 1
  fi
  kubectl rollout status -n "$NAMESPACE" deployment/postgres --timeout=60s
  client_is_served
}

roll() {
  kubectl rollout restart -n "$NAMESPACE" deployment/postgres
  handed_over Rollout
}

delete() {
  kubectl delete pod -n "$NAMESPACE" "$(status activePod)" --wait=false
  handed_over Deletion
}

hand_over() {
  kubectl annotate -n "$NAMESPACE" stfs postgres apps.statefulsingleton.com/handover="$epoch" --overwrite
  handed_over Handover
}

# drain CAUSE
drain() {
  local node
  node=$(status activeNode)
  kubectl drain "$node" --pod-selector=app=postgres --ignore-daemonsets --delete-emptydir-data --timeout=140s
  handed_over "$1"
  kubectl uncordon "$node"
}

evict() {
  kubectl patch -n "$NAMESPACE" stfs postgres --type=merge -p '{"spec": {"drain": "Evict"}}'
  kubectl wait -n "$NAMESPACE" poddisruptionbudget/statefulsingleton-postgres --for=delete --timeout=60s
  drain Eviction
  kubectl patch -n "$NAMESPACE" stfs postgres --type=merge -p '{"spec": {"drain": "Surge"}}'
}

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

crash() {
  local holder
  holder=$(status activePod)
  if [ "${CLUSTER:-}" = current ]; then
    # From inside nobody can kill a container's first process. This one, too, leaves everything as it is.
    kubectl exec -n "$NAMESPACE" "$holder" -c postgres -- sh -c 'kill -QUIT 1'
  else
    cluster process kill postgres
  fi
  kubectl wait -n "$NAMESPACE" "pod/$holder" --for=jsonpath='{.status.containerStatuses[0].restartCount}'=1 --timeout=60s
  kubectl wait -n "$NAMESPACE" "pod/$holder" --for=condition=Ready --timeout=60s
  client_is_served
}

epoch=$(status epoch)
client_is_served
kubectl patch -n "$NAMESPACE" deployment postgres -p '{"spec": {"template": {"spec": {"containers": [
  {"name": "postgres", "args": ["-c", "logging_collector=on", "-c", "log_filename=postgresql.log"]}]}}}}'
handed_over Rollout
roll
delete
crash
hand_over
drain Drain
evict
complete
crash
hand_over
drain Drain
scale_down
