//! Tests of IAs, PZs, LMRs and contexts through the C entries, over the fake provider. Also tests of the provider's
//! registration with libdat and of the function table of 1.2.

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use dat_abi::*;

use super::Ia;
use super::dapl_ia::*;
use super::dapls_ia::finish_close;
use crate::context::*;
use crate::error::Handle;
use crate::fake::{self, FakeProvider};
use crate::libdat::Libdat;
use crate::lmr::dapl_lmr::*;
use crate::names;
use crate::pz::dapl_pz::*;
use crate::registration;
use crate::runtime::handle::from_handle;

const BAD: DAT_RETURN = DAT_CLASS_ERROR | DAT_INVALID_HANDLE;
const NULL: *mut c_void = std::ptr::null_mut();

fn argument(n: u32) -> DAT_RETURN {
    DAT_CLASS_ERROR | DAT_INVALID_PARAMETER | (DAT_INVALID_ARG1 + n - 1)
}

fn open(name: &CStr, length: i32, evd: &mut *mut c_void) -> (DAT_RETURN, *mut c_void) {
    registration::for_test::<FakeProvider>(name);
    let mut ia = NULL;
    // SAFETY: the name is a C string, and the out parameters are writable.
    let code = unsafe { dapl_ia_open::<FakeProvider>(name.as_ptr().cast_mut(), length, evd, &mut ia) };
    (code, ia)
}

fn close(ia: *mut c_void, flags: u32) -> DAT_RETURN {
    // SAFETY: the call accepts any handle value.
    unsafe { dapl_ia_close::<FakeProvider>(ia, flags) }
}

const GRACEFUL: u32 = DAT_CLOSE_GRACEFUL_FLAG;
const IN_USE: DAT_RETURN = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_IA_IN_USE;

#[test]
fn ia_open_creates_an_async_evd_shares_one_or_reports_out_of_scope() {
    let mut evd = NULL;
    assert_eq!(open(c"ia-async", 0, &mut evd).0, argument(2));
    let (code, first) = open(c"ia-async", 8, &mut evd);
    assert_eq!((code, evd.is_null()), (DAT_SUCCESS, false));

    let mut same = evd;
    let (code, second) = open(c"ia-async", 0, &mut same);
    assert_eq!((code, same), (DAT_SUCCESS, evd));
    assert_eq!(close(first, GRACEFUL), IN_USE, "its EVD is in use");
    assert_eq!(close(second, GRACEFUL), DAT_SUCCESS);

    let mut exists = DAT_EVD_ASYNC_EXISTS;
    let (code, third) = open(c"ia-async", 0, &mut exists);
    assert_eq!((code, exists), (DAT_SUCCESS, DAT_EVD_OUT_OF_SCOPE));
    assert_eq!(close(third, GRACEFUL), DAT_SUCCESS);
    assert_eq!(close(first, GRACEFUL), DAT_SUCCESS);

    for garbage in [evd, first, 2 as *mut c_void, 77 as *mut c_void] {
        let mut choice = garbage;
        assert_eq!(open(c"ia-async", 8, &mut choice).0, BAD | DAT_INVALID_HANDLE_EVD_ASYNC);
        assert_eq!(choice, garbage, "not written on failure");
    }
}

#[test]
fn ia_open_checks_its_pointers() {
    let name = c"ia-pointers";
    registration::for_test::<FakeProvider>(name);
    let (mut evd, mut ia) = (NULL, NULL);
    // SAFETY: each pointer is a C string, null, or a writable out parameter.
    unsafe {
        let open = dapl_ia_open::<FakeProvider>;
        assert_eq!(open(std::ptr::null_mut(), 8, &mut evd, &mut ia), argument(1));
        assert_eq!(open(name.as_ptr().cast_mut(), 8, &mut evd, std::ptr::null_mut()), BAD | DAT_INVALID_HANDLE_IA);
        assert_eq!(open(name.as_ptr().cast_mut(), 8, std::ptr::null_mut(), &mut ia), argument(3));
        assert_eq!(open(c"ia-unknown".as_ptr().cast_mut(), 8, &mut evd, &mut ia), argument(1));
    }
}

