#!/bin/busybox sh
# The guest's first program: loads the modules, puts the host's files under a layer of memory, brings up the device
# rxe0, then runs what the host asks for. What it says itself goes to the console; `guest/mod.rs` has the other end.
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
/bin/busybox mkdir -p /proc /sys /dev /lower /layer /new
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# TOKEN, SHARE, LINK and ADDRESS.
. /guest.conf

must() {
    "$@" && return
    echo "guest: this failed: $*"
    poweroff -f
}

within() {
    chroot /new "$@"
}

while read -r module; do
    # Of two that do the same, one may not suit this processor.
    insmod "/modules/$module" || echo "guest: $module was not loaded"
done </order

must mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /lower
must mount -t tmpfs tmpfs /layer
mkdir /layer/upper /layer/work
must mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /new
must mount -t proc proc /new/proc
must mount -t sysfs sysfs /new/sys
must mount -t devtmpfs devtmpfs /new/dev
mkdir -p /new/dev/shm /new/dev/pts
must mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm
must mount -t devpts devpts /new/dev/pts
must mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share "/new$SHARE"

# libibverbs loads the drivers of all makers into each process, which takes more time than most of these live.
for file in /new/etc/libibverbs.d/*.driver; do
    case $file in */rxe.driver) ;; *) rm -f "$file" ;; esac
done

# A guest by itself has a made-up link; one of two has the wire between them.
[ "$LINK" = d0 ] && must within ip link add d0 type dummy
must within ip link set lo up
must within ip address add "$ADDRESS/24" dev "$LINK"
must within ip link set "$LINK" up
# A connection manager takes its own ports from above those that the conformance suite listens on.
must within sh -c 'echo 62100 65500 >/proc/sys/net/ipv4/ip_local_port_range'
must within rdma link add rxe0 type rxe netdev "$LINK"
# What the device has before its first use.
within rdma resource show >/new/tmp/resources

until [ -e /dev/vport0p1 ]; do sleep 0.1; done
exec 3<>/dev/vport0p1
echo "$TOKEN ready" >&3
while :; do
    # Nothing comes as long as the host has not opened its end.
    read -r job <&3 || { sleep 0.1; continue; }
    [ "$job" = off ] && break
    chroot /new /bin/sh "$SHARE/$job" </dev/null >&3 2>&1 3>&-
    echo "$TOKEN $?" >&3
done
umount "/new$SHARE"
poweroff -f
