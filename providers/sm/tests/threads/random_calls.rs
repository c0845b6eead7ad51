//! Threads that make random calls with random handles: valid, freed or of another kind.
//!
//! Every call must return. Each receive has its own memory, and sent memory is only read. Otherwise the consumer itself
//! would have data races.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dat_abi::*;

use crate::entries::{Handle, address, blank, cookie, crew, dat, made, request, sure};
use crate::pair::{End, connect};

/// Length of a message in bytes.
const MESSAGE: usize = 200;
/// Number of message buffers.
const BUFFERS: usize = 1 << 14;
/// Number of shared handles of each kind.
const HANDLES: usize = 6;

#[derive(Clone, Copy)]
enum Kind {
    Pz,
    Cno,
    Evd,
    Ep,
    Lmr,
    Rmr,
    Psp,
    Rsp,
    Srq,
    Cr,
}

const KINDS: usize = 10;

/// State shared by the threads that make random calls.
pub(crate) struct SharedHandles {
    ia: AtomicPtr<c_void>,
    address: AtomicPtr<DAT_SOCK_ADDR>,
    handles: [[AtomicPtr<c_void>; HANDLES]; KINDS],
    /// The last qualifier for which a listener was created.
    qual: AtomicU64,
    /// Local context of the last LMR of `memory` that a thread has created.
    local: AtomicU32,
    /// Remote context of the same LMR.
    remote: AtomicU32,
    /// The message buffers. Transfers read from the first buffer, and write to the others.
    memory: &'static [MaybeUninit<u8>],
    next_buffer: AtomicUsize,
}

impl SharedHandles {
    /// Creates the shared state, with some connections.
    pub(crate) fn new(ia: Handle) -> Self {
        let shared = SharedHandles {
            ia: AtomicPtr::new(ia),
            address: AtomicPtr::new(address(ia)),
            handles: Default::default(),
            qual: AtomicU64::new(0),
            local: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            // The memory is never freed, because transfers may be in flight while the IA exists.
            memory: Vec::leak(vec![MaybeUninit::new(0); MESSAGE * BUFFERS]),
            next_buffer: AtomicUsize::new(1),
        };
        let pz = sure(made!(pz_create_func(ia)));
        let put = |kind: Kind, at: usize, handle| shared.handles[kind as usize][at].store(handle, Ordering::Relaxed);
        put(Kind::Pz, 0, pz);
        for pair in 0..2 {
            let ends = [End::new(ia, pz), End::new(ia, pz)];
            connect(ia, ends[0], ends[1]);
            for (n, end) in ends.into_iter().enumerate() {
                put(Kind::Ep, 2 * pair + n, end.ep());
                put(Kind::Evd, 2 * n, end.received());
                put(Kind::Evd, 2 * n + 1, end.sent());
            }
        }
        RandomCaller { shared: &shared, random: 1 }.register(pz);
        shared
    }

    /// Starts `count` threads that make `calls` random calls each. A thread may close the IA during this time.
    pub(crate) fn open(&self, count: u64, calls: u32) {
        crew(|crew| {
            for seed in 1..=count {
                let mut caller = RandomCaller { shared: self, random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
                crew.spawn(move || (0..calls).for_each(|_| caller.act()));
            }
        });
    }
}

struct RandomCaller<'a> {
    shared: &'a SharedHandles,
    random: u64,
}

