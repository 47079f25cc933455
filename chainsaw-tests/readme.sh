#!/bin/bash
# Runs the commands of the README as they are written, in the cluster that the
# chart is installed in. The make commands are run by whoever runs this.
set -euo pipefail
cd "$(dirname "$0")/.."

stuck() { # what still bears a finalizer of the project's
  kubectl get pods,statefulsingletons -A -o jsonpath='{range .items[*]}{.kind}/{.metadata.name} {.metadata.finalizers}{"\n"}{end}' |
    grep 'apps.statefulsingleton.com/' || true
}

echo "== helm uninstall, while pods hold"
helm uninstall statefulsingleton --namespace statefulsingleton --wait
left=$(stuck; kubectl get clusterpolicies -l app.kubernetes.io/managed-by=statefulsingleton -o name)
if [ -n "$left" ]; then
  echo "helm uninstall left behind: $left" >&2
  exit 1
fi
kubectl delete namespace demo --ignore-not-found --timeout=60s

echo "== The README's commands"
awk '/^```sh$/ {on = 1; next} /^```$/ {on = 0} on' README.md | grep -v '^make ' >/tmp/readme-commands.$$
trap 'rm -f /tmp/readme-commands.$$' EXIT
bash -eux -o pipefail /tmp/readme-commands.$$
