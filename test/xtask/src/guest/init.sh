#!/bin/busybox sh
# The guest's init: loads the modules, mounts the host's files below a tmpfs overlay, sets up the device rxe0, then runs
# the scripts that the host (`guest/mod.rs`) names on the virtio port. Its own output goes to the console.
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
/bin/busybox mkdir -p /proc /sys /dev /lower /layer /new
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# Sets TOKEN, SHARE, LINK and ADDRESS.
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
    # A module for another processor fails to load, such as one of two CRC implementations. The other implementation
    # suffices.
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

# Removes the configuration files of all drivers except rxe's from the overlay: libibverbs loads each driver that has
# one into each process, which takes longer than most test processes run.
for file in /new/etc/libibverbs.d/*.driver; do
    case $file in */rxe.driver) ;; *) rm -f "$file" ;; esac
done

# A single guest uses a dummy link; each of two guests uses the virtual network between them.
[ "$LINK" = d0 ] && must within ip link add d0 type dummy
must within ip link set lo up
must within ip address add "$ADDRESS/24" dev "$LINK"
must within ip link set "$LINK" up
# Ephemeral ports of the connection manager are above those on which programs listen: the qualifiers of the conformance
# suite and of dapltest, to which the connection manager socket2 adds 1000.
must within sh -c 'echo 63100 65500 >/proc/sys/net/ipv4/ip_local_port_range'
must within rdma link add rxe0 type rxe netdev "$LINK"
# Saves the resources of the device before its first use.
within rdma resource show >/new/tmp/resources

until [ -e /dev/vport0p1 ]; do sleep 0.1; done
exec 3<>/dev/vport0p1
echo "$TOKEN ready" >&3
while :; do
    # Reads fail until the host opens its end.
    read -r job <&3 || { sleep 0.1; continue; }
    [ "$job" = off ] && break
    chroot /new /bin/sh "$SHARE/$job" </dev/null >&3 2>&1 3>&-
    echo "$TOKEN $?" >&3
done
umount "/new$SHARE"
poweroff -f
