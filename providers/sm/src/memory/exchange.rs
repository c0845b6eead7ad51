//! Exports and imports mappings of registered shared memory, by a request and a reply between the engine threads of
//! two processes.
//!
//! The first transfer with a key of exported memory makes the initiator's engine request a mapping. The owner of the
//! memory checks the connection and the key. It replies with a descriptor, with the id of a System V segment, or
//! without a mapping. The initiator checks the reply against the peer's table of registrations, and maps the memory if
//! accesses can never raise a signal (`mapped`). Without a mapping, transfers use other copy methods.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use dapl::provider::Region;
use dapl_software::memory::rights::{AccessRight, KeyEntry};

use crate::cm::socket::{self, SetupDatagram};
use crate::cm::table::Attempt;
use crate::device::Device;
use crate::memory::backing::{BackingStore, RegionBacking};
use crate::memory::mapped::{PeerMapping, segment_space};
use crate::proto::handshake::{Datagram, ExportDescription, ExportedObject};
use crate::qp::link::{PeerEndpoint, PeerSide};

/// Requests a mapping of the peer's memory with this key, for the connection with this id. Called by the initiator's
/// engine.
pub(crate) fn request_mapping(device: &Device, id: u32, key: u32) {
    let found = {
        let connections = device.connections.lock();
        connections.by_id.get(&id).filter(|attempt| attempt.machine.is_open()).and_then(|attempt| {
            let peer_side = attempt.link.as_ref()?.peer_side()?;
            let request = Datagram::MappingRequest { from: id, to: peer_side.id, token: attempt.machine.token, key };
            Some((peer_side.peer.clone(), request))
        })
    };
    // If the connection has ended, no mapping is needed. When this request counts as lost (`Imports::tick`), another
    // connection that uses the key requests the mapping again.
    let Some((peer, request)) = found else { return };
    let Some(imports) = &peer.imports else { return };
    imports.forget_revoked(|key| peer.regions.entry(key).is_some());
    if device.socket.send(&peer.path, &request.encode(), &[]).is_err() {
        imports.cancel_request(key);
    }
}

/// Handles a request for a mapping at the owner of the memory. Ignores a request of an unknown connection.
pub(crate) fn on_mapping_request(device: &Device, request: &Datagram, sender: &Path) {
    let Datagram::MappingRequest { from, to, token, key } = *request else { return };
    let Some(pd) = with(device, sender, (from, to, token), |attempt, _| Some(attempt.conn()?.pd())) else { return };
    let is_granted = |entry: &KeyEntry| {
        entry.is_exported()
            && entry.pd() == pd
            && (entry.grants(AccessRight::RemoteRead) || entry.grants(AccessRight::RemoteWrite))
    };
    let entry = device.regions.entry(key).filter(is_granted);
    let backing =
        entry.and_then(|entry| device.regions.store.backings.get(key).filter(|known| known.region == entry.region));
    let export = backing.as_ref().and_then(export);
    let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
    if let Some(RegionBacking { store: BackingStore::OpenMemfd(memory), .. }) = &backing {
        fds.push(memory.file.as_fd());
    }
    let reply = Datagram::MappingReply { from: to, to: from, token, key, export };
    // A descriptor grants access to the memory, so it is sent only to a directory of the same user. If sending fails,
    // the peer repeats its request.
    let _ = socket::check_directory(sender, rustix::process::geteuid().as_raw())
        .and_then(|()| device.socket.send(sender, &reply.encode(), &fds));
}

fn export(backing: &RegionBacking) -> Option<ExportDescription> {
    let RegionBacking { region: Region { address, length }, offset, store } = backing;
    let object = match store {
        BackingStore::OpenMemfd(_) => ExportedObject::Descriptor,
        BackingStore::Segment(id) => ExportedObject::Segment { id: u32::try_from(*id).ok()?, space: segment_space()? },
    };
    Some(ExportDescription { address: *address, length: *length, offset: *offset, object })
}

/// Handles the reply to a request for a mapping. Called by the initiator's engine.
pub(crate) fn on_mapping_reply(device: &Device, reply: &Datagram, received: &SetupDatagram) {
    let Datagram::MappingReply { from, to, token, key, export } = *reply else { return };
    let known =
        with(device, &received.from, (from, to, token), |_, peer_side| Some((peer_side.peer.clone(), peer_side.pd)));
    let Some((peer, pd)) = known else { return };
    let Some(imports) = peer.imports.as_ref().filter(|imports| imports.is_requested(key)) else { return };
    let mapped = export.map(|export| map(&peer, pd, key, &export, received));
    if let Some(Err(why)) = &mapped {
        log::info!(
            "cannot map shared memory of peer {} (key {key:#x}): {why}; RDMA to it uses other copy methods (man 7 dapl_sm)",
            peer.path.display()
        );
    }
    imports.record_reply(key, mapped.and_then(Result::ok));
}

/// Maps the region that a peer exports, if the reply matches the peer's table of registrations.
fn map(
    peer: &Arc<PeerEndpoint>,
    pd: u32,
    key: u32,
    export: &ExportDescription,
    received: &SetupDatagram,
) -> Result<PeerMapping, &'static str> {
    let region = Region { address: export.address, length: export.length };
    let published_entry =
        || peer.regions.entry(key).filter(|entry| entry.is_exported() && entry.pd() == pd && entry.region == region);
    let entry = published_entry().ok_or("the region differs from that of the key")?;
    let writable = entry.grants(AccessRight::RemoteWrite);
    let mapped = match (export.object, &received.fds[..]) {
        (ExportedObject::Descriptor, [file]) => PeerMapping::of_file(file, export.offset, region, writable),
        (ExportedObject::Descriptor, _) => Err("the descriptor is missing"),
        (ExportedObject::Segment { space, .. }, _) if Some(space) != segment_space() => {
            Err("the segment belongs to another IPC namespace")
        }
        (ExportedObject::Segment { id, .. }, _) => {
            let id = i32::try_from(id).map_err(|_| "invalid segment id")?;
            PeerMapping::of_segment(id, export.offset, region, writable)
        }
    }?;
    // If the peer has revoked the key since the first check, the file may contain memory that this connection must not
    // access.
    published_entry().filter(|now| *now == entry).map(|_| mapped).ok_or("the peer has revoked the key")
}

/// Calls `look` with the connection that a datagram identifies by both ids, the token and the sender. Returns `None` if
/// there is no such connection.
fn with<T>(
    device: &Device,
    sender: &Path,
    (from, to, token): (u32, u32, u64),
    look: impl FnOnce(&Attempt, &PeerSide) -> Option<T>,
) -> Option<T> {
    let connections = device.connections.lock();
    let attempt = connections.by_id.get(&to)?;
    let peer_side = attempt.link.as_ref()?.peer_side()?;
    if !attempt.machine.is_joined() || attempt.machine.token != token || attempt.peer != sender || peer_side.id != from
    {
        return None;
    }
    look(attempt, peer_side)
}

/// Unmaps regions whose registration the peer has ended, and permits lost and refused requests to be repeated after
/// some time. Called by the engine once per heartbeat interval.
pub(crate) fn sweep(device: &Device) {
    let peers: Vec<Arc<PeerEndpoint>> =
        device.connections.lock().peers.values().filter_map(std::sync::Weak::upgrade).collect();
    for peer in peers {
        if let Some(imports) = &peer.imports {
            imports.forget_revoked(|key| peer.regions.entry(key).is_some());
            imports.tick();
        }
    }
}
