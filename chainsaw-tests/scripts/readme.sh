#!/bin/bash
# Runs the commands of the README and of the chart's README as written, in the cluster with the chart. The caller runs
# the make commands. Then the script installs the manifests of a release and uninstalls them, as the chart's README says.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Lists the objects that still have a finalizer of the project. Just after the start of the API server, the namespace
# controller can miss objects. Their namespace no longer exists, and they cannot be changed.
stuck() {
  kubectl get pods,statefulsingletons,statefulsetlocks,statefulclusters -A -o jsonpath='{range .items[*]}{.metadata.namespace} {.kind}/{.metadata.name} {.metadata.finalizers}{"\n"}{end}' |
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
bash -eux -o pipefail -c "$(awk -f chainsaw-tests/scripts/commands.awk README.md charts/statefulsingleton/README.md | grep -v '^make ')"

echo "== The manifests of a release"
make release-manifest helm=helm
(
  set -x
  cd dist/release
  kubectl apply -f statefulsingleton-crds.yaml
  kubectl apply -f statefulsingleton.yaml -f statefulsingleton-clusters.yaml
  kubectl rollout status --namespace statefulsingleton deployment/statefulsingleton --timeout=3m
  kubectl rollout status --namespace statefulsingleton deployment/statefulsingleton-clusters --timeout=3m
  kubectl apply -f ../../examples/quickstart
  kubectl rollout status deployment/quickstart --timeout=2m
  kubectl wait --for=condition=Ready stfs/quickstart --timeout=1m
  kubectl apply -f statefulsingleton-uninstall.yaml
  kubectl wait --namespace statefulsingleton --for=condition=Complete job/statefulsingleton-uninstall --timeout=5m
  kubectl delete -f statefulsingleton-uninstall.yaml -f statefulsingleton-clusters.yaml -f statefulsingleton.yaml --ignore-not-found --timeout=3m
)
left=$(stuck; kubectl get clusterpolicies -l app.kubernetes.io/managed-by=statefulsingleton -o name)
if [ -n "$left" ]; then
  echo "the manifests left behind: $left" >&2
  exit 1
fi
kubectl delete -f examples/quickstart --timeout=1m
