//! Cases for LMRs and RMRs: valid and refused registrations, RMRs that are created and freed, the free of a PZ in use,
//! and handles of freed LMRs.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::objects::Bench;
use super::{Case, ensure, refused};
use crate::common::Common;
use crate::dat::Object;
use crate::dat::raw::{self, CallResult, Registered};
use crate::failure::Result;

pub(super) const CASES: &[Case] = &[
    ("memory can be registered and deregistered", registers),
    ("the registered range contains the requested range", covers),
    ("the same memory can be registered many times", many_times),
    ("a registration of length 0 is refused", nothing),
    ("a registration in a freed PZ is refused", no_zone),
    ("freeing a PZ with registered memory is refused", zone_in_use),
    ("the handle of a freed LMR is invalid", freed),
    ("RMRs can be created and freed", rmrs),
];

fn registers(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let memory = bench.memory(4096)?;
    ensure(
        memory.registered().lmr_context != 0 && memory.registered().rmr_context != 0,
        "a registration returned the key 0",
    )?;
    drop(memory);
    bench.close()
}

fn covers(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    for length in [1, 100, 4096, 100_001] {
        let memory = bench.memory(length)?;
        let (start, bytes) = memory.registered().range;
        let place = memory.place();
        let is_covered = start <= place.address && start + bytes >= place.address + place.length;
        ensure(is_covered, "the registered range is smaller than the requested range")?;
    }
    bench.close()
}

fn many_times(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let memory = bench.memory(4096)?;
    let again = || raw::lmr_create(bench.ia.handle(), bench.pz.handle(), memory.pointer(), 4096, DAT_MEM_PRIV_ALL_FLAG);
    let regions: Vec<Registered> = (0..32).map(|_| again()).collect::<CallResult<_>>()?;
    let mut handles: Vec<_> = regions.iter().map(|region| region.lmr).collect();
    handles.sort();
    handles.dedup();
    ensure(handles.len() == regions.len(), "two registrations returned the same handle")?;
    regions.iter().try_for_each(|region| raw::lmr_free(region.lmr))?;
    drop(memory);
    bench.close()
}

fn nothing(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let memory = bench.memory(64)?;
    let made = raw::lmr_create(bench.ia.handle(), bench.pz.handle(), memory.pointer(), 0, DAT_MEM_PRIV_ALL_FLAG);
    refused(made.map(|region| region.lmr), DAT_LENGTH_ERROR, DAT_NO_SUBTYPE)?;
    drop(memory);
    bench.close()
}

fn no_zone(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let memory = bench.memory(64)?;
    let pz = bench.ia.pz()?;
    let dead = pz.handle();
    pz.free()?;
    let made = raw::lmr_create(bench.ia.handle(), dead, memory.pointer(), 64, DAT_MEM_PRIV_ALL_FLAG);
    refused(made.map(|region| region.lmr), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ)?;
    drop(memory);
    bench.close()
}

fn zone_in_use(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let memory = bench.memory(64)?;
    refused(raw::pz_free(bench.pz.handle()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE)?;
    ensure(raw::lmr_query(memory.lmr())?.length == 64, "the LMR has another length after the refused free")?;
    drop(memory);
    bench.close()
}

fn freed(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let memory = bench.memory(64)?;
    let lmr = memory.lmr();
    raw::lmr_free(lmr)?;
    refused(raw::lmr_free(lmr), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR)?;
    refused(raw::lmr_query(lmr).map(drop), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR)?;
    drop(memory);
    bench.close()
}

fn rmrs(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let rmrs = (0..8).map(|_| bench.pz.rmr()).collect::<CallResult<Vec<_>>>()?;
    rmrs.into_iter().try_for_each(Object::free)?;
    bench.close()
}
