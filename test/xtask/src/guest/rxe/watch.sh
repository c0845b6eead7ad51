# Runs a command for at most $1 seconds; the rest is the command. When it has not ended by then, says where each of its
# processes and their threads are, and ends them all. When it fails, also says what the kernel said last.
limit=$1
shift
setsid "$@" &
job=$!
setsid sh -c '
    sleep "$1"
    echo "--- no end after $1 s; what there is:"
    for process in /proc/[0-9]*; do
        set -- "$1" "$2" $(sed "s/.*) //" "$process/stat" 2>/dev/null)
        # After the name: state, parent, group.
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
    echo "--- status $status; the last that its kernel said, at $(cut -d ' ' -f 1 /proc/uptime) s:"
    # Printed at each query of a device over an emulated link.
    dmesg | grep -v 'speed is unknown' | tail -n 12
fi
exit "$status"