#[test]
fn ia_query_checks_its_arguments_before_it_writes() {
    let opened = fake::open(c"ia-query");
    // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
    let (mut ia, mut provider): (DAT_IA_ATTR, DAT_PROVIDER_ATTR) = unsafe { std::mem::zeroed() };
    let mut evd = NULL;
    // SAFETY: the calls accept any handle value, and the out parameters are null or writable.
    unsafe {
        let query = dapl_ia_query::<FakeProvider>;
        let (no_ia, no_provider) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(query(opened.async_evd, &mut evd, 0, no_ia, 0, no_provider), BAD | DAT_INVALID_HANDLE_IA);
        assert_eq!(query(opened.ia_handle, &mut evd, 1, no_ia, 0, no_provider), argument(4));
        assert_eq!(query(opened.ia_handle, &mut evd, 1 << 35, &mut ia, 0, no_provider), argument(3));
        assert_eq!(query(opened.ia_handle, &mut evd, 0, no_ia, 1, no_provider), argument(6));
        assert!(evd.is_null(), "nothing written yet");
        assert_eq!(query(opened.ia_handle, std::ptr::null_mut(), 0, no_ia, 0, no_provider), DAT_SUCCESS);
        let all = (DAT_IA_FIELD_ALL, DAT_PROVIDER_FIELD_ALL);
        assert_eq!(query(opened.ia_handle, &mut evd, all.0, &mut ia, all.1, &mut provider), DAT_SUCCESS);
    }
    assert_eq!(evd, opened.async_evd);
    // SAFETY: the query has NUL-terminated the names, and has set the address (28 bytes) and a list of at least three
    // attributes.
    unsafe {
        assert_eq!(CStr::from_ptr(ia.adapter_name.as_ptr()), c"ia-query");
        let address = std::slice::from_raw_parts(ia.ia_address_ptr.cast::<u8>(), 28);
        assert_eq!(address[..8], [2, 0, 0, 0, 127, 0, 0, 1]);
        assert!(address[8..].iter().all(|byte| *byte == 0));
        let attributes = std::slice::from_raw_parts(provider.provider_specific_attr, 3);
        assert_eq!(CStr::from_ptr(attributes[2].name), c"transport");
        assert_eq!(CStr::from_ptr(attributes[2].value), c"fake");
    }
    assert_eq!((ia.max_evd_qlen, ia.max_rdma_read_per_ep_in), (1000, 4));
    assert_eq!((provider.dapl_version_major, provider.dapl_version_minor, provider.is_thread_safe), (1, 2, DAT_TRUE));
    assert_eq!((provider.completion_flags_supported, provider.max_private_data_size), (0x0F, 92));
    assert_eq!((ia.max_rmrs, provider.lmr_mem_types_supported), (64, 3));
}

#[test]
fn ia_query_reports_whether_the_transport_has_srqs() {
    let shown = |name| {
        let opened = fake::open(name);
        // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
        let (mut ia, mut provider): (DAT_IA_ATTR, DAT_PROVIDER_ATTR) = unsafe { std::mem::zeroed() };
        let all = (DAT_IA_FIELD_ALL, DAT_PROVIDER_FIELD_ALL);
        let none = std::ptr::null_mut();
        // SAFETY: the IA is live, and the records are writable.
        let code =
            unsafe { dapl_ia_query::<FakeProvider>(opened.ia_handle, none, all.0, &mut ia, all.1, &mut provider) };
        assert_eq!(code, DAT_SUCCESS);
        assert_eq!(close(opened.ia_handle, GRACEFUL), DAT_SUCCESS);
        let supported = (provider.srq_supported, provider.srq_ep_pz_difference_supported);
        let (marks, info) = (provider.srq_watermarks_supported, provider.srq_info_supported);
        let limits = (ia.max_srqs, ia.max_ep_per_srq, ia.max_recv_per_srq);
        (limits, supported, marks, info, provider.ep_recv_info_supported)
    };
    assert_eq!(shown(c"with srqs"), ((2, 64, 64), (DAT_TRUE, DAT_TRUE), 0x111, 0x11, 0x11));
    assert_eq!(shown(c"without srqs"), ((0, 0, 0), (DAT_FALSE, DAT_FALSE), 0, 0, 0));
}

#[test]
fn refused_ia_close_changes_nothing() {
    let opened = fake::open(c"ia-close");
    let mut pz = NULL;
    // SAFETY: the IA is live, and the out parameter is writable.
    assert_eq!(unsafe { dapl_pz_create::<FakeProvider>(opened.ia_handle, &mut pz) }, DAT_SUCCESS);
    assert_eq!(close(opened.ia_handle, 2), argument(2));
    assert_eq!(close(opened.ia_handle, GRACEFUL), IN_USE);
    // SAFETY: the call accepts any handle value.
    assert_eq!(unsafe { dapl_pz_free::<FakeProvider>(pz) }, DAT_SUCCESS);
    assert_eq!(close(opened.ia_handle, GRACEFUL), DAT_SUCCESS);
    assert_eq!(close(opened.ia_handle, GRACEFUL), BAD | DAT_INVALID_HANDLE_IA);
    assert!(opened.ia.provider.is_closed());
}

