# Runs dtest client and server in one guest. $1 is the program, $2 and $3 are environment variables of the server and
# the client, the others are options of both.
dtest=$1 servers=$2 clients=$3
shift 3
place=$(mktemp -d)
env $servers "$dtest" -P rxe0 -t 120 "$@" >"$place/server" 2>&1 &
server=$!
until grep -q listening "$place/server"; do
    kill -0 "$server" || { cat "$place/server"; exit 1; }
    sleep 0.1
done
env $clients "$dtest" -P rxe0 -t 120 -h 192.0.2.1 "$@" >"$place/client" 2>&1
client_status=$?
wait "$server"
server_status=$?
cat "$place/server" "$place/client"
[ "$server_status" = 0 ] && [ "$client_status" = 0 ] || exit 1
for side in server client; do tail -n 1 "$place/$side" | grep -q 'dtest: OK (checked ' || exit 1; done
rm -r "$place"
