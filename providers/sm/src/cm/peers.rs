//! Attaches the memory of a peer to a connection: maps its shared-memory segments, and finds or creates the state of
//! its end point, which includes the copy methods that work with this peer.
//!
//! Descriptors and parameters of a peer are checked before a segment is mapped. The state of an end point exists while
//! a connection or an attempt refers to it.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::cm::socket::{self, MAX_FDS};
use crate::device::Device;
use crate::memory::calibration;
use crate::memory::cma;
use crate::memory::imports::Imports;
use crate::memory::map::{LastCheck, SharedMapping};
use crate::memory::regions::PeerRegions;
use crate::proto::handshake::ConnectParams;
use crate::qp::link::{PeerEndpoint, PeerSide};
use crate::settings::{ByKernel, RmaMethod};

/// Maps the peer's shared-memory segments for a connection, and closes the descriptors. `None` after an error, which
/// is logged here.
pub(crate) fn attach_peer(
    device: &Device,
    path: &Path,
    pid: i32,
    peer_id: u32,
    params: &ConnectParams,
    mut fds: Vec<OwnedFd>,
) -> Option<PeerSide> {
    if fds.len() != MAX_FDS {
        let is_full = matches!(rustix::io::dup(&device.regions.store.fd), Err(Errno::MFILE | Errno::NFILE));
        let remedy =
            if is_full { "the limit of open files is reached, raise it (ulimit -n)" } else { "the connect fails" };
        log::warn!("set-up with {}: received {} descriptors, expected {MAX_FDS}; {remedy}", path.display(), fds.len());
        return None;
    }
    let table = fds.pop()?;
    let rma = SharedMapping::of_peer(&fds.pop()?, params.geometry.rma_len(), true);
    let area = SharedMapping::of_peer_rings(&fds.pop()?, params.geometry.area_len());
    let (Some(rma), Some(area)) = (rma, area) else {
        log::warn!(
            "set-up with {}: cannot map the shared-memory segments of the peer: not sealed, wrong size, or no address \
             space (ulimit -v); the connect fails",
            path.display()
        );
        return None;
    };
    let peer = find_or_open_peer(device, path, pid, params, &table)?;
    Some(PeerSide {
        area: Arc::new(area),
        rma: Arc::new(rma),
        geometry: params.geometry,
        id: peer_id,
        pd: params.pd,
        generation: params.generation,
        reads: params.reads,
        membarrier: device.barrier && params.barrier,
        peer,
    })
}

/// Returns the state of the peer's end point. If there is none, or it belongs to an exited process, opens the peer's
/// FIFO, maps its table of registrations, and determines which copy methods work. `None` after an error, which is
/// logged here.
fn find_or_open_peer(
    device: &Device,
    path: &Path,
    pid: i32,
    params: &ConnectParams,
    table: &OwnedFd,
) -> Option<Arc<PeerEndpoint>> {
    let key = (path.to_path_buf(), params.endpoint);
    let mut connections = device.connections.lock();
    let watch = connections.watch(pid);
    let is_same = |known: &Arc<PeerEndpoint>| {
        known.pid == pid && known.watch.as_ref().map(Arc::as_ptr) == watch.as_ref().map(Arc::as_ptr)
    };
    if let Some(peer) = connections.peers.get(&key).and_then(Weak::upgrade).filter(is_same) {
        return Some(peer);
    }
    drop(connections);
    let uid = rustix::process::geteuid().as_raw();
    let fifo = socket::open_peer_fifo(path, uid)
        .inspect_err(|e| {
            log::warn!("set-up with {}: cannot open the peer's FIFO: {e}; the connect fails", path.display())
        })
        .ok()?;
    let Some(regions) = PeerRegions::map(table, params.table_slots) else {
        log::warn!(
            "set-up with {}: cannot map the peer's table of {} keys: not sealed, wrong size, or no address space (ulimit -v); the \
             connect fails",
            path.display(),
            params.table_slots
        );
        return None;
    };
    // The watch was created before `cma::probe` tests copies by process id. If the process exits in between and another
    // process gets its id, the watch reports the exit.
    let rma = &device.settings.rma;
    let wanted = rma.has(ByKernel::Cma) && params.probe_address != 0 && watch.is_some();
    let cma = AtomicBool::new(wanted && cma::probe(pid, params.probe_address, params.probe_value));
    let is_first = rma.by_kernel().next() == Some(ByKernel::Knem);
    let knem = device.regions.store.knem.is_some() && watch.is_some() && (is_first || !cma.load(Ordering::Relaxed));
    let is_timed = device.settings.calibrate && cma.load(Ordering::Relaxed);
    let offer_from = if is_timed { calibration::crossover() } else { calibration::DEFAULT_CROSSOVER_BYTES };
    let imports = (*rma == RmaMethod::Auto).then(Imports::default);
    let peer = Arc::new(PeerEndpoint {
        path: path.to_path_buf(),
        pid,
        fifo,
        regions,
        cma,
        knem: knem.into(),
        offer_from,
        imports,
        watch,
        last_check: LastCheck::default(),
        #[cfg(test)]
        allowed: u32::MAX.into(),
    });
    let mut connections = device.connections.lock();
    connections.peers.retain(|_, known| known.strong_count() > 0);
    connections.peers.insert(key, Arc::downgrade(&peer));
    Some(peer)
}
