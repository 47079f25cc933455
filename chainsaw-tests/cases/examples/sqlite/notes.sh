#!/bin/bash
# Adds a note, or lists them where none is given, in the container that holds.
set -euo pipefail
kubectl exec -n "$NAMESPACE" "$(kubectl get stfs notes -n "$NAMESPACE" -o jsonpath='{.status.activePod}')" -c notes -- python3 -c '
import sys, urllib.request
note = sys.argv[1].encode() if len(sys.argv) > 1 else None
print(urllib.request.urlopen("http://127.0.0.1:8080/notes", data=note).read().decode())' "$@"
