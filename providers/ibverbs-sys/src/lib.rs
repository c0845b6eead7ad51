//! Declarations of libibverbs, written by hand, for the provider over rdma-core: types, numbers, functions.
//!
//! Names are those of `<infiniband/verbs.h>`. The library is loaded at run time by [`load`], so neither the build nor a
//! program that opens no such adapter needs it. Functions are the exported symbols; inline functions of the header are
//! called through the table [`ibv_context_ops`] of an open device. `test/tests/rdma_headers.rs` compares every
//! declaration with the installed header. This crate has no wrappers: the library's manual pages state the rules.
#![allow(non_camel_case_types)]

mod constants;
mod load;
mod types;

use std::os::raw::{c_char, c_int, c_uint, c_void};

pub use constants::*;
pub use load::{LoadError, Loaded};
pub use types::*;

library! {
    "libibverbs.so.1", "libibverbs1";

    /// Returns an array terminated by null; null and errno on error.
    pub fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
    /// Devices that were opened from the list stay open.
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    /// The string is valid as long as the device.
    pub fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    /// Null and errno on failure.
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    /// Call it after all objects of the device were destroyed.
    pub fn ibv_close_device(context: *mut ibv_context) -> c_int;
    /// Returns an error number.
    pub fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
    /// Returns an error number. Fills `ibv_port_attr` up to `flags`.
    pub fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int;
    /// Returns a number of entries, or a negative error number. Since rdma-core 32.
    pub fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
    /// 0, or -1 and errno.
    pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    /// Call it once for each event.
    pub fn ibv_ack_async_event(event: *mut ibv_async_event);
    /// Null and errno on failure.
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    /// Call it after all queues that use it were destroyed.
    pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    /// Null and errno on failure.
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    /// Returns an error number.
    pub fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    /// Waits until all of its events are acknowledged.
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    /// 0, or -1 and errno.
    pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    /// `nevents`: number of events that were read.
    pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
    /// Null and errno on failure.
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    /// Call it after all objects in it were destroyed.
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    /// Null and errno on failure. The header's macro of this name calls it unless optional access flags are given.
    pub fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    /// Returns an error number.
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    /// Null and errno on failure. Writes the granted sizes into the attributes.
    pub fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    /// Returns an error number.
    pub fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;
    /// Returns an error number.
    pub fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;
    /// Waits until all of its events are acknowledged.
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    /// Null and errno on failure. Writes the granted sizes into the attributes.
    pub fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Returns an error number.
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
    /// Waits until all of its events are acknowledged.
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
}

/// The part of [`ibv_port_attr`] that `ibv_query_port` fills; the header declares it and defines it nowhere.
#[repr(C)]
#[derive(Debug)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}
