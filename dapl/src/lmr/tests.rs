//! Tests of LMRs of every memory type through their C entries, over the fake provider.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use dat_abi::*;

use super::dapl_lmr::*;
use crate::error::{Error, Handle, State};
use crate::fake::{self, FakeProvider, Opened};
use crate::pz::dapl_pz::*;

type H = *mut c_void;

/// An open IA with a PZ, and a page of shared memory.
struct World {
    opened: Opened,
    pz: H,
    page: *mut c_void,
}

/// Results of a registration: handle, contexts, length, address.
type Given = (H, u32, u32, u64, u64);

const PAGE: usize = 4096;

impl World {
    fn new(name: &CStr) -> Self {
        let opened = fake::open(name);
        let mut pz = null_mut();
        // SAFETY: the IA is live, and the out parameter is writable; the mapping is a new one at an address that the
        // kernel chooses.
        let page = unsafe {
            assert_eq!(dapl_pz_create::<FakeProvider>(opened.ia_handle, &mut pz), DAT_SUCCESS);
            libc::mmap(null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANON, -1, 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        World { opened, pz, page }
    }

    fn create(&self, kind: u32, region: DAT_REGION_DESCRIPTION, length: u64, rights: u32) -> Result<Given, DAT_RETURN> {
        let untouched = (77 as H, 77, 77, 77, 77);
        let (mut lmr, mut local, mut remote, mut size, mut address) = untouched;
        let (ia, pz) = (self.opened.ia_handle, self.pz);
        // SAFETY: the handles are live, the out parameters are writable, and the region description fits the memory
        // type.
        let code = unsafe {
            dapl_lmr_create::<FakeProvider>(
                ia,
                kind,
                region,
                length,
                pz,
                rights,
                &mut lmr,
                &mut local,
                &mut remote,
                &mut size,
                &mut address,
            )
        };
        let given = (lmr, local, remote, size, address);
        if code == DAT_SUCCESS {
            Ok(given)
        } else {
            assert_eq!(given, untouched, "out parameters of a call that failed");
            Err(code)
        }
    }

    fn shared(&self, at: *const c_void, cookie: &[u8; 40], length: usize) -> Result<Given, DAT_RETURN> {
        let for_shared_memory =
            DAT_SHARED_MEMORY { virtual_address: at.cast_mut(), shared_memory_id: cookie.as_ptr().cast_mut().cast() };
        let region = DAT_REGION_DESCRIPTION { for_shared_memory };
        self.create(DAT_MEM_TYPE_SHARED_VIRTUAL, region, length as u64, DAT_MEM_PRIV_ALL_FLAG)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: `new` has created the mapping; the fake provider never touches it.
        unsafe { libc::munmap(self.page, PAGE) };
    }
}

fn query(lmr: H) -> DAT_LMR_PARAM {
    let mut param = MaybeUninit::uninit();
    // SAFETY: the out parameter is writable, and the call fills it on success.
    unsafe {
        assert_eq!(dapl_lmr_query::<FakeProvider>(lmr, DAT_LMR_FIELD_ALL, param.as_mut_ptr()), DAT_SUCCESS);
        param.assume_init()
    }
}

fn free(lmr: H) -> DAT_RETURN {
    // SAFETY: the call accepts any handle value.
    unsafe { dapl_lmr_free::<FakeProvider>(lmr) }
}

#[test]
fn lmr_created_from_an_lmr_has_its_own_rights_and_outlives_its_source() {
    let world = World::new(c"lmr of lmr");
    let bytes = [0u8; 64];
    let region = DAT_REGION_DESCRIPTION { for_va: bytes.as_ptr().cast_mut().cast() };
    let first = world.create(DAT_MEM_TYPE_VIRTUAL, region, 64, DAT_MEM_PRIV_LOCAL_READ_FLAG).unwrap();
    let again = DAT_REGION_DESCRIPTION { for_lmr_handle: first.0 };
    let rights = DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_READ_FLAG;
    let second = world.create(DAT_MEM_TYPE_LMR, again, 7, rights).unwrap();
    assert_eq!((second.3, second.4), (64, bytes.as_ptr() as u64), "the length is the source's");
    assert!(first.2 == 0 && second.2 != 0 && first.1 != second.1);
    assert_eq!(free(first.0), DAT_SUCCESS);
    let param = query(second.0);
    assert_eq!((param.mem_type, param.length, param.mem_priv), (DAT_MEM_TYPE_LMR, 64, rights));
    // SAFETY: the memory type selects this union member.
    assert_eq!(unsafe { param.region_desc.for_lmr_handle }, first.0);
    assert_eq!(
        world.create(DAT_MEM_TYPE_LMR, again, 64, rights),
        Err(Error::InvalidHandle(Handle::Lmr).code()),
        "freed"
    );
    assert_eq!(free(second.0), DAT_SUCCESS);
}

#[test]
fn lmr_create_refuses_unknown_memory_types_and_rights() {
    let world = World::new(c"lmr types");
    let region = DAT_REGION_DESCRIPTION { for_va: world.page };
    let wrong = |n| Err(Error::InvalidParameter(n).code());
    let given = world.create(3, region, 64, DAT_MEM_PRIV_ALL_FLAG).unwrap();
    assert_eq!(query(given.0).mem_type, DAT_MEM_TYPE_VIRTUAL, "strongly ordered memory is accepted");
    assert_eq!(world.create(4, region, 64, DAT_MEM_PRIV_ALL_FLAG), wrong(2));
    assert_eq!(world.create(DAT_MEM_TYPE_VIRTUAL, region, 64, 0x80), wrong(6));
}

#[test]
fn shared_memory_is_identified_by_its_cookie() {
    let world = World::new(c"lmr shared");
    let (mut cookie, other) = ([7u8; 40], [0u8; 40]);
    let first = world.shared(world.page, &cookie, PAGE).unwrap();
    let second = world.shared(world.page, &cookie, PAGE).unwrap();
    let wrong = |n| Err(Error::InvalidParameter(n).code());
    assert_eq!(world.shared(world.page, &cookie, 64), wrong(4), "another length");
    let third = world.shared(world.page, &other, 64).unwrap();
    cookie[39] = 8;
    let param = query(first.0);
    assert_eq!((param.mem_type, param.length), (DAT_MEM_TYPE_SHARED_VIRTUAL, PAGE as u64));
    // SAFETY: the memory type selects this union member; the library keeps the cookie.
    let kept = unsafe { param.region_desc.for_shared_memory };
    assert_eq!(kept.virtual_address, world.page);
    // SAFETY: the cookie of a live LMR is readable.
    assert_eq!(unsafe { kept.shared_memory_id.cast::<[u8; 40]>().read_unaligned() }, [7; 40]);
    assert!(world.shared(world.page, &cookie, 64).is_ok(), "all bytes of the cookie are compared");
    cookie[39] = 7;
    assert_eq!(free(first.0), DAT_SUCCESS);
    assert_eq!(world.shared(world.page, &cookie, 64), wrong(4), "one registration is left");
    assert_eq!(free(second.0), DAT_SUCCESS);
    assert!(world.shared(world.page, &cookie, 64).is_ok(), "the last member has left");
    assert_eq!(free(third.0), DAT_SUCCESS);
}

#[test]
fn private_memory_is_refused_as_shared_memory() {
    let world = World::new(c"lmr private");
    let (private, cookie) = (Box::new([0u8; 64]), [1u8; 40]);
    let not_shared = Err(Error::InvalidState(State::Plain).code());
    assert_eq!(world.shared(private.as_ptr().cast(), &cookie, 64), not_shared);
    assert_eq!(world.shared(world.page, &cookie, 0), Err(Error::Length.code()));
    assert!(world.shared(world.page, &cookie, PAGE).is_ok(), "failures leave no registration");
    let no_cookie = DAT_SHARED_MEMORY { virtual_address: world.page, shared_memory_id: null_mut() };
    let region = DAT_REGION_DESCRIPTION { for_shared_memory: no_cookie };
    let refused = world.create(DAT_MEM_TYPE_SHARED_VIRTUAL, region, 64, 0);
    assert_eq!(refused, Err(Error::InvalidParameter(3).code()));
}

#[test]
fn lmr_sync_refuses_invalid_segments() {
    let world = World::new(c"lmr sync");
    let bytes = [0u8; 64];
    let base = bytes.as_ptr() as u64;
    let region = DAT_REGION_DESCRIPTION { for_va: bytes.as_ptr().cast_mut().cast() };
    let given = world.create(DAT_MEM_TYPE_VIRTUAL, region, 64, 0).unwrap();
    let at = |lmr_context, virtual_address, segment_length| DAT_LMR_TRIPLET {
        lmr_context,
        pad: 0,
        virtual_address,
        segment_length,
    };
    let table = crate::table::table::<FakeProvider>(std::ptr::null());
    let (read, write) = (table.lmr_sync_rdma_read_func.unwrap(), table.lmr_sync_rdma_write_func.unwrap());
    let sync = |ia: H, list: &[DAT_LMR_TRIPLET]| {
        // SAFETY: the functions accept any handle value; `list` is a slice of that length.
        let codes =
            unsafe { [read(ia, list.as_ptr(), list.len() as u64), write(ia, list.as_ptr(), list.len() as u64)] };
        assert_eq!(codes[0], codes[1]);
        codes[0]
    };
    let (ia, key) = (world.opened.ia_handle, given.1);
    let refused = Error::InvalidParameter(2).code();
    assert_eq!(sync(world.pz, &[]), Error::InvalidHandle(Handle::Ia).code());
    assert_eq!(sync(ia, &[]), DAT_SUCCESS);
    assert_eq!(sync(ia, &[at(key, base, 64), at(key, base + 63, 1), at(99, 0, 0)]), DAT_SUCCESS);
    let bad = [at(key + 1, base, 64), at(key, base - 1, 2), at(key, base, 65), at(key, base + 8, u64::MAX)];
    for (n, bad) in bad.into_iter().enumerate() {
        assert_eq!(sync(ia, &[at(key, base, 64), bad]), refused, "{n}");
    }
    // SAFETY: the calls accept a null pointer, which is the tested argument.
    unsafe {
        assert_eq!(read(ia, std::ptr::null(), 1), refused);
        assert_eq!(write(ia, std::ptr::null(), 0), DAT_SUCCESS);
    }
    assert_eq!(free(given.0), DAT_SUCCESS);
    assert_eq!(sync(ia, &[at(key, base, 64)]), refused, "freed");
}
