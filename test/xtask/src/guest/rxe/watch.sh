# Runs a command with a time limit of $1 seconds; the other arguments are the command. At the limit prints the kernel
# stack of each thread of the command's processes and the RDMA resources, and kills the processes. If the command fails,
# prints the end of the kernel log.
limit=$1
shift
setsid "$@" &
job=$!
setsid sh -c '
    sleep "$1"
    echo "--- the command has not ended after $1 s; its processes:"
    for process in /proc/[0-9]*; do
        set -- "$1" "$2" $(sed "s/.*) //" "$process/stat" 2>/dev/null)
        # Fields after the name: state, parent, process group.
        [ "$5" = "$2" ] || continue
        echo "${process#/proc/}: $(tr "\0" " " <"$process/cmdline")"
        for thread in "$process"/task/*; do
            echo "    $(cat "$thread/comm") in $(cat "$thread/wchan"): $(cat "$thread/syscall")"
            sed "s/^/        /" "$thread/stack"
        done
    done
    rdma resource show
    kill -KILL "-$2"' sh "$limit" "$job" &
dog=$!
wait "$job"
status=$?
kill -KILL "-$dog" 2>/dev/null
if [ "$status" != 0 ]; then
    echo "--- status $status; end of the kernel log at $(cut -d ' ' -f 1 /proc/uptime) s:"
    # The kernel logs this at each query of a device over an emulated link.
    dmesg | grep -v 'speed is unknown' | tail -n 12
fi
exit "$status"
