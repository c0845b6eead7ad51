//! Helpers for the memory cases: registrations of memory, of LMRs and of shared memory, and binds.
#![forbid(unsafe_code)]

use std::ptr::null_mut;

use crate::kit::*;

/// Arguments of a registration.
#[derive(Clone, Copy)]
pub(super) struct LmrArgs {
    pub(super) kind: DAT_MEM_TYPE,
    pub(super) region: DAT_REGION_DESCRIPTION,
    pub(super) length: DAT_VLEN,
    pub(super) privileges: DAT_MEM_PRIV_FLAGS,
}

impl LmrArgs {
    /// Ordinary memory, with all privileges.
    pub(super) fn memory(pointer: DAT_PVOID, length: usize) -> Self {
        let region = DAT_REGION_DESCRIPTION { for_va: pointer };
        LmrArgs { kind: DAT_MEM_TYPE_VIRTUAL, region, length: length as u64, privileges: DAT_MEM_PRIV_ALL_FLAG }
    }

    /// A registration of an existing LMR; the library must ignore the length.
    pub(super) fn lmr(lmr: DAT_LMR_HANDLE) -> Self {
        let region = DAT_REGION_DESCRIPTION { for_lmr_handle: lmr };
        LmrArgs { kind: DAT_MEM_TYPE_LMR, region, length: u64::MAX, privileges: DAT_MEM_PRIV_ALL_FLAG }
    }

    /// Memory that processes share under a 40-byte name.
    pub(super) fn shared(pointer: DAT_PVOID, length: usize, name: &mut [u8; 40]) -> Self {
        let shared = DAT_SHARED_MEMORY { virtual_address: pointer, shared_memory_id: name.as_mut_ptr().cast() };
        let region = DAT_REGION_DESCRIPTION { for_shared_memory: shared };
        let (kind, length) = (DAT_MEM_TYPE_SHARED_VIRTUAL, length as u64);
        LmrArgs { kind, region, length, privileges: DAT_MEM_PRIV_ALL_FLAG }
    }

    pub(super) fn with(self, privileges: DAT_MEM_PRIV_FLAGS) -> Self {
        LmrArgs { privileges, ..self }
    }

    /// Makes the call without the optional outputs.
    pub(super) fn call(self, ia: DAT_IA_HANDLE, pz: DAT_PZ_HANDLE, out: *mut DAT_LMR_HANDLE) -> DAT_RETURN {
        let LmrArgs { kind, region, length, privileges } = self;
        let (context, key, size, address) = (null_mut(), null_mut(), null_mut(), null_mut());
        dat_lmr_create(ia, kind, region, length, pz, privileges, out, context, key, size, address)
    }

    /// Checks that the call is refused with this code, and writes nothing.
    #[track_caller]
    pub(super) fn is_refused(self, ia: &Ia, pz: &Pz, kind: DAT_RETURN_TYPE, subtype: DAT_RETURN_SUBTYPE) {
        refused(untouched(|out| self.call(ia.h(), pz.h(), out)), kind, subtype);
    }

    /// Registers the memory, which must succeed.
    #[track_caller]
    pub(super) fn make(self, ia: &Ia, pz: &Pz) -> CreatedLmr {
        let LmrArgs { kind, region, length, privileges } = self;
        let (mut lmr, mut context, mut key, mut size, mut address) = (DAT_HANDLE_NULL, 0, 0, 0, 0);
        ok(dat_lmr_create(
            ia.h(),
            kind,
            region,
            length,
            pz.h(),
            privileges,
            &mut lmr,
            &mut context,
            &mut key,
            &mut size,
            &mut address,
        ));
        CreatedLmr { lmr: Lmr::own(lmr), lmr_context: context, rmr_context: key, length: size, address }
    }
}

/// A registration of memory owned by the case, and the values that the library returned.
pub(super) struct CreatedLmr {
    pub(super) lmr: Lmr,
    pub(super) lmr_context: DAT_LMR_CONTEXT,
    pub(super) rmr_context: DAT_RMR_CONTEXT,
    pub(super) length: DAT_VLEN,
    pub(super) address: DAT_VADDR,
}

