//! Shared memory that one side has registered, mapped by the other: question and answer, both on the engine's thread.
//!
//! A transfer that finds a key of lent memory has its engine ask, once. The owner looks at what it knows of the connection
//! and of the key, and answers with a descriptor or the number of a segment, or with no. What comes back is held against the
//! peer's own table and mapped, if it can never be a signal (`mapped`). No answer, or one that makes no sense, costs nothing:
//! transfers go on as they did before.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use dapl::provider::Region;
use dapl_software::memory::rights::{AccessRight, KeyEntry};

use crate::cm::socket::{self, Received};
use crate::cm::table::Attempt;
use crate::device::Device;
use crate::memory::backing::{Backing, Store};
use crate::memory::mapped::{Mapped, segment_space};
use crate::proto::handshake::{Carrier, Datagram, Loan};
use crate::qp::link::{Peer, Theirs};

/// The initiator's engine: a connection of this id came across this key.
pub(crate) fn ask(device: &Device, id: u32, key: u32) {
    let found = {
        let book = device.book.lock();
        book.by_id.get(&id).filter(|attempt| attempt.machine.is_open()).and_then(|attempt| {
            let theirs = attempt.link.as_ref()?.theirs()?;
            let question = Datagram::Ask { from: id, to: theirs.id, token: attempt.machine.token(), key };
            Some((theirs.peer.clone(), question))
        })
    };
    // If it has ended, so has its key, or another connection asks again later.
    let Some((peer, question)) = found else { return };
    let Some(loans) = &peer.loans else { return };
    loans.forget_dead(|key| peer.regions.entry(key).is_some());
    if device.socket.send(&peer.path, &question.encode(), &[]).is_err() {
        loans.withdraw(key);
    }
}

/// The owner's engine: somebody asks. Who does not know the connection is not answered.
pub(crate) fn asked(device: &Device, question: &Datagram, sender: &Path) {
    let Datagram::Ask { from, to, token, key } = *question else { return };
    let Some(pd) = with(device, sender, (from, to, token), |attempt, _| Some(attempt.conn()?.pd())) else { return };
    let is_granted = |entry: &KeyEntry| {
        entry.is_exported()
            && entry.pd() == pd
            && (entry.grants(AccessRight::RemoteRead) || entry.grants(AccessRight::RemoteWrite))
    };
    let entry = device.regions.entry(key).filter(is_granted);
    let backing = entry.and_then(|entry| device.backings.get(key).filter(|known| known.region == entry.region));
    let loan = backing.as_ref().and_then(loan);
    let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
    if let Some(Backing { store: Store::Memory(memory), .. }) = &backing {
        fds.push(memory.file.as_fd());
    }
    let answer = Datagram::Lend { from: to, to: from, token, key, loan };
    // Descriptors of ours go to nobody else. An answer that finds no room is asked for again.
    let _ = socket::check_folder(sender, rustix::process::geteuid().as_raw())
        .and_then(|()| device.socket.send(sender, &answer.encode(), &fds));
}

fn loan(backing: &Backing) -> Option<Loan> {
    let Backing { region: Region { address, length }, offset, store } = backing;
    let carrier = match store {
        Store::Memory(_) => Carrier::Descriptor,
        Store::Segment(id) => Carrier::Segment { id: u32::try_from(*id).ok()?, space: segment_space()? },
    };
    Some(Loan { address: *address, length: *length, offset: *offset, carrier })
}

/// The initiator's engine: the answer.
pub(crate) fn answered(device: &Device, answer: &Datagram, received: &Received) {
    let Datagram::Lend { from, to, token, key, loan } = *answer else { return };
    let known = with(device, &received.from, (from, to, token), |_, theirs| Some((theirs.peer.clone(), theirs.pd)));
    let Some((peer, pd)) = known else { return };
    let Some(loans) = peer.loans.as_ref().filter(|loans| loans.is_asked(key)) else { return };
    let mapped = loan.map(|loan| map(&peer, pd, key, &loan, received));
    if let Some(Err(why)) = &mapped {
        log::info!("{}: shared memory of key {key:#x} is not mapped: {why}", peer.path.display());
    }
    loans.settle(key, mapped.and_then(Result::ok));
}

/// Maps what a peer offers, if that is what its table says of the key.
fn map(peer: &Arc<Peer>, pd: u32, key: u32, loan: &Loan, received: &Received) -> Result<Mapped, &'static str> {
    let region = Region { address: loan.address, length: loan.length };
    let says =
        || peer.regions.entry(key).filter(|entry| entry.is_exported() && entry.pd() == pd && entry.region == region);
    let entry = says().ok_or("it is not the region of the key")?;
    let writable = entry.grants(AccessRight::RemoteWrite);
    let mapped = match (loan.carrier, &received.fds[..]) {
        (Carrier::Descriptor, [file]) => Mapped::of_file(file, loan.offset, region, writable),
        (Carrier::Descriptor, _) => Err("its descriptor has not come"),
        (Carrier::Segment { space, .. }, _) if Some(space) != segment_space() => Err("a segment of another name space"),
        (Carrier::Segment { id, .. }, _) => {
            let id = i32::try_from(id).map_err(|_| "no number of a segment")?;
            Mapped::of_segment(id, loan.offset, region, writable)
        }
    }?;
    // Behind a key that has ended meanwhile there may be something else.
    says().filter(|now| *now == entry).map(|_| mapped).ok_or("the key has ended")
}

/// What is known of a connection that the sender names by both ids and its token.
fn with<T>(
    device: &Device,
    sender: &Path,
    (from, to, token): (u32, u32, u64),
    look: impl FnOnce(&Attempt, &Theirs) -> Option<T>,
) -> Option<T> {
    let book = device.book.lock();
    let attempt = book.by_id.get(&to)?;
    let theirs = attempt.link.as_ref()?.theirs()?;
    if !attempt.machine.is_joined() || attempt.machine.token() != token || attempt.peer != sender || theirs.id != from {
        return None;
    }
    look(attempt, theirs)
}

/// A round of the engine's: what has ended is unmapped, and what was lost may be asked for again.
pub(crate) fn look_after(device: &Device) {
    let peers: Vec<Arc<Peer>> = device.book.lock().peers.values().filter_map(std::sync::Weak::upgrade).collect();
    for peer in peers {
        if let Some(loans) = &peer.loans {
            loans.forget_dead(|key| peer.regions.entry(key).is_some());
            loans.grow_older();
        }
    }
}
