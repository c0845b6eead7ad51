//! An open device (`ibv_context`): its attributes, its ports and their GIDs, and its asynchronous events. Also lists
//! the names of all devices.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use ibverbs_sys::{
    IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_TRANSPORT_IWARP, ibv_atomic_cap, ibv_close_device, ibv_context,
    ibv_device, ibv_device_attr, ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_gid_entry,
    ibv_open_device, ibv_port_attr, ibv_query_device, ibv_query_port,
};

use super::{Handle, check_result, destroys, nonblocking};

/// An open device. It is closed when the last object that holds a reference to it is dropped.
pub(crate) struct Context {
    pub(super) handle: Handle<ibv_context>,
    name: String,
    /// Whether the device is iWARP. Its connections need rdma_cm, and its GIDs cannot be used for paths.
    pub(crate) is_iwarp: bool,
    /// Whether the device has atomic operations; queried at the first use.
    atomics: OnceLock<bool>,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) raw: [u8; 16],
    pub(crate) kind: GidKind,
    /// The network device of the entry; `None` on InfiniBand.
    pub(crate) netdev: Option<String>,
}

/// Packet format of connections that use a GID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GidKind {
    Ib,
    RoceV1,
    RoceV2,
}

impl GidKind {
    /// Returns the name used in log messages and IA attributes.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GidKind::Ib => "ib",
            GidKind::RoceV1 => "roce-v1",
            GidKind::RoceV2 => "roce-v2",
        }
    }
}

impl Context {
    /// Returns the names of all devices for which libibverbs has a driver.
    pub(crate) fn devices() -> io::Result<Vec<String>> {
        let list = DeviceList::new()?;
        Ok(list.devices().map(DeviceList::name).collect())
    }

    /// Opens the device with this name. Errors: `NotFound` if libibverbs does not list it.
    pub(crate) fn open(name: &str) -> io::Result<Arc<Self>> {
        let list = DeviceList::new()?;
        let device = list
            .devices()
            .find(|&device| DeviceList::name(device) == name)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("libibverbs lists no device {name}")))?;
        // SAFETY: `device` is in `list`, which is freed when this function returns.
        let handle = Handle::check(unsafe { ibv_open_device(device) })?;
        // SAFETY: `device` is in `list`, which is not freed yet.
        let is_iwarp = unsafe { (*device).transport_type } == IBV_TRANSPORT_IWARP;
        let context = Context { handle, name: name.to_string(), is_iwarp, atomics: OnceLock::new() };
        nonblocking(context.events())?;
        Ok(Arc::new(context))
    }

    /// Returns the name of the device, such as `mlx5_0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the device supports atomic operations.
    pub(crate) fn has_atomics(&self) -> bool {
        *self
            .atomics
            .get_or_init(|| self.attributes().is_ok_and(|device| device.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE))
    }

    /// Queries the attributes of the device.
    pub(crate) fn attributes(&self) -> io::Result<ibv_device_attr> {
        let mut attributes = ibv_device_attr::default();
        // SAFETY: the context is open, and `attributes` is a valid record to write to.
        check_result(unsafe { ibv_query_device(self.handle.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    /// Queries the attributes of a port. Ports are numbered from 1.
    pub(crate) fn port(&self, port: u8) -> io::Result<ibv_port_attr> {
        let mut attributes = ibv_port_attr::default();
        // SAFETY: the context is open. The function writes an older, shorter version of the record, which ends with the
        // field `flags`. Later fields of `attributes` stay zero.
        check_result(unsafe { ibv_query_port(self.handle.as_ptr(), port, (&raw mut attributes).cast()) })?;
        Ok(attributes)
    }

    /// Returns the GIDs of a port, without empty entries, ordered by index.
    pub(crate) fn gids(&self, port: u8) -> io::Result<Vec<Gid>> {
        // The query returns the GIDs of all ports of the device.
        let attributes = self.attributes()?;
        let mut capacity = 0;
        for number in 1..=attributes.phys_port_cnt {
            capacity += usize::try_from(self.port(number)?.gid_tbl_len).unwrap_or(0);
        }
        let mut entries: Vec<ibv_gid_entry> = vec![ibv_gid_entry::default(); capacity];
        // SAFETY: the context is open, and `entries` has space for `entries.len()` records of the size passed.
        let found = unsafe {
            ibverbs_sys::_ibv_query_gid_table(
                self.handle.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        // Unlike other verbs, this one is documented to return a negative error number.
        let found = usize::try_from(found).map_err(|_| io::Error::from_raw_os_error((-found) as i32))?;
        let mut gids: Vec<Gid> =
            entries[..found].iter().filter(|entry| entry.port_num == u32::from(port)).map(Gid::from).collect();
        gids.sort_by_key(|gid| gid.index);
        Ok(gids)
    }

    /// Returns the descriptor that is readable when an asynchronous event is pending.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context, and the result borrows the context.
        unsafe { BorrowedFd::borrow_raw((*self.handle.as_ptr()).async_fd) }
    }

    /// Returns the function table of the device.
    pub(super) fn ops(&self) -> &ibverbs_sys::ibv_context_ops {
        // SAFETY: the table is part of the context. `ibv_open_device` fills it, and it does not change later.
        unsafe { &(*self.handle.as_ptr()).ops }
    }
}

destroys! { Context, ibv_close_device, |context| format!("context of {}", context.name) }

impl From<&ibv_gid_entry> for Gid {
    fn from(entry: &ibv_gid_entry) -> Self {
        let kind = match entry.gid_type {
            IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Ib,
        };
        Gid { index: entry.gid_index, raw: entry.gid.raw(), kind, netdev: interface_name(entry.ndev_ifindex) }
    }
}

/// Returns the name of the network device with this interface index; `None` for 0 or an unknown index.
fn interface_name(index: u32) -> Option<String> {
    let mut name = MaybeUninit::<[libc::c_char; libc::IF_NAMESIZE]>::uninit();
    // SAFETY: `name` has `IF_NAMESIZE` bytes, as the function requires.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    // SAFETY: on success (`found` is not null), `name` contains a NUL-terminated string.
    (!found.is_null()).then(|| unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned())
}

/// The result of `ibv_get_device_list`.
struct DeviceList {
    list: Handle<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    /// Gets the list. Loads libibverbs first: every other call needs a device of this list.
    fn new() -> io::Result<Self> {
        ibverbs_sys::load().map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error.clone()))?;
        let mut count: c_int = 0;
        // SAFETY: `count` is a valid pointer to write the number to.
        let list = Handle::check(unsafe { ibv_get_device_list(&mut count) })?;
        Ok(DeviceList { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the list has `count` entries, and `self` frees it only when it is dropped.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) }.iter().copied()
    }

    fn name(device: *mut ibv_device) -> String {
        // SAFETY: `device` is in a list that was not freed, and its name is NUL-terminated.
        unsafe { CStr::from_ptr(ibv_get_device_name(device)) }.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list was returned by `ibv_get_device_list`. No device of it is used after this, and open contexts
        // do not need it.
        unsafe { ibv_free_device_list(self.list.as_ptr()) };
    }
}
