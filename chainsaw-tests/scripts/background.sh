#!/bin/bash
# Runs a command with only the processor time that nothing else needs. Usage: background.sh COMMAND...
#
# A low priority alone does not do that, because Linux by default compares priorities only within a session (autogroups in sched(7)).
# So the command gets a session of its own, with a low priority too.
set -euo pipefail
setsid bash -c '[ ! -e /proc/self/autogroup ] || echo 19 >/proc/self/autogroup; exec chrt --idle 0 "$@"' background "$@" &
trap 'kill -- -$! 2>/dev/null || true' EXIT
wait $!
trap - EXIT
