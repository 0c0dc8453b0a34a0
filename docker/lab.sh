#!/bin/bash
# JupyterLab and the worker daemon of its kernels, in one container: a kernel reaches its daemon by a Unix socket, shared
# memory and file descriptors, and none of them crosses a network. The daemon gets its settings from LOOSELEAF_DAEMON_*
# variables, JupyterLab this script's arguments. When one of the two ends, or the container is told to stop, the other is
# told to end too: first JupyterLab, whose kernels then say goodbye to a daemon that still listens.
set -u

stopping=0
# A trap: bash's wait then ends when the signal comes, and this script can pass it on.
trap 'stopping=1' TERM INT

looseleaf-worker-daemon &
daemon=$!
jupyter lab --no-browser --MultiKernelManager.default_kernel_name=looseleaf "$@" &
lab=$!

wait -n "$daemon" "$lab"
code=$?
if [ "$stopping" -eq 1 ]; then code=0; fi

kill -TERM "$lab" 2>/dev/null
wait "$lab"
kill -TERM "$daemon" 2>/dev/null
wait "$daemon"
exit "$code"
