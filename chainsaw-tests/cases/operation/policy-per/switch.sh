#!/bin/bash
# Installs the chart with the given policyPer while it creates pods in a loop. Then it waits until the test's namespace
# has exactly the policies of that form, for the singletons db and other.
set -euo pipefail
per=$1
scratch=$(mktemp -d)
trap 'touch "$scratch/stop"; wait; rm -r "$scratch"' EXIT

pod='{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"dry-run-","labels":{"app":"db"}},"spec":{"containers":[{"name":"app","image":"x","command":["/app"]}]}}'
until [ -e "$scratch/stop" ]; do
  injected=$(kubectl create -n "$NAMESPACE" --dry-run=server -o jsonpath='{.metadata.annotations.apps\.statefulsingleton\.com/injected}' -f - <<<"$pod" 2>&1 || true)
  echo "$injected" >>"$scratch/pods"
done &

helm upgrade statefulsingleton ../../../../charts/statefulsingleton --namespace statefulsingleton --reuse-values --set policyPer="$per" --wait --timeout 3m >/dev/null

policies() {
  kubectl get clusterpolicies -l app.kubernetes.io/managed-by=statefulsingleton -o \
    jsonpath='{range .items[*]}{.metadata.annotations.apps\.statefulsingleton\.com/singleton}{.metadata.annotations.apps\.statefulsingleton\.com/namespace}{"\n"}{end}' |
    grep -E "^$NAMESPACE(/|$)" | sort | tr '\n' ' '
}
want="$NAMESPACE "
[ "$per" = namespace ] || want="$NAMESPACE/db $NAMESPACE/other "
for _ in $(seq 90); do
  [ "$(policies)" != "$want" ] || break
  sleep 1
done
touch "$scratch/stop"
wait
if [ "$(policies)" != "$want" ]; then
  echo "the policies are of $(policies), not of $want" >&2
  exit 1
fi
if grep -vx "$NAMESPACE/db" "$scratch/pods" >&2; then
  echo "and so is what became of some of $(wc -l <"$scratch/pods") pods that were created meanwhile: they are not injected" >&2
  exit 1
fi
echo "$(wc -l <"$scratch/pods") pods were created meanwhile, and all are injected"
