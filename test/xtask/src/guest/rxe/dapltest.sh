# Runs dapltest in one guest: a server and a client or, if $2 is "alone", a test without a server. $1 is the program;
# the arguments after $2 are options of the client or the test.
dapltest=$1 how=$2
shift 2
if [ "$how" = alone ]; then exec "$dapltest" -D rxe0 --timeout 120 "$@"; fi
place=$(mktemp -d)
"$dapltest" -T S -D rxe0 --timeout 120 >"$place/server" 2>&1 &
server=$!
until grep -q listening "$place/server"; do
    kill -0 "$server" || { cat "$place/server"; exit 1; }
    sleep 0.1
done
"$dapltest" -D rxe0 --timeout 120 -s 192.0.2.1 "$@"
client_status=$?
"$dapltest" -T Q -D rxe0 --timeout 120 -s 192.0.2.1
quit_status=$?
wait "$server"
server_status=$?
cat "$place/server"
rm -r "$place"
[ "$client_status" = 0 ] && [ "$quit_status" = 0 ] && [ "$server_status" = 0 ]
