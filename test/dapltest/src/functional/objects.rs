//! Cases for adapters, protection zones and endpoints (valid and refused calls, stale handles), and for queries of all
//! objects.
#![forbid(unsafe_code)]

use dat_abi::*;

use super::{Case, ensure, refused};
use crate::common::Common;
use crate::dat::raw::{self, Post};
use crate::dat::{Ep, Evd, Handle, Ia, Memory, Object, Pz, drain};
use crate::failure::Result;

pub(super) const ADAPTER: &[Case] = &[
    ("an adapter can be opened and closed", opens),
    ("opening an unregistered adapter name is refused", unknown_name),
    ("an adapter can be opened twice", opens_twice),
    ("a graceful close is refused while objects exist", in_use),
    ("an abrupt close frees the objects of the adapter", abrupt),
    ("the handle of a closed adapter is invalid", closed),
];

pub(super) const ZONE: &[Case] = &[
    ("a PZ can be created and freed", zone),
    ("creating a PZ with a null IA handle is refused", zone_nowhere),
    ("creating a PZ without an out pointer is refused", zone_no_place),
    ("freeing a PZ that an endpoint uses is refused", zone_in_use),
    ("the handle of a freed PZ is invalid", zone_freed),
];

pub(super) const ENDPOINT: &[Case] = &[
    ("an endpoint can be created and freed", endpoint),
    ("an endpoint can be created from the queried attributes of another", endpoint_alike),
    ("creating an endpoint in a freed PZ is refused", endpoint_no_zone),
    ("a new endpoint is unconnected and idle", endpoint_idle),
    ("an endpoint with posted receives can be freed", endpoint_with_receives),
    ("the reset of an unconnected endpoint keeps its receives", endpoint_reset),
    ("a send on an unconnected endpoint is refused", endpoint_no_send),
    ("the handle of a freed endpoint is invalid", endpoint_freed),
];

pub(super) const QUERIES: &[Case] = &[
    ("the attributes of the adapter are complete", query_adapter),
    ("the attributes of the provider are complete", query_provider),
    ("an adapter query returns the asynchronous EVD", query_errors),
    ("a PZ query returns the adapter", query_zone),
    ("an EVD query returns length, streams and state", query_evd),
    ("an endpoint query returns state, service type and depths", query_endpoint),
    ("an LMR query returns length, keys and privileges", query_lmr),
    ("the query of an unbound RMR succeeds", query_rmr),
    ("a PSP query returns the qualifier", query_psp),
    ("an RSP query returns the qualifier, and its endpoint is reserved", query_rsp),
    ("a CNO query returns the adapter", query_cno),
    ("dat_get_handle_type returns the kind of an object", kinds),
    ("a query with a handle of another kind is refused", query_another),
];

/// An open adapter with the objects that most cases need.
pub(super) struct Bench {
    pub(super) dtos: Evd,
    pub(super) conn: Evd,
    pub(super) requests: Evd,
    pub(super) pz: Pz,
    pub(super) ia: Ia,
}

impl Bench {
    pub(super) fn new(common: &Common) -> Result<Self> {
        let ia = Ia::open(&common.device)?;
        let pz = ia.pz()?;
        let dtos = ia.evd(64, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG)?;
        let conn = ia.evd(8, DAT_EVD_CONNECTION_FLAG)?;
        let requests = ia.evd(8, DAT_EVD_CR_FLAG)?;
        Ok(Bench { dtos, conn, requests, pz, ia })
    }

    pub(super) fn ep(&self) -> Result<Ep> {
        Ok(self.ia.ep(&self.pz, [&self.dtos, &self.dtos, &self.conn], None)?)
    }

    pub(super) fn memory(&self, length: usize) -> Result<Memory> {
        Ok(Memory::new(&self.ia, &self.pz, length)?)
    }

    /// Closes the adapter; refused if an object is left.
    pub(super) fn close(self) -> Result {
        self.dtos.free()?;
        self.conn.free()?;
        self.requests.free()?;
        self.pz.free()?;
        Ok(self.ia.close()?)
    }
}

fn opens(common: &Common) -> Result {
    Ok(Ia::open(&common.device)?.close()?)
}

fn unknown_name(_: &Common) -> Result {
    refused(Ia::open("no-such-adapter"), DAT_PROVIDER_NOT_FOUND, DAT_NAME_NOT_REGISTERED)
}

fn opens_twice(common: &Common) -> Result {
    let (first, second) = (Ia::open(&common.device)?, Ia::open(&common.device)?);
    ensure(first.handle() != second.handle(), "two opens returned the same IA handle")?;
    first.close()?;
    Ok(second.close()?)
}

fn in_use(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let graceful = raw::ia_close(bench.ia.handle(), DAT_CLOSE_GRACEFUL_FLAG);
    refused(graceful, DAT_INVALID_STATE, DAT_INVALID_STATE_IA_IN_USE)?;
    bench.close()
}