#[test]
fn abrupt_ia_close_frees_all_objects() {
    let opened = fake::open(c"ia-abrupt");
    let (pz, lmr) = memory(opened.ia_handle, DAT_MEM_PRIV_ALL_FLAG);
    assert_eq!(close(opened.ia_handle, DAT_CLOSE_ABRUPT_FLAG), DAT_SUCCESS);
    for handle in [pz, lmr, opened.async_evd, opened.ia_handle] {
        let mut kind = 0;
        // SAFETY: the call accepts any handle value.
        assert_eq!(unsafe { dapl_get_handle_type(handle, &mut kind) }, BAD | DAT_INVALID_HANDLE1);
    }
    drop(opened.ia);
}

#[test]
fn second_close_during_a_close_is_refused_and_children_are_freed() {
    let mut evd = NULL;
    let (_, ia) = open(c"ia-twice", 8, &mut evd);
    let mut pz = NULL;
    // SAFETY: the handles were created by this test, and the out parameter is writable.
    assert_eq!(unsafe { dapl_pz_create::<FakeProvider>(ia, &mut pz) }, DAT_SUCCESS);
    let first = from_handle::<Ia<FakeProvider>>(ia, Handle::Ia).unwrap();
    let children = first.begin_close(false).unwrap();
    assert!(!children.is_empty());
    // The close of the IA has begun and is not finished yet.
    assert_eq!(close(ia, DAT_CLOSE_ABRUPT_FLAG), BAD | DAT_INVALID_HANDLE_IA);
    finish_close(&first, children).unwrap();
    // SAFETY: the call accepts any handle value.
    assert_eq!(unsafe { dapl_pz_free::<FakeProvider>(pz) } & BAD, BAD, "the PZ was freed with the IA");
}

/// Creates a PZ, and registers 64 bytes in it. Returns both handles.
fn memory(ia: *mut c_void, privileges: u32) -> (*mut c_void, *mut c_void) {
    static BYTES: [u8; 64] = [0; 64];
    let (mut pz, mut lmr) = (NULL, NULL);
    let region = DAT_REGION_DESCRIPTION { for_va: BYTES.as_ptr().cast_mut().cast() };
    // SAFETY: the IA is live, and the out parameters are null or writable. The fake provider never touches the memory.
    unsafe {
        assert_eq!(dapl_pz_create::<FakeProvider>(ia, &mut pz), DAT_SUCCESS);
        let (lmr, null) = (&raw mut lmr, std::ptr::null_mut());
        let code = dapl_lmr_create::<FakeProvider>(
            ia,
            0,
            region,
            64,
            pz,
            privileges,
            lmr,
            null,
            null,
            null.cast(),
            null.cast(),
        );
        assert_eq!(code, DAT_SUCCESS);
    }
    (pz, lmr)
}

#[test]
fn pz_with_registered_memory_cannot_be_freed() {
    let opened = fake::open(c"ia-pz");
    let (pz, lmr) = memory(opened.ia_handle, DAT_MEM_PRIV_ALL_FLAG);
    // SAFETY: the call accepts any handle value.
    unsafe {
        let in_use = DAT_CLASS_ERROR | DAT_INVALID_STATE | DAT_INVALID_STATE_PZ_IN_USE;
        assert_eq!(dapl_pz_free::<FakeProvider>(pz), in_use);
        assert_eq!(dapl_pz_free::<FakeProvider>(lmr), BAD | DAT_INVALID_HANDLE_PZ);
        assert_eq!(dapl_lmr_free::<FakeProvider>(lmr), DAT_SUCCESS);
        assert_eq!(dapl_lmr_free::<FakeProvider>(lmr), BAD | DAT_INVALID_HANDLE_LMR);
        assert_eq!(dapl_pz_free::<FakeProvider>(pz), DAT_SUCCESS);
    }
}

