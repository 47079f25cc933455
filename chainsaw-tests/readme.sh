#!/bin/bash
# Runs the commands of the README, and of the chart's, as they are written, in the
# cluster that the chart is installed in. The make commands are run by whoever runs this.
set -euo pipefail
cd "$(dirname "$0")/.."

# What still bears a finalizer of the project's. Whatever the namespace controller overlooked, as it may just
# after the API server has started, is in no namespace any more, and nobody can write it.
stuck() {
  kubectl get pods,statefulsingletons -A -o jsonpath='{range .items[*]}{.metadata.namespace} {.kind}/{.metadata.name} {.metadata.finalizers}{"\n"}{end}' |
    while read -r namespace object; do
      case $object in *apps.statefulsingleton.com/*) ;; *) continue ;; esac
      if kubectl get namespace "$namespace" >/dev/null 2>&1; then echo "$namespace $object"; fi
    done
}

echo "== helm uninstall, while pods hold"
helm uninstall statefulsingleton --namespace statefulsingleton --wait
left=$(stuck; kubectl get clusterpolicies -l app.kubernetes.io/managed-by=statefulsingleton -o name)
if [ -n "$left" ]; then
  echo "helm uninstall left behind: $left" >&2
  exit 1
fi
kubectl delete namespace demo --ignore-not-found --timeout=60s

echo "== The commands of the README and of the chart's"
bash -eux -o pipefail -c "$(awk -f chainsaw-tests/commands.awk README.md charts/statefulsingleton/README.md | grep -v '^make ')"