fn abrupt(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let ep = bench.ep()?;
    raw::ia_close(bench.ia.handle(), DAT_CLOSE_ABRUPT_FLAG)?;
    refused(ep.free(), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)
}

fn closed(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let handle = ia.handle();
    ia.close()?;
    refused(raw::ia_query(handle).map(drop), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA)?;
    refused(raw::ia_close(handle, DAT_CLOSE_ABRUPT_FLAG), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA)
}

fn zone(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    ia.pz()?.free()?;
    Ok(ia.close()?)
}

fn zone_nowhere(_: &Common) -> Result {
    refused(raw::pz_create(Handle::NULL), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_IA)
}

fn zone_no_place(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    refused(raw::pz_create_nowhere(ia.handle()), DAT_INVALID_PARAMETER, DAT_INVALID_ARG2)?;
    Ok(ia.close()?)
}

fn zone_in_use(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let ep = bench.ep()?;
    refused(raw::pz_free(bench.pz.handle()), DAT_INVALID_STATE, DAT_INVALID_STATE_PZ_IN_USE)?;
    ep.free()?;
    bench.close()
}

fn zone_freed(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let pz = ia.pz()?;
    let handle = pz.handle();
    pz.free()?;
    refused(raw::pz_query(handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ)?;
    refused(raw::pz_free(handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ)?;
    Ok(ia.close()?)
}

fn endpoint(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    bench.ep()?.free()?;
    bench.close()
}

fn endpoint_alike(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let first = bench.ep()?;
    let attr = raw::ep_query(first.handle())?.ep_attr;
    let evds = [&bench.dtos, &bench.dtos, &bench.conn];
    let second = bench.ia.ep(&bench.pz, evds, Some(&attr))?;
    let again = raw::ep_query(second.handle())?.ep_attr;
    ensure(attr.max_recv_dtos == again.max_recv_dtos, "max_recv_dtos differs from the requested value")?;
    ensure(attr.max_request_dtos == again.max_request_dtos, "max_request_dtos differs from the requested value")?;
    first.free()?;
    second.free()?;
    bench.close()
}

fn endpoint_no_zone(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let pz = bench.ia.pz()?;
    let dead = pz.handle();
    pz.free()?;
    let evds = [bench.dtos.handle(), bench.dtos.handle(), bench.conn.handle()];
    let made = raw::ep_create(bench.ia.handle(), dead, evds, None);
    refused(made, DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ)?;
    bench.close()
}

fn endpoint_idle(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let ep = bench.ep()?;
    let (state, recv_idle, request_idle) = raw::ep_status(ep.handle())?;
    ensure(state == DAT_EP_STATE_UNCONNECTED, "a new endpoint is not UNCONNECTED")?;
    ensure(recv_idle && request_idle, "a new endpoint has posted work")?;
    ep.free()?;
    bench.close()
}

fn endpoint_with_receives(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (memory, ep) = (bench.memory(4096)?, bench.ep()?);
    ep.post(Post::Recv, &mut memory.segments(0, 4096, 1), 1)?;
    let (_, recv_idle, _) = raw::ep_status(ep.handle())?;
    ensure(!recv_idle, "the endpoint reports no posted receive after a post")?;
    ep.free()?;
    drop(memory);
    bench.close()
}

fn endpoint_reset(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (memory, ep) = (bench.memory(4096)?, bench.ep()?);
    ep.post(Post::Recv, &mut memory.segments(0, 4096, 1), 1)?;
    raw::ep_reset(ep.handle())?;
    let (_, recv_idle, _) = raw::ep_status(ep.handle())?;
    ensure(!recv_idle && drain(&bench.dtos).is_empty(), "the reset removed or completed the posted receive")?;
    ep.free()?;
    drop(memory);
    bench.close()
}

fn endpoint_no_send(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (memory, ep) = (bench.memory(64)?, bench.ep()?);
    let sent = ep.post(Post::Send, &mut memory.segments(0, 64, 1), 1);
    refused(sent, DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED)?;
    ep.free()?;
    drop(memory);
    bench.close()
}

fn endpoint_freed(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let ep = bench.ep()?;
    let handle = ep.handle();
    ep.free()?;
    refused(raw::ep_free(handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)?;
    refused(raw::ep_status(handle), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)?;
    bench.close()
}

fn query_adapter(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let attr = raw::ia_query(ia.handle())?;
    ensure(attr.adapter_name[0] != 0, "adapter_name is empty")?;
    ensure(!attr.ia_address_ptr.is_null(), "ia_address_ptr is null")?;
    let counts = [attr.max_eps, attr.max_dto_per_ep, attr.max_evds, attr.max_evd_qlen, attr.max_lmrs, attr.max_pzs];
    ensure(counts.iter().all(|count| *count > 0), "a maximum number of objects or events is 0")?;
    ensure(attr.max_message_size > 0 && attr.max_rdma_size > 0, "max_message_size or max_rdma_size is 0")?;
    Ok(ia.close()?)
}

fn query_provider(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let attr = raw::provider_query(ia.handle())?;
    ensure(attr.provider_name[0] != 0, "provider_name is empty")?;
    ensure(attr.dapl_version_major >= 1, "dapl_version_major is 0")?;
    ensure(attr.optimal_buffer_alignment.is_power_of_two(), "optimal_buffer_alignment is not a power of two")?;
    Ok(ia.close()?)
}

fn query_errors(common: &Common) -> Result {
    let (ia, errors) = raw::ia_open(&common.device)?;
    ensure(raw::ia_errors(ia)? == errors, "the query returned another asynchronous EVD than the open")?;
    Ok(raw::ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG)?)
}

fn query_zone(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    ensure(raw::pz_query(bench.pz.handle())? == bench.ia.handle(), "the query returned another IA")?;
    bench.close()
}

fn query_evd(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let param = raw::evd_query(bench.dtos.handle())?;
    ensure(param.evd_qlen >= 64, "evd_qlen is less than the requested 64")?;
    ensure(param.evd_flags & DAT_EVD_DTO_FLAG != 0, "evd_flags lack DAT_EVD_DTO_FLAG")?;
    ensure(param.evd_state & DAT_EVD_STATE_ENABLED != 0, "a new EVD is not enabled")?;
    bench.close()
}

fn query_endpoint(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let ep = bench.ep()?;
    let param = raw::ep_query(ep.handle())?;
    ensure(param.ep_state == DAT_EP_STATE_UNCONNECTED, "ep_state is not UNCONNECTED")?;
    ensure(param.ep_attr.service_type == DAT_SERVICE_TYPE_RC, "service_type is not DAT_SERVICE_TYPE_RC")?;
    ensure(
        param.ep_attr.max_recv_dtos > 0 && param.ep_attr.max_request_dtos > 0,
        "max_recv_dtos or max_request_dtos is 0",
    )?;
    ep.free()?;
    bench.close()
}

fn query_lmr(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let memory = bench.memory(10_000)?;
    let param = raw::lmr_query(memory.lmr())?;
    ensure(param.length == 10_000, "the length is not the registered 10000")?;
    ensure(param.lmr_context == memory.registered().lmr_context, "lmr_context differs from that of the registration")?;
    ensure(param.rmr_context == memory.registered().rmr_context, "rmr_context differs from that of the registration")?;
    ensure(param.mem_priv == DAT_MEM_PRIV_ALL_FLAG, "mem_priv differs from the requested privileges")?;
    drop(memory);
    bench.close()
}

fn query_rmr(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let rmr = bench.pz.rmr()?;
    raw::rmr_query(rmr.handle())?;
    rmr.free()?;
    bench.close()
}

fn query_psp(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (psp, qual) = bench.ia.psp_any(&bench.requests)?;
    ensure(raw::psp_query(psp.handle())?.conn_qual == qual, "the query returned another qualifier")?;
    psp.free()?;
    bench.close()
}

fn query_rsp(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (psp, qual) = bench.ia.psp_any(&bench.requests)?;
    // The first free released the qualifier, so it can be used again.
    psp.free()?;
    let ep = bench.ep()?;
    let rsp = bench.ia.rsp(qual, &ep, &bench.requests)?;
    ensure(raw::rsp_query(rsp.handle())?.conn_qual == qual, "the query returned another qualifier")?;
    let (state, ..) = raw::ep_status(ep.handle())?;
    ensure(state == DAT_EP_STATE_RESERVED, "the endpoint of the RSP is not RESERVED")?;
    rsp.free()?;
    ep.free()?;
    bench.close()
}

fn query_cno(common: &Common) -> Result {
    let ia = Ia::open(&common.device)?;
    let cno = ia.cno()?;
    ensure(raw::cno_query(cno.handle())? == ia.handle(), "the query returned another IA")?;
    cno.free()?;
    Ok(ia.close()?)
}

fn kinds(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (ep, memory) = (bench.ep()?, bench.memory(64)?);
    for (handle, kind) in [
        (bench.ia.handle(), DAT_HANDLE_TYPE_IA),
        (bench.pz.handle(), DAT_HANDLE_TYPE_PZ),
        (bench.dtos.handle(), DAT_HANDLE_TYPE_EVD),
        (ep.handle(), DAT_HANDLE_TYPE_EP),
        (memory.lmr(), DAT_HANDLE_TYPE_LMR),
    ] {
        ensure(raw::handle_type(handle)? == kind, "dat_get_handle_type returned another kind")?;
    }
    ep.free()?;
    drop(memory);
    bench.close()
}

fn query_another(common: &Common) -> Result {
    let bench = Bench::new(common)?;
    let (ep, pz) = (bench.ep()?, bench.pz.handle());
    refused(raw::ep_query(pz).map(drop), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_EP)?;
    refused(raw::pz_query(ep.handle()), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_PZ)?;
    refused(raw::evd_query(pz).map(drop), DAT_INVALID_HANDLE, DAT_NO_SUBTYPE)?;
    refused(raw::lmr_query(ep.handle()).map(drop), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR)?;
    ep.free()?;
    bench.close()
}