#[test]
fn lmr_query_returns_a_remote_context_only_with_remote_rights() {
    let opened = fake::open(c"ia-lmr");
    for (privileges, remote) in [(DAT_MEM_PRIV_ALL_FLAG, true), (DAT_MEM_PRIV_LOCAL_WRITE_FLAG, false)] {
        let (pz, lmr) = memory(opened.ia_handle, privileges);
        // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid; the handle is live.
        let param = unsafe {
            let mut param: DAT_LMR_PARAM = std::mem::zeroed();
            assert_eq!(dapl_lmr_query::<FakeProvider>(lmr, 0x400, &mut param), argument(2));
            assert_eq!(dapl_lmr_query::<FakeProvider>(lmr, DAT_LMR_FIELD_ALL, &mut param), DAT_SUCCESS);
            param
        };
        assert_eq!((param.length, param.registered_size, param.mem_priv), (64, 64, privileges));
        assert_eq!((param.pz_handle, param.ia_handle), (pz, opened.ia_handle));
        assert_ne!(param.lmr_context, 0);
        assert_eq!(param.rmr_context != 0, remote);
        // SAFETY: the query has succeeded, so it has set this union member.
        assert_eq!(unsafe { param.region_desc.for_va } as u64, param.registered_address);
    }
}

#[test]
fn lmr_create_checks_arguments_in_order() {
    let opened = fake::open(c"ia-lmr-arguments");
    let (ia, (pz, lmr)) = (opened.ia_handle, memory(opened.ia_handle, 0));
    let create = |ia, kind, region, length, pz, privileges, out: *mut *mut c_void| {
        let null = std::ptr::null_mut();
        let region = DAT_REGION_DESCRIPTION { for_va: region };
        // SAFETY: the calls accept any handle value, and the out parameters are null or writable.
        unsafe {
            dapl_lmr_create::<FakeProvider>(
                ia,
                kind,
                region,
                length,
                pz,
                privileges,
                out,
                null,
                null,
                null.cast(),
                null.cast(),
            )
        }
    };
    let (mut out, here) = (NULL, 4096 as *mut c_void);
    assert_eq!(create(pz, 0, here, 1, pz, 0, &mut out), BAD | DAT_INVALID_HANDLE_IA);
    assert_eq!(create(ia, 0, here, 1, ia, 0, &mut out), BAD | DAT_INVALID_HANDLE_PZ);
    assert_eq!(create(ia, 0, here, 1, pz, 0, std::ptr::null_mut()), argument(7));
    assert_eq!(create(ia, 1, ia, 1, pz, 0, &mut out), BAD | DAT_INVALID_HANDLE_LMR);
    assert_eq!(create(ia, 1, lmr, 0, pz, 0x100, &mut out), argument(6));
    assert_eq!(create(ia, 9, here, 1, pz, 0, &mut out), argument(2));
    assert_eq!(create(ia, 0, here, 1, pz, 0x100, &mut out), argument(6));
    assert_eq!(create(ia, 0, here, 0, pz, 0, &mut out), DAT_CLASS_ERROR | DAT_LENGTH_ERROR);
    assert_eq!(create(ia, 0, NULL, 1, pz, 0, &mut out), argument(3));
    assert_eq!(create(ia, 0, here, u64::MAX, pz, 0, &mut out), argument(4));
    // SAFETY: the call accepts any handle value.
    let synced = unsafe { dapl_lmr_sync_rdma::<FakeProvider>(pz, std::ptr::null(), 0) };
    assert_eq!(synced, BAD | DAT_INVALID_HANDLE_IA);
    // SAFETY: the call accepts any handle value.
    assert_eq!(unsafe { dapl_lmr_sync_rdma::<FakeProvider>(ia, std::ptr::null(), 0) }, DAT_SUCCESS);
}

#[test]
fn ia_evd_pz_and_lmr_handles_have_a_context_and_a_type() {
    let opened = fake::open(c"ia-context");
    let (pz, lmr) = memory(opened.ia_handle, 0);
    let kinds = [
        (opened.ia_handle, DAT_HANDLE_TYPE_IA),
        (opened.async_evd, DAT_HANDLE_TYPE_EVD),
        (pz, DAT_HANDLE_TYPE_PZ),
        (lmr, DAT_HANDLE_TYPE_LMR),
    ];
    for (handle, kind) in kinds {
        let (mut context, mut found) = (DAT_CONTEXT { as_64: 1 }, 99);
        // SAFETY: the calls accept any handle value, the out parameters are null or writable, and every union member
        // has 64 bits.
        unsafe {
            assert_eq!(dapl_get_consumer_context(handle, &mut context), DAT_SUCCESS);
            assert_eq!(context.as_64, 0, "none yet");
            assert_eq!(dapl_set_consumer_context(handle, DAT_CONTEXT { as_64: u64::MAX - 1 }), DAT_SUCCESS);
            assert_eq!(dapl_get_consumer_context(handle, &mut context), DAT_SUCCESS);
            assert_eq!(context.as_ptr as u64, u64::MAX - 1);
            assert_eq!(dapl_get_handle_type(handle, &mut found), DAT_SUCCESS);
            assert_eq!(found, kind);
            assert_eq!(dapl_get_handle_type(handle, std::ptr::null_mut()), argument(2));
            assert_eq!(dapl_get_consumer_context(handle, std::ptr::null_mut()), argument(2));
        }
    }
    let any = BAD | DAT_INVALID_HANDLE1;
    // SAFETY: the calls accept any handle value, the out parameters are null or writable, and every union member has 64
    // bits.
    unsafe {
        assert_eq!(dapl_set_consumer_context(NULL, DAT_CONTEXT { as_64: 1 }), any);
        assert_eq!(dapl_get_handle_type(3 as *mut c_void, std::ptr::null_mut()), any);
    }
}