impl CreatedLmr {
    pub(super) fn segment(&self, at: u64, length: u64) -> DAT_LMR_TRIPLET {
        let (lmr_context, virtual_address) = (self.lmr_context, self.address + at);
        DAT_LMR_TRIPLET { lmr_context, pad: 0, virtual_address, segment_length: length }
    }

    pub(super) fn target(&self, at: u64, length: u64) -> DAT_RMR_TRIPLET {
        let (rmr_context, target_address) = (self.rmr_context, self.address + at);
        DAT_RMR_TRIPLET { rmr_context, pad: 0, target_address, segment_length: length }
    }

    /// Queries all fields.
    #[track_caller]
    pub(super) fn param(&self) -> DAT_LMR_PARAM {
        filled(|out| dat_lmr_query(self.lmr.h(), DAT_LMR_FIELD_ALL, out))
    }
}

/// Both remote privileges.
pub(super) const REMOTE: DAT_MEM_PRIV_FLAGS = DAT_MEM_PRIV_REMOTE_READ_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG;
/// Both local privileges.
pub(super) const LOCAL: DAT_MEM_PRIV_FLAGS = DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG;

/// Posts a bind, which must be accepted. Returns the new context.
#[track_caller]
pub(super) fn post_bind(
    conn: &Conn,
    rmr: &Rmr,
    id: u64,
    segment: DAT_LMR_TRIPLET,
    privileges: DAT_MEM_PRIV_FLAGS,
) -> DAT_RMR_CONTEXT {
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    filled(|out| dat_rmr_bind(rmr.h(), &segment, privileges, conn.ep.h(), cookie(id), flags, out))
}

/// Binds and waits for the completion. Returns the target for the peer.
#[track_caller]
pub(super) fn bind(
    conn: &Conn,
    rmr: &Rmr,
    segment: DAT_LMR_TRIPLET,
    privileges: DAT_MEM_PRIV_FLAGS,
) -> DAT_RMR_TRIPLET {
    let rmr_context = post_bind(conn, rmr, 0xb1d, segment, privileges);
    expect_rmr(conn.request.h(), rmr.h(), 0xb1d, DAT_RMR_BIND_SUCCESS);
    let (target_address, segment_length) = (segment.virtual_address, segment.segment_length);
    DAT_RMR_TRIPLET { rmr_context, pad: 0, target_address, segment_length }
}

/// Posts an unbind, which is a bind with length 0.
#[track_caller]
pub(super) fn post_unbind(conn: &Conn, rmr: &Rmr, id: u64) {
    let nothing = DAT_LMR_TRIPLET { lmr_context: 0xdead_beef, pad: 0, virtual_address: 7, segment_length: 0 };
    let flags = DAT_COMPLETION_DEFAULT_FLAG;
    ok(dat_rmr_bind(rmr.h(), &nothing, DAT_MEM_PRIV_NONE_FLAG, conn.ep.h(), cookie(id), flags, null_mut()));
}

/// Unbinds and waits for the completion.
#[track_caller]
pub(super) fn unbind(conn: &Conn, rmr: &Rmr) {
    post_unbind(conn, rmr, 0xdb1d);
    expect_rmr(conn.request.h(), rmr.h(), 0xdb1d, DAT_RMR_BIND_SUCCESS);
}

/// Queries all fields of an RMR.
#[track_caller]
pub(super) fn rmr_param(rmr: &Rmr) -> DAT_RMR_PARAM {
    filled(|out| dat_rmr_query(rmr.h(), DAT_RMR_FIELD_ALL, out))
}

/// Checks that the RMR is bound to nothing.
#[track_caller]
pub(super) fn expect_unbound(rmr: &Rmr) {
    let param = rmr_param(rmr);
    let DAT_LMR_TRIPLET { lmr_context, virtual_address, segment_length, .. } = param.lmr_triplet;
    let seen = (lmr_context, virtual_address, segment_length, param.mem_priv, param.rmr_context);
    assert_eq!(seen, (0, 0, 0, 0, 0), "an unbound RMR has a triplet, privileges or a context");
}