impl RandomCaller<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % n
    }

    fn slot(&mut self, kind: Kind) -> &AtomicPtr<c_void> {
        let at = self.below(HANDLES as u64) as usize;
        &self.shared.handles[kind as usize][at]
    }

    /// Returns a handle of this kind, and in rare cases of another kind.
    fn some(&mut self, kind: Kind) -> Handle {
        if self.below(40) == 0 {
            let any = self.below(KINDS as u64) as usize;
            return self.shared.handles[any][0].load(Ordering::Relaxed);
        }
        self.slot(kind).load(Ordering::Relaxed)
    }

    /// Publishes a new handle to the other threads, in place of an older one. Half of the replaced objects are freed;
    /// the others exist until the IA is closed.
    fn publish(&mut self, kind: Kind, (code, handle): (DAT_RETURN, Handle)) {
        if code == DAT_SUCCESS {
            let old = self.slot(kind).swap(handle, Ordering::Relaxed);
            if self.below(2) == 0 {
                self.free(kind, old);
            }
        }
    }

    fn free(&mut self, kind: Kind, handle: Handle) {
        match kind {
            Kind::Pz => dat!(pz_free_func(handle)),
            Kind::Cno => dat!(cno_free_func(handle)),
            Kind::Evd => dat!(evd_free_func(handle)),
            Kind::Ep => dat!(ep_free_func(handle)),
            Kind::Lmr => dat!(lmr_free_func(handle)),
            Kind::Rmr => dat!(rmr_free_func(handle)),
            Kind::Psp => dat!(psp_free_func(handle)),
            Kind::Rsp => dat!(rsp_free_func(handle)),
            Kind::Srq => dat!(srq_free_func(handle)),
            Kind::Cr => dat!(cr_reject_func(handle)),
        };
    }

    fn ia(&self) -> Handle {
        self.shared.ia.load(Ordering::Relaxed)
    }

    /// Returns a segment of the first buffer, which no thread writes.
    fn message(&mut self) -> DAT_LMR_TRIPLET {
        self.segment(0)
    }

    /// Returns a segment of a buffer that no other call uses; an empty segment after all buffers were used.
    fn own_buffer(&mut self) -> DAT_LMR_TRIPLET {
        let buffer = self.shared.next_buffer.fetch_add(1, Ordering::Relaxed);
        let mut segment = self.segment(buffer % BUFFERS);
        if buffer >= BUFFERS {
            segment.segment_length = 0;
        }
        segment
    }

    fn segment(&mut self, buffer: usize) -> DAT_LMR_TRIPLET {
        DAT_LMR_TRIPLET {
            lmr_context: self.shared.local.load(Ordering::Relaxed),
            pad: 0,
            virtual_address: self.shared.memory[buffer * MESSAGE..].as_ptr() as u64,
            segment_length: 1 + self.below(MESSAGE as u64),
        }
    }

    fn act(&mut self) {
        // Most calls post work or take events. Otherwise all handles would soon be freed.
        match self.below(40) {
            0..4 => self.make(),
            4..8 => self.ask(),
            8 => self.end(),
            9..12 => self.meet(),
            _ => self.work(),
        }
    }

    fn make(&mut self) {
        const NO_AGENT: DAT_OS_WAIT_PROXY_AGENT =
            DAT_OS_WAIT_PROXY_AGENT { instance_data: null_mut(), proxy_agent_func: None };
        let ia = self.ia();
        match self.below(12) {
            0 => self.publish(Kind::Pz, made!(pz_create_func(ia))),
            1 => self.publish(Kind::Cno, made!(cno_create_func(ia, NO_AGENT))),
            2 | 3 => {
                let cno = if self.below(3) == 0 { self.some(Kind::Cno) } else { null_mut() };
                let flags = (DAT_EVD_DEFAULT_FLAG & !DAT_EVD_ASYNC_FLAG) | DAT_EVD_SOFTWARE_FLAG;
                self.publish(Kind::Evd, made!(evd_create_func(ia, 64, cno, flags)));
            }
            4..=6 => {
                let (pz, evds) = (self.some(Kind::Pz), [Kind::Evd; 3].map(|kind| self.some(kind)));
                self.publish(Kind::Ep, made!(ep_create_func(ia, pz, evds[0], evds[1], evds[2], null())));
            }
            7 => {
                let pz = self.some(Kind::Pz);
                self.register(pz);
            }
            8 => {
                let pz = self.some(Kind::Pz);
                self.publish(Kind::Rmr, made!(rmr_create_func(pz)));
            }
            9 => {
                let pz = self.some(Kind::Pz);
                let mut attr = DAT_SRQ_ATTR { max_recv_dtos: 16, max_recv_iov: 2, low_watermark: 0 };
                self.publish(Kind::Srq, made!(srq_create_func(ia, pz, &mut attr)));
            }
            _ => {
                let (evd, mut qual) = (self.some(Kind::Evd), 0);
                let psp = made!(psp_create_any_func(ia, &mut qual, evd, DAT_PSP_CONSUMER_FLAG));
                if psp.0 == DAT_SUCCESS {
                    self.shared.qual.store(qual, Ordering::Relaxed);
                }
                self.publish(Kind::Psp, psp);
            }
        }
    }

    /// Registers all message buffers in one LMR, and publishes it and its contexts.
    fn register(&mut self, pz: Handle) {
        let memory = self.shared.memory;
        let region = DAT_REGION_DESCRIPTION { for_va: memory.as_ptr().cast_mut().cast() };
        let (mut lmr, mut local, mut remote, mut length, mut at) = (null_mut(), 0, 0, 0, 0);
        let code = dat!(lmr_create_func(
            self.ia(),
            DAT_MEM_TYPE_VIRTUAL,
            region,
            memory.len() as u64,
            pz,
            DAT_MEM_PRIV_ALL_FLAG,
            &mut lmr,
            &mut local,
            &mut remote,
            &mut length,
            &mut at
        ));
        if code == DAT_SUCCESS {
            self.shared.local.store(local, Ordering::Relaxed);
            self.shared.remote.store(remote, Ordering::Relaxed);
        }
        self.publish(Kind::Lmr, (code, lmr));
    }

    fn ask(&mut self) {
        /// Queries an object, into a record with space for all of its attributes.
        macro_rules! query {
            ($function:ident, $record:ty, $kind:ident, $mask:expr) => {{
                let mut record = MaybeUninit::<$record>::zeroed();
                dat!($function(self.some(Kind::$kind), $mask, record.as_mut_ptr()));
            }};
        }
        match self.below(13) {
            0 => query!(pz_query_func, DAT_PZ_PARAM, Pz, DAT_PZ_FIELD_ALL),
            1 => query!(cno_query_func, DAT_CNO_PARAM, Cno, DAT_CNO_FIELD_ALL),
            2 => query!(evd_query_func, DAT_EVD_PARAM, Evd, DAT_EVD_FIELD_ALL),
            3 => query!(ep_query_func, DAT_EP_PARAM, Ep, DAT_EP_FIELD_ALL),
            4 => query!(lmr_query_func, DAT_LMR_PARAM, Lmr, DAT_LMR_FIELD_ALL),
            5 => query!(rmr_query_func, DAT_RMR_PARAM, Rmr, DAT_RMR_FIELD_ALL),
            6 => query!(psp_query_func, DAT_PSP_PARAM, Psp, DAT_PSP_FIELD_ALL),
            7 => query!(srq_query_func, DAT_SRQ_PARAM, Srq, DAT_SRQ_FIELD_ALL),
            8 => query!(cr_query_func, DAT_CR_PARAM, Cr, DAT_CR_FIELD_ALL),
            9 => {
                let mut attr = MaybeUninit::<DAT_IA_ATTR>::zeroed();
                dat!(ia_query_func(self.ia(), null_mut(), DAT_IA_FIELD_ALL, attr.as_mut_ptr(), 0, null_mut()));
            }
            10 => {
                let (mut state, mut idle) = (0, [0; 2]);
                let [receives, requests] = &mut idle;
                dat!(ep_get_status_func(self.some(Kind::Ep), &mut state, receives, requests));
            }
            11 => {
                let mut context = DAT_CONTEXT { as_64: 0 };
                dat!(get_consumer_context_func(self.some(Kind::Ep), &mut context));
                dat!(set_consumer_context_func(self.some(Kind::Ep), context));
            }
            _ => {
                let mut kind = 0;
                dat!(get_handle_type_func(self.some(Kind::Evd), &mut kind));
            }
        }
    }

    fn end(&mut self) {
        match self.below(5) {
            0 => {
                const ALL: [Kind; KINDS] = [
                    Kind::Pz,
                    Kind::Cno,
                    Kind::Evd,
                    Kind::Ep,
                    Kind::Lmr,
                    Kind::Rmr,
                    Kind::Psp,
                    Kind::Rsp,
                    Kind::Srq,
                    Kind::Cr,
                ];
                let kind = ALL[self.below(KINDS as u64) as usize];
                let handle = self.some(kind);
                self.free(kind, handle);
            }
            1 => {
                let flag = if self.below(2) == 0 { DAT_CLOSE_ABRUPT_FLAG } else { DAT_CLOSE_GRACEFUL_FLAG };
                dat!(ep_disconnect_func(self.some(Kind::Ep), flag));
            }
            2 => {
                dat!(ep_reset_func(self.some(Kind::Ep)));
            }
            3 => {
                let evd = self.some(Kind::Evd);
                dat!(evd_set_unwaitable_func(evd));
                dat!(evd_clear_unwaitable_func(evd));
            }
            _ => {
                let evd = self.some(Kind::Evd);
                dat!(evd_disable_func(evd));
                dat!(evd_enable_func(evd));
                dat!(evd_resize_func(evd, 32 + self.below(64) as DAT_COUNT));
                let cno = if self.below(2) == 0 { self.some(Kind::Cno) } else { null_mut() };
                dat!(evd_modify_cno_func(evd, cno));
            }
        }
    }

    fn meet(&mut self) {
        let ep = self.some(Kind::Ep);
        match self.below(5) {
            0 | 1 => {
                let (to, qual) =
                    (self.shared.address.load(Ordering::Relaxed), self.shared.qual.load(Ordering::Relaxed));
                if !to.is_null() {
                    let timeout = 1000 * (1 + self.below(50) as DAT_TIMEOUT);
                    dat!(ep_connect_func(ep, to, qual, timeout, 0, null_mut(), DAT_QOS_BEST_EFFORT, 0));
                }
            }
            2 => {
                let from = self.some(Kind::Ep);
                dat!(ep_dup_connect_func(ep, from, 50_000, 0, null_mut(), DAT_QOS_BEST_EFFORT));
            }
            3 => {
                let (evd, qual) = (self.some(Kind::Evd), 60_000 + self.below(20));
                let rsp = made!(rsp_create_func(self.ia(), qual, ep, evd));
                if rsp.0 == DAT_SUCCESS {
                    self.shared.qual.store(qual, Ordering::Relaxed);
                }
                self.publish(Kind::Rsp, rsp);
            }
            _ => {
                dat!(cr_accept_func(self.some(Kind::Cr), ep, 0, null_mut()));
            }
        }
    }

    fn work(&mut self) {
        let ep = self.some(Kind::Ep);
        match self.below(9) {
            0 => {
                let mut segment = self.message();
                dat!(ep_post_send_func(ep, 1, &mut segment, cookie(1), 0));
            }
            1 => {
                let mut segment = self.own_buffer();
                dat!(ep_post_recv_func(ep, 1, &mut segment, cookie(2), 0));
            }
            2 => {
                let (mut from, to) = (self.message(), self.own_buffer());
                let there = self.remote(to);
                dat!(ep_post_rdma_write_func(ep, 1, &mut from, cookie(3), &there, 0));
            }
            3 => {
                let (mut to, from) = (self.own_buffer(), self.message());
                let there = self.remote(from);
                dat!(ep_post_rdma_read_func(ep, 1, &mut to, cookie(4), &there, 0));
            }
            4 => {
                let mut segment = self.own_buffer();
                dat!(srq_post_recv_func(self.some(Kind::Srq), 1, &mut segment, cookie(5)));
            }
            5 => {
                let mut event = blank();
                event.event_number = DAT_SOFTWARE_EVENT;
                dat!(evd_post_se_func(self.some(Kind::Evd), &event));
            }
            6 => {
                let (evd, mut event, mut more) = (self.some(Kind::Evd), blank(), 0);
                if dat!(evd_wait_func(evd, 300, 1, &mut event, &mut more)) == DAT_SUCCESS {
                    self.found(&event);
                }
            }
            7 => {
                let mut evd = null_mut();
                dat!(cno_wait_func(self.some(Kind::Cno), 300, &mut evd));
            }
            _ => {
                let (evd, mut event) = (self.some(Kind::Evd), blank());
                if dat!(evd_dequeue_func(evd, &mut event)) == DAT_SUCCESS {
                    self.found(&event);
                }
            }
        }
    }

    fn remote(&self, range: DAT_LMR_TRIPLET) -> DAT_RMR_TRIPLET {
        DAT_RMR_TRIPLET {
            rmr_context: self.shared.remote.load(Ordering::Relaxed),
            pad: 0,
            target_address: range.virtual_address,
            segment_length: range.segment_length,
        }
    }

    fn found(&mut self, event: &DAT_EVENT) {
        if let Some(cr) = request(event) {
            let ep = self.some(Kind::Ep);
            if self.below(4) == 0 || dat!(cr_accept_func(cr, ep, 0, null_mut())) != DAT_SUCCESS {
                self.publish(Kind::Cr, (DAT_SUCCESS, cr));
            }
        }
    }
}