// A fake libdat that counts registrations.
static ADDED: AtomicUsize = AtomicUsize::new(0);
static REMOVED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn add(table: *const DAT_PROVIDER, info: *const DAT_PROVIDER_INFO) -> DAT_RETURN {
    // SAFETY: a provider passes pointers to a table and an info record.
    let (table, info) = unsafe { (&*table, &*info) };
    // SAFETY: both pointers are C strings.
    unsafe { assert_eq!(CStr::from_ptr(table.device_name), CStr::from_ptr(info.ia_name.as_ptr())) };
    ADDED.fetch_add(1, Ordering::SeqCst);
    DAT_SUCCESS
}

unsafe extern "C" fn remove(_: *const DAT_PROVIDER, _: *const DAT_PROVIDER_INFO) -> DAT_RETURN {
    REMOVED.fetch_add(1, Ordering::SeqCst);
    DAT_CLASS_ERROR | DAT_PROVIDER_IN_USE
}

unsafe extern "C" fn no_number(_: DAT_IA_HANDLE, _: *mut DAT_IA_HANDLE) -> DAT_RETURN {
    BAD | DAT_INVALID_HANDLE_IA
}

#[test]
fn init_registers_the_given_name_and_refuses_another_major_version() {
    let libdat = Libdat { add, remove, get_ia_handle: no_number };
    let mut info = DAT_PROVIDER_INFO {
        ia_name: [0; 256],
        dapl_version_major: 3,
        dapl_version_minor: 0,
        is_thread_safe: DAT_FALSE,
    };
    let name = CString::new("ia-registered").unwrap();
    for (to, from) in info.ia_name.iter_mut().zip(name.as_bytes()) {
        *to = *from as _;
    }
    // SAFETY: the functions have the contracts of libdat's functions; `info` is a record and `params` a C string.
    unsafe { registration::init::<FakeProvider>(libdat, &info, c"double 1".as_ptr()) };
    assert!(names::find(names::Version::V1, &name).is_none());
    (info.dapl_version_major, info.dapl_version_minor) = (1, 2);
    for params in [c"double 1", c"double 2"] {
        // SAFETY: the functions have the contracts of libdat's functions; `info` is a record and `params` a C string.
        unsafe { registration::init::<FakeProvider>(libdat, &info, params.as_ptr()) };
    }
    let known = names::find(names::Version::V1, &name).unwrap();
    assert_eq!((known.name.as_str(), known.last().params.as_str()), ("ia-registered", "double 2"));
    assert!(!known.last().thread_safe, "with the libdat of another project, the flag of the registration decides");
    // SAFETY: the functions have the contracts of libdat's functions; the other pointers are null or valid.
    unsafe {
        registration::fini::<FakeProvider>(libdat, &info);
        registration::fini::<FakeProvider>(libdat, std::ptr::null());
        registration::init::<FakeProvider>(libdat, std::ptr::null(), std::ptr::null());
    }
    assert_eq!((ADDED.load(Ordering::SeqCst), REMOVED.load(Ordering::SeqCst)), (2, 1));
    info.ia_name = [b'x' as _; 256];
    // SAFETY: the functions have the contracts of libdat's functions; the other pointers are null or valid.
    unsafe { registration::init::<FakeProvider>(libdat, &info, c"".as_ptr()) };
    assert_eq!(ADDED.load(Ordering::SeqCst), 2, "a name without a terminating zero");
}

#[test]
fn provider_table_of_1_2_has_no_null_entry() {
    let table = crate::table::table::<FakeProvider>(std::ptr::null());
    // SAFETY: the table consists of pointer-sized slots without padding; an empty slot is null.
    let words: [usize; size_of::<DAT_PROVIDER>() / 8] = unsafe { std::mem::transmute(table) };
    assert!(words[2..].iter().all(|slot| *slot != 0));
    assert_eq!(words.len(), 70);
}
