# Functions that cause one handoff of the singleton postgres each, and wait until its client, the pod writer, writes again.

status() { kubectl get stfs postgres -n "$NAMESPACE" -o jsonpath="{.status.$1}"; }

rows() {
  kubectl exec -n "$NAMESPACE" "$(status activePod)" -c postgres -- \
    psql --username=postgres --no-align --tuples-only --command='select count(*) from written' 2>/dev/null
}

client_is_served() {
  local before now
  for _ in $(seq 60); do
    if now=$(rows); then
      [ "$now" -le "${before:-$now}" ] || return 0
      before=${before:-$now}
    fi
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

epoch=$(status epoch)
