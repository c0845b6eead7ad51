//! Registered memory: buffers, which peers cannot access by RDMA, and windows, which they can.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::slice;
use std::sync::Arc;

use dat_abi::*;

use crate::bytes::MemoryBlock;
use crate::error::{Error, Result, is_success};
use crate::library::call;
use crate::owned::{Handle, Pz, PzInner};
use crate::shared::SharedMemory;

bitflags::bitflags! {
    /// Access rights of peers to a window.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Access: u32 {
        /// Peers may read the window by RDMA.
        const READ = DAT_MEM_PRIV_REMOTE_READ_FLAG;
        /// Peers may write the window by RDMA.
        const WRITE = DAT_MEM_PRIV_REMOTE_WRITE_FLAG;
    }
}

/// A block of memory and its registration.
pub(crate) struct Registered {
    handle: Handle,
    context: DAT_LMR_CONTEXT,
    remote: DAT_RMR_CONTEXT,
    pz: Arc<PzInner>,
    /// The registered memory. It is freed only after the deregistration has succeeded.
    block: ManuallyDrop<MemoryBlock>,
}

impl Registered {
    fn new(pz: &Pz, length: usize, privileges: DAT_MEM_PRIV_FLAGS) -> Result<Self> {
        let block = MemoryBlock::new(length).ok_or_else(|| {
            Error::Argument(format!(
                "cannot allocate {length} bytes: the length must be at least 1 and fit in the address space"
            ))
        })?;
        let region = DAT_REGION_DESCRIPTION { for_va: block.base().as_ptr().cast() };
        Self::register(pz, block, DAT_MEM_TYPE_VIRTUAL, region, privileges)
    }

    /// Registers the memory of `block`. `region` gives libdat the location of this memory.
    fn register(
        pz: &Pz,
        block: MemoryBlock,
        memory_type: DAT_MEM_TYPE,
        region: DAT_REGION_DESCRIPTION,
        privileges: DAT_MEM_PRIV_FLAGS,
    ) -> Result<Self> {
        let (pz, length) = (Arc::clone(&pz.inner), block.len());
        let (mut handle, mut context, mut remote) = (ptr::null_mut(), 0, 0);
        // SAFETY: the memory stays allocated until it is deregistered; the results are local variables or null.
        unsafe {
            call!(
                pz.ia.functions,
                dat_lmr_create(
                    pz.ia.handle.0,
                    memory_type,
                    region,
                    length as DAT_VLEN,
                    pz.handle.0,
                    privileges,
                    &raw mut handle,
                    &raw mut context,
                    &raw mut remote,
                    ptr::null_mut(),
                    ptr::null_mut()
                )
            )
        }?;
        Ok(Registered { handle: Handle(handle), context, remote, pz, block: ManuallyDrop::new(block) })
    }

    /// Returns a part of the block as a local segment. The caller has checked the range.
    pub(crate) fn segment(&self, start: usize, length: usize) -> DAT_LMR_TRIPLET {
        DAT_LMR_TRIPLET {
            lmr_context: self.context,
            pad: 0,
            virtual_address: (self.block.base().as_ptr() as usize + start) as DAT_VADDR,
            segment_length: length as DAT_VLEN,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: the handle is that of this registration, which nothing uses after the drop. Transfers that still use
        // the memory fail from here on.
        let code = unsafe { (self.pz.ia.functions.dat_lmr_free)(self.handle.0) };
        if is_success(code) {
            // SAFETY: the block is dropped once, only here.
            unsafe { ManuallyDrop::drop(&mut self.block) };
        }
        // A block that cannot be deregistered may still be in use, so it is leaked.
    }
}

/// Registered memory for transfers: zeroed and page-aligned. It dereferences to `[u8]`; during a transfer the library
/// owns it.
pub struct Buffer(pub(crate) Box<Registered>);

impl Buffer {
    /// Allocates and registers `length` bytes in this zone.
    ///
    /// # Errors
    /// Those of `dat_lmr_create`, for example if the limit of locked memory is reached; [`Error::Argument`] for a
    /// length of 0, or if memory is exhausted.
    pub fn new(pz: &Pz, length: usize) -> Result<Self> {
        Registered::new(pz, length, DAT_MEM_PRIV_LOCAL_READ_FLAG | pz.inner.ia.sink)
            .map(|memory| Buffer(Box::new(memory)))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let block = &self.0.block;
        // SAFETY: the memory is initialised. A transfer would own the buffer, so none uses it, and peers have no
        // access.
        unsafe { slice::from_raw_parts(block.base().as_ptr(), block.len()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (base, length) = (self.0.block.base(), self.0.block.len());
        // SAFETY: the memory is initialised, no transfer uses it, peers have no access, and `&mut self` makes the
        // borrow exclusive.
        unsafe { slice::from_raw_parts_mut(base.as_ptr(), length) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} bytes", self.len())
    }
}

/// Memory that peers may read or write with RDMA at any time, without any action of this process.
pub struct Window(pub(crate) Arc<Registered>);

impl Window {
    /// Allocates and registers `length` zeroed bytes in this zone, with these access rights for peers.
    ///
    /// # Errors
    /// Those of `dat_lmr_create`; [`Error::Argument`] for a length of 0, for no access right, or if memory is
    /// exhausted.
    pub fn new(pz: &Pz, length: usize, access: Access) -> Result<Self> {
        Registered::new(pz, length, Self::privileges(access)?).map(|memory| Window(Arc::new(memory)))
    }

    /// Maps and registers memory that other processes register under the same name, with these access rights for
    /// peers. Peers on the same host may then write into the memory directly.
    ///
    /// # Errors
    /// Those of `dat_lmr_create`, for example if another process registered another length under the name;
    /// [`Error::Argument`] for a length of 0, for no access right, or if the memory cannot be mapped.
    pub fn shared(pz: &Pz, memory: &SharedMemory, name: &[u8; 40], access: Access) -> Result<Self> {
        let privileges = Self::privileges(access)?;
        let block = MemoryBlock::map(memory, memory.len())
            .map_err(|error| Error::Argument(format!("cannot map {} bytes of shared memory: {error}", memory.len())))?;
        let mut id = *name;
        let region = DAT_REGION_DESCRIPTION {
            for_shared_memory: DAT_SHARED_MEMORY {
                virtual_address: block.base().as_ptr().cast(),
                shared_memory_id: (&raw mut id).cast(),
            },
        };
        let memory = Registered::register(pz, block, DAT_MEM_TYPE_SHARED_VIRTUAL, region, privileges)?;
        Ok(Window(Arc::new(memory)))
    }

    fn privileges(access: Access) -> Result<DAT_MEM_PRIV_FLAGS> {
        if access.is_empty() {
            return Err(Error::Argument(
                "a window needs remote read or write access; use a Buffer for local memory".into(),
            ));
        }
        Ok(DAT_MEM_PRIV_LOCAL_READ_FLAG | DAT_MEM_PRIV_LOCAL_WRITE_FLAG | access.bits())
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.block.len()
    }

    /// Always false: a window has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the key, address and length for a peer.
    pub fn ticket(&self) -> Ticket<'_> {
        let address = self.0.block.base().as_ptr() as u64;
        let remote = Remote { context: self.0.remote, address, length: self.len() as u64 };
        Ticket { remote, window: PhantomData }
    }

    /// Copies bytes from the window. If a peer writes at the same time, the result may be a mixture of old and new
    /// bytes.
    ///
    /// # Panics
    /// If the range is not inside the window.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.0.block.read(offset, out);
    }

