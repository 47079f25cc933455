#!/bin/bash
# Changes the primary of examples/lock-postgres by every cause, ROUNDS times (default 1), while the pod writer writes.
set -euo pipefail

status() { kubectl get ssl orders -n "$NAMESPACE" -o jsonpath="{.status.$1}"; }
node() { kubectl get pod -n "$NAMESPACE" "$1" -o jsonpath='{.spec.nodeName}'; }
query() { kubectl exec -n "$NAMESPACE" "$1" -c postgres -- psql --username=postgres --no-align --tuples-only --command="$2" 2>/dev/null; }

# pods ROLE prints the pods with the role and their nodes.
pods() { kubectl get pods -n "$NAMESPACE" -l "app=orders,sts-role=$1" -o jsonpath='{range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}'; }

# Prints the state of each server and the log of the client. Commands have a timeout, because a node can be cut off.
explain() {
  kubectl get ssl,pods,endpointslices -n "$NAMESPACE" -o wide
  local pod
  for pod in orders-0 orders-1 orders-2 writer; do
    timeout 5 kubectl logs -n "$NAMESPACE" "$pod" --all-containers --prefix --tail=25 || true
  done
  for pod in orders-0 orders-1 orders-2; do
    echo "$pod: connections by state, then those of its standbys"
    timeout 5 kubectl exec -n "$NAMESPACE" "$pod" -c postgres -- psql --username=postgres \
      --command="select backend_type, state, wait_event, count(*) from pg_stat_activity group by 1, 2, 3" \
      --command="select application_name, state, sync_state, flush_lsn from pg_stat_replication" || true
  done
}

# await WHAT SECONDS COMMAND...
await() {
  local what=$1 until=$((SECONDS + $2))
  shift 2
  until "$@"; do
    if [ $SECONDS -ge $until ]; then
      echo "epoch $epoch: not in time: $what" >&2
      explain >&2
      exit 1
    fi
    sleep 0.5
  done
}

next_writer() { [ "$(status epoch)" -gt "$epoch" ] && kubectl wait -n "$NAMESPACE" ssl/orders --for=condition=Ready --timeout=1s >/dev/null 2>&1; }
rows() { query "$(status writerPod)" 'select count(*) from written'; }
more_rows() { local now; now=$(rows) && [ "$now" -gt "$before" ]; }
standbys_stream() { [ "$(query "$(status writerPod)" "select count(*) from pg_stat_replication where state = 'streaming'")" = 2 ]; }

client_is_served() {
  before=$(rows) || before=0 # the table does not exist yet
  local start=$SECONDS
  await "the client writes" 40 more_rows
  # Commits wait for a standby. A standby that does not follow for 10 s copies all data.
  if [ $((SECONDS - start)) -gt 10 ]; then
    echo "epoch $epoch: the client waited for $((SECONDS - start)) s" >&2
    explain >&2
  fi
}

# Waits for the next writer, and for both standbys. Only the writer is a primary.
failed_over() {
  await "the next writer after $1" 150 next_writer
  epoch=$(status epoch)
  client_is_served
  await "two standbys after $1" 90 standbys_stream
  local writer pod
  writer=$(status writerPod)
  for pod in orders-0 orders-1 orders-2; do
    if [ "$(query $pod 'select pg_is_in_recovery()')" != "$([ $pod = "$writer" ] && echo f || echo t)" ]; then
      echo "epoch $epoch: pod $pod has another role than its server, the writer is $writer" >&2
      exit 1
    fi
  done
  echo "epoch $epoch: $writer after $1"
}

delete() {
  kubectl delete pod -n "$NAMESPACE" "$(status writerPod)" --wait=false
  failed_over "a deletion"
}

crash() {
  kubectl exec -n "$NAMESPACE" "$(status writerPod)" -c postgres -- sh -c 'read -r pid <"$PGDATA/postmaster.pid"; kill -KILL "$pid"'
  failed_over "a crash"
}

drain() {
  local from
  from=$(node "$(status writerPod)")
  kubectl drain "$from" --pod-selector=app=orders --ignore-daemonsets --delete-emptydir-data --timeout=140s
  failed_over "a drain"
  kubectl uncordon "$from"
}

roll() {
  local before=$epoch
  kubectl rollout restart -n "$NAMESPACE" statefulset/orders
  kubectl rollout status -n "$NAMESPACE" statefulset/orders --timeout=180s
  failed_over "a rollout"
  if [ $((epoch - before)) -gt 2 ]; then
    echo "epoch $epoch: the rollout changed the writer $((epoch - before)) times, want at most 2" >&2
    exit 1
  fi
}

writer_is_apart() { [ "$(node "$(status writerPod)")" != "$client" ]; }
replicas_are_ready() { kubectl rollout status -n "$NAMESPACE" statefulset/orders --timeout=1s >/dev/null 2>&1; }

# Cuts off the node of the writer. The client and both standbys are on another node.
cut_off() {
  client=$(node writer)
  local pod on from
  if ! writer_is_apart; then
    kubectl cordon "$client"
    read -r pod on < <(pods reader)
    [ "$on" != "$client" ] || kubectl delete pod -n "$NAMESPACE" "$pod"
    failed_over "a cordon"
    await "a writer on another node" 60 writer_is_apart
    kubectl uncordon "$client"
  fi
  from=$(node "$(status writerPod)")
  kubectl taint node "$from" test=cut-off:PreferNoSchedule --overwrite
  while read -r pod on; do
    [ "$on" != "$from" ] || kubectl delete pod -n "$NAMESPACE" "$pod"
    await "the pod after $pod" 90 replicas_are_ready
  done < <(pods reader)
  await "two standbys" 90 standbys_stream
  if pods reader | grep -q " $from$"; then
    echo "a standby is on node $from again" >&2
    exit 1
  fi
  cluster node partition "$from"
  await "the next writer after a lost node" 150 next_writer
  epoch=$(status epoch)
  client_is_served
  cluster node heal "$from"
  kubectl taint node "$from" test-
  await "two standbys after a lost node" 150 standbys_stream
  echo "epoch $epoch: $(status writerPod) after a lost node"
}

epoch=$(status epoch)
client_is_served
for _ in $(seq "${ROUNDS:-1}"); do
  delete
  crash
  drain
  roll
  [ "${CLUSTER:-}" = current ] || cut_off
done
