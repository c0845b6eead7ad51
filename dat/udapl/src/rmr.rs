//! Memory windows of DAT (RMRs): an RMR gives a part of a [`Window`] its own key and access rights, which an unbind
//! revokes.

use std::ops::RangeBounds;
use std::ptr;
use std::sync::Arc;

use dat_abi::*;

use crate::ep::Ep;
use crate::error::{Error, Result};
use crate::library::call;
use crate::memory::{Access, Registered, Remote, Window};
use crate::owned::{BindId, Object, Pz, PzInner};
use crate::segment::part;

/// A memory window: a key with which peers may access a part of a registered [`Window`], until it is unbound. The key
/// is valid on the connections of all endpoints in the protection zone. The endpoint's event queue for requests needs
/// [`Streams::BIND`](crate::Streams::BIND).
pub struct Rmr {
    object: Object<Arc<PzInner>>,
    /// Number of binds and unbinds posted so far; the next one gets this number as its id.
    binds: u64,
    /// The memory of the last bind. It must stay registered while it is bound.
    _memory: Option<Arc<Registered>>,
}

impl Pz {
    /// Creates a memory window that is not bound.
    ///
    /// # Errors
    /// Those of `dat_rmr_create`, for example if the adapter does not support memory windows.
    pub fn rmr(&self) -> Result<Rmr> {
        let (ia, mut handle) = (&self.inner.ia, ptr::null_mut());
        // SAFETY: the result is written to a local variable.
        unsafe { call!(ia.functions, dat_rmr_create(self.inner.handle.0, &raw mut handle)) }?;
        let object = Object::new(ia, handle, ia.functions.dat_rmr_free, Arc::clone(&self.inner));
        Ok(Rmr { object, binds: 0, _memory: None })
    }
}

impl Rmr {
    /// Posts a bind to this part of the memory, with these access rights for peers. Requests posted later to the
    /// endpoint start after the bind, so a send may carry the returned key to the peer before the bind has completed.
    ///
    /// # Errors
    /// Those of `dat_rmr_bind`; [`Error::Argument`] for an empty range, or a range that is not inside the window.
    pub fn bind(
        &mut self,
        ep: &Ep,
        window: &Window,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<(BindId, Remote)> {
        let (start, length) = part(range, window.len())?;
        if length == 0 {
            return Err(Error::Argument("a window cannot be bound to 0 bytes; call unbind instead".into()));
        }
        let segment = window.0.segment(start, length);
        let (id, context) = self.post(ep, &segment, access.bits())?;
        self._memory = Some(Arc::clone(&window.0));
        Ok((id, Remote::new(context, segment.virtual_address, length as u64)))
    }

    /// Posts an unbind. After it has completed, no peer can use the key.
    ///
    /// # Errors
    /// Those of `dat_rmr_bind`.
    pub fn unbind(&mut self, ep: &Ep) -> Result<BindId> {
        let nothing = DAT_LMR_TRIPLET { lmr_context: 0, pad: 0, virtual_address: 0, segment_length: 0 };
        self.post(ep, &nothing, DAT_MEM_PRIV_NONE_FLAG).map(|(id, _)| id)
    }

    fn post(
        &mut self,
        ep: &Ep,
        segment: &DAT_LMR_TRIPLET,
        privileges: DAT_MEM_PRIV_FLAGS,
    ) -> Result<(BindId, DAT_RMR_CONTEXT)> {
        let id = BindId(self.binds);
        let (functions, ep, mut context) = (&self.object.ia.functions, ep.handle(), 0);
        let (cookie, flags) = (DAT_CONTEXT { as_64: id.0 }, DAT_COMPLETION_DEFAULT_FLAG);
        // SAFETY: the segment is only read; the result is a local variable. The memory stays registered: `bind` keeps
        // it, and the library refuses to deregister memory that is bound.
        unsafe {
            call!(
                functions,
                dat_rmr_bind(self.object.handle.0, segment, privileges, ep, cookie, flags, &raw mut context)
            )
        }?;
        self.binds += 1;
        Ok((id, context))
    }
}