    /// Copies bytes into the window. If a peer reads at the same time, it may get a mixture of old and new bytes.
    ///
    /// # Panics
    /// If the range is not inside the window.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.block.write(offset, bytes);
    }

    /// Reads eight bytes at a multiple of eight, in native byte order, for example to poll for the last bytes of a
    /// peer's write.
    ///
    /// # Panics
    /// If the eight bytes are not inside the window, or `offset` is not a multiple of eight.
    pub fn load(&self, offset: usize) -> u64 {
        self.0.block.load(offset)
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window of {} bytes", self.len())
    }
}

/// Key, address and length of a window, for a peer. The lifetime ensures that the window exists.
/// [`to_bytes`](Remote::to_bytes) encodes a ticket for sending.
#[derive(Clone, Copy, Debug)]
pub struct Ticket<'w> {
    remote: Remote,
    window: PhantomData<&'w Window>,
}

impl Deref for Ticket<'_> {
    type Target = Remote;

    fn deref(&self) -> &Remote {
        &self.remote
    }
}

/// A window of the peer, for an RDMA read or write. Only the peer knows whether the window still exists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Remote {
    context: DAT_RMR_CONTEXT,
    address: DAT_VADDR,
    length: u64,
}

impl Remote {
    pub(crate) fn new(context: DAT_RMR_CONTEXT, address: DAT_VADDR, length: u64) -> Self {
        Remote { context, address, length }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Encodes the window in 20 bytes, big-endian: context, address, length.
    pub fn to_bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&self.context.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.address.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Decodes a peer's window. Any bytes are accepted; the peer checks key and range when a transfer uses the window.
    pub fn from_bytes(bytes: &[u8; 20]) -> Self {
        let [a, b, c, d, address @ .., _, _, _, _, _, _, _, _] = *bytes;
        let [.., l0, l1, l2, l3, l4, l5, l6, l7] = *bytes;
        Remote {
            context: u32::from_be_bytes([a, b, c, d]),
            address: u64::from_be_bytes(address),
            length: u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7]),
        }
    }

    /// Returns a part of the window as the remote segment of a transfer of `length` bytes.
    pub(crate) fn part(&self, offset: u64, length: usize) -> Result<DAT_RMR_TRIPLET> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.length);
        let address = end.and_then(|_| self.address.checked_add(offset));
        let target_address = address.ok_or_else(|| {
            Error::Argument(format!(
                "{length} bytes at offset {offset} are not inside the peer's memory of {} bytes",
                self.length
            ))
        })?;
        Ok(DAT_RMR_TRIPLET { rmr_context: self.context, pad: 0, target_address, segment_length: length as DAT_VLEN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: Remote = Remote { context: 0x0102_0304, address: 0x1112_1314_1516_1718, length: 100 };

    #[test]
    fn remote_window_survives_encoding() {
        assert_eq!(Remote::from_bytes(&REMOTE.to_bytes()), REMOTE);
        assert_eq!(REMOTE.to_bytes()[..12], [1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    }

    #[test]
    fn part_of_a_remote_window_must_be_inside_it() {
        let part = REMOTE.part(60, 40).unwrap();
        assert_eq!(
            (part.rmr_context, part.target_address, part.segment_length),
            (0x0102_0304, REMOTE.address + 60, 40)
        );
        assert!(REMOTE.part(100, 0).is_ok());
        assert!(REMOTE.part(61, 40).is_err());
        assert!(REMOTE.part(u64::MAX, 2).is_err());
        let high = Remote { address: u64::MAX - 1, ..REMOTE };
        assert!(high.part(2, 1).is_err(), "addresses do not wrap");
    }
}
