#!/bin/bash
# Runs a command with only the processor time that nothing else needs. Usage: background.sh COMMAND...
#
# nice alone does not do that: by default, Linux compares it only within a session. So the command gets a session of its own.
set -euo pipefail
setsid bash -c '[ ! -e /proc/self/autogroup ] || echo 19 >/proc/self/autogroup; exec chrt --idle 0 "$@"' background "$@" &
trap 'kill -- -$! 2>/dev/null || true' EXIT
wait $!
trap - EXIT
