//! Hand-written declarations of libibverbs, for the provider over rdma-core: the functions that it calls, and their
//! types and constants.
//!
//! Names are those of `<infiniband/verbs.h>`. [`load`] loads the library at run time. So the library is not needed by
//! the build, nor by a program that opens no IA of this provider. The functions declared here are exported by the
//! library. Functions that are inline in the header are called through [`ibv_context_ops`], the function table of an
//! open device. `test/tests/rdma_headers.rs` compares each declaration with the installed header. This crate has no
//! wrappers: the library's manual pages state the rules of each function.
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

    /// Returns a null-terminated array; null and errno on failure.
    pub fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
    /// Frees the list. Devices that were opened from it stay open.
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    /// The string is valid until the device list is freed and the device is closed.
    pub fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    /// Returns null and errno on failure.
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    /// All objects of the device must be destroyed before this call.
    pub fn ibv_close_device(context: *mut ibv_context) -> c_int;
    /// Returns 0 or an error number.
    pub fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
    /// Returns 0 or an error number. Fills the fields of `ibv_port_attr` up to and including `flags`.
    pub fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int;
    /// Returns the number of entries, or a negative error number. Available since rdma-core 32.
    pub fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
    /// Returns 0, or -1 and errno.
    pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    /// Must be called once for each event.
    pub fn ibv_ack_async_event(event: *mut ibv_async_event);
    /// Returns null and errno on failure.
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    /// All completion queues of the channel must be destroyed before this call.
    pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    /// Returns null and errno on failure.
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    /// Returns 0 or an error number.
    pub fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    /// Waits until all events of the object are acknowledged.
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    /// Returns 0, or -1 and errno.
    pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void,
    ) -> c_int;
    /// `nevents`: number of events of this queue to acknowledge.
    pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
    /// Returns null and errno on failure.
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    /// All objects of the protection domain must be destroyed before this call.
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    /// Returns null and errno on failure. The header also has a macro of this name, which calls this function unless
    /// optional access flags are set.
    pub fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    /// Returns 0 or an error number.
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    /// Returns null and errno on failure. Writes the granted sizes into the attributes.
    pub fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    /// Returns 0 or an error number.
    pub fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;
    /// Returns 0 or an error number.
    pub fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;
    /// Waits until all events of the object are acknowledged.
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    /// Returns null and errno on failure. Writes the granted sizes into the attributes.
    pub fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    /// Returns 0 or an error number.
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
    /// Waits until all events of the object are acknowledged.
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
}

/// The part of [`ibv_port_attr`] that `ibv_query_port` fills. The header only declares this type.
#[repr(C)]
#[derive(Debug)]
pub struct _compat_ibv_port_attr {
    _opaque: [u8; 0],
}
