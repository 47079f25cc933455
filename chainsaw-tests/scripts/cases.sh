#!/bin/bash
# Runs cases with chainsaw, keeps its log and report in dist, and repeats at the end what failed. Usage: cases.sh NAME FLAG...
set -euo pipefail
cd "$(dirname "$0")/../.."
name=$1
shift
mkdir -p dist
chainsaw test chainsaw-tests/cases --config chainsaw-tests/.chainsaw.yaml --no-color --set image="$APP_IMAGE" --set writer="$WRITER_IMAGE" \
  --report-format JUNIT-TEST --report-path dist --report-name "$name" "$@" | tee "dist/$name.log" || {
  awk -f chainsaw-tests/scripts/errors.awk "dist/$name.log"
  exit 1
}
