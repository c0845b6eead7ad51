//! RDMA: straight across by the kernel where that works, else in fragments that the target copies (SM-17..SM-22).

use std::sync::atomic::Ordering;

use dapl::provider::{Remote, Status};

use super::{Pending, Request, Stage, Step, TxEnds};
use crate::by_kernel;
use crate::cma::{self, Refusal, Way};
use crate::half::Shared;
use crate::proto::message::{Fragment, Header, Kind, LINE};
use crate::regions::{Target, Wish};
use crate::ring::Cargo;
use crate::segments::gather;

/// Bytes of an RMA fragment.
const FRAGMENT: usize = 32 << 10;

impl TxEnds {
    pub(super) fn rma(
        &mut self,
        shared: &Shared,
        request: &mut Request,
        number: u64,
        remote: Remote,
        way: Way,
        budget: &mut u64,
    ) -> Step {
        let total = request.segments.total();
        if total > shared.max_rdma || remote.address.checked_add(total).is_none() {
            return Step::Failed(if total > shared.max_rdma { Status::LocalLength } else { Status::RemoteAccess });
        }
        if way == Way::Read && self.most_reads(shared) == 0 {
            return Step::Failed(Status::RemoteResponder);
        }
        if total == 0 {
            request.stage = Stage::Done;
            return Step::Whole { wrote: false };
        }
        // Fragments under way must land before the kernel copies the rest, so a method is kept to the end of a request.
        let by_kernel = self.link.theirs().is_some_and(|t| by_kernel::reaches(&t.peer, remote.key));
        if by_kernel && request.issued == request.answered && self.pending.is_empty() {
            match self.copy_across(shared, request, remote, way, budget) {
                Ok(true) => return Step::Whole { wrote: false },
                Ok(false) => return Step::Part { wrote: false },
                Err(Some(status)) => return Step::Failed(status),
                Err(None) => {} // refused: the bounce buffer is always there
            }
        }
        self.fragment(shared, request, number, remote, way)
    }

    /// By the kernel, piece by piece. `Err(None)`: not allowed here, use the other way.
    fn copy_across(
        &mut self,
        shared: &Shared,
        request: &mut Request,
        remote: Remote,
        way: Way,
        budget: &mut u64,
    ) -> Result<bool, Option<Status>> {
        let theirs = self.link.theirs().ok_or(Some(Status::Transport))?;
        let (peer, pd) = (&theirs.peer, theirs.pd);
        let (local, wish) = match way {
            Way::Write => (Wish::LocalRead, Wish::RemoteWrite),
            Way::Read => (Wish::LocalWrite, Wish::RemoteRead),
        };
        while request.issued < request.segments.total() {
            self.hungry = *budget == 0;
            if self.hungry {
                return Ok(false);
            }
            let chunk = (cma::CHUNK as u64).min(*budget);
            let Some(piece) = request.segments.pieces(request.issued, chunk).next() else { break };
            let target =
                Target { key: remote.key, pd, address: remote.address + request.issued, length: piece.length, wish };
            let _hold = shared.regions.hold(piece.key, shared.pd, piece.address, piece.length, local).map_err(Some)?;
            let announced = peer.regions.announce(self.link.busy(), &target).map_err(Some)?;
            fail_point!(KeyAnnounced);
            if !peer.lives(&shared.regions.ticker) {
                return Err(Some(Status::Transport));
            }
            // SAFETY: the local piece is registered for this use and held during the copy.
            let copied = unsafe { by_kernel::copy(&shared.regions, peer, way, &piece, &target) };
            fail_point!(PieceCopied);
            drop(announced);
            match copied {
                Ok(()) if !peer.regions.allows(&target) => return Err(Some(Status::RemoteAccess)),
                Ok(()) => {}
                Err(Refusal::Gone) => return Err(Some(Status::Transport)),
                Err(Refusal::Fault) => return Err(Some(Status::RemoteAccess)),
                Err(Refusal::Here) => return Err(Some(Status::LocalProtection)),
                Err(Refusal::Denied) => {
                    log::info!("cross-memory copy to process {} was refused; going on by shared buffers", peer.pid);
                    peer.cma.store(false, Ordering::Relaxed);
                    return Err(None);
                }
            }
            request.issued += piece.length;
            request.answered = request.issued;
            request.stage = Stage::Running;
            *budget -= piece.length;
        }
        self.hungry = false;
        request.stage = Stage::Done;
        Ok(true)
    }

    /// Reads under way at a time: neither more than we want nor than the peer takes.
    fn most_reads(&self, shared: &Shared) -> u32 {
        shared.max_reads_out.min(self.link.theirs().map_or(0, |theirs| theirs.reads))
    }

    /// By fragments in our RMA buffer that the target copies.
    fn fragment(&mut self, shared: &Shared, request: &mut Request, number: u64, remote: Remote, way: Way) -> Step {
        let total = request.segments.total();
        let read = way == Way::Read;
        let begins = read && request.stage == Stage::Waiting;
        if begins && self.reads >= self.most_reads(shared) {
            return Step::Part { wrote: false };
        }
        let mut wrote = false;
        // The ring of answers is the target's.
        let most = self.link.theirs().map_or(0, |theirs| theirs.geometry.max_fragments()) as usize;
        while request.issued < total {
            let length = (total - request.issued).min(FRAGMENT as u64) as usize;
            if self.requests.is_full() || self.pending.len() >= most {
                return Step::Part { wrote };
            }
            let Some((line, mark)) = self.rma.reserve(1 + length.div_ceil(LINE)) else { return Step::Part { wrote } };
            fail_point!(FragmentReserved);
            self.pending.push_back(Pending {
                request: number,
                line,
                mark,
                offset: request.issued,
                length: length as u32,
                read,
            });
            if let Err(status) = self.fill(shared, request, remote, line, length, read) {
                self.pending.pop_back();
                return Step::Failed(status);
            }
            fail_point!(FragmentFilled);
            let kind = if read { Kind::RmaRead } else { Kind::RmaWrite };
            let cargo = Cargo { aux: line, ..self.cargo(shared) };
            self.requests.push(Header::plain(kind, 0), &cargo);
            request.issued += length as u64;
            request.stage = Stage::Running;
            self.reads += u32::from(begins && !wrote);
            wrote = true;
        }
        // Complete when all is answered; no ring slot says so.
        request.stage = if request.answered == total { Stage::Done } else { Stage::Sent(u64::MAX) };
        Step::Whole { wrote }
    }

    /// Line 0 describes the fragment; a write's payload follows.
    fn fill(
        &self,
        shared: &Shared,
        request: &Request,
        remote: Remote,
        line: u32,
        length: usize,
        read: bool,
    ) -> Result<(), Status> {
        let at = line as usize * LINE;
        if !read {
            let to = self.link.rma.bytes(at + LINE, length).ok_or(Status::LocalEp)?;
            // SAFETY: lines reserved for this fragment, in our RMA buffer.
            unsafe { gather(&shared.regions, shared.pd, &request.segments, request.issued, to, length) }?;
        }
        let fragment = Fragment {
            key: remote.key,
            length: length as u32,
            address: remote.address + request.issued,
            origin: request.issued,
            cookie: request.token.cookie,
        };
        for (n, word) in fragment.encode().into_iter().enumerate() {
            self.link.rma.word(at + n * 8).store(word, Ordering::Relaxed);
        }
        Ok(())
    }
}
