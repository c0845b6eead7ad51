//! Listeners and connection requests.

use std::fmt;
use std::mem;
use std::ptr;
use std::sync::Arc;

use dat_abi::*;

use crate::address::Address;
use crate::ep::{Ep, private};
use crate::error::{Result, is_success};
use crate::evd::{Evd, copied};
use crate::ia::Ia;
use crate::library::call;
use crate::owned::{EvdInner, Handle, IaInner, Object};

/// A listener on a connection qualifier. It listens until it is dropped; requests that have arrived can still be
/// answered then.
pub struct Listener {
    /// The listener, and the queue of its requests.
    _object: Object<Arc<EvdInner>>,
    qualifier: u64,
}

impl Ia {
    /// Listens on this qualifier; requests arrive in `events`, which needs
    /// [`Streams::REQUEST`](crate::Streams::REQUEST).
    ///
    /// # Errors
    /// Those of `dat_psp_create`, for example if the qualifier is in use.
    pub fn listen(&self, qualifier: u64, events: &Evd) -> Result<Listener> {
        Listener::new(&self.inner, Some(qualifier), events)
    }

    /// Listens on a free qualifier, which [`Listener::qualifier`] returns.
    ///
    /// # Errors
    /// Those of `dat_psp_create_any`.
    pub fn listen_any(&self, events: &Evd) -> Result<Listener> {
        Listener::new(&self.inner, None, events)
    }
}

impl Listener {
    fn new(ia: &Arc<IaInner>, qualifier: Option<u64>, events: &Evd) -> Result<Self> {
        let events = Arc::clone(&events.inner);
        let mut handle = ptr::null_mut();
        let (functions, queue, flags) = (&ia.functions, events.handle.0, DAT_PSP_CONSUMER_FLAG);
        let qualifier = match qualifier {
            Some(qualifier) => {
                // SAFETY: the result is written to a local variable.
                unsafe { call!(functions, dat_psp_create(ia.handle.0, qualifier, queue, flags, &raw mut handle)) }?;
                qualifier
            }
            None => {
                let mut chosen = 0;
                // SAFETY: the results are written to local variables.
                unsafe {
                    call!(functions, dat_psp_create_any(ia.handle.0, &raw mut chosen, queue, flags, &raw mut handle))
                }?;
                chosen
            }
        };
        Ok(Listener { _object: Object::new(ia, handle, functions.dat_psp_free, events), qualifier })
    }

    /// Qualifier of the listener.
    pub fn qualifier(&self) -> u64 {
        self.qualifier
    }
}

/// A connection request of a peer. Dropping it without an answer rejects it.
pub struct ConnectionRequest {
    handle: Handle,
    is_answered: bool,
    ia: Arc<IaInner>,
}

impl ConnectionRequest {
    pub(crate) fn new(ia: &Arc<IaInner>, handle: DAT_CR_HANDLE) -> Self {
        ConnectionRequest { handle: Handle(handle), is_answered: false, ia: Arc::clone(ia) }
    }

    /// Returns the address of the peer, if it is an IP address.
    ///
    /// # Errors
    /// Those of `dat_cr_query`.
    pub fn peer(&self) -> Result<Option<Address>> {
        let param = self.ask(DAT_CR_FIELD_REMOTE_IA_ADDRESS_PTR)?;
        // SAFETY: the address belongs to the request, and is valid as long as the request.
        Ok(unsafe { Address::from_c(param.remote_ia_address_ptr) })
    }

    /// Returns the private data of the request. Some transports pad it with zeros.
    ///
    /// # Errors
    /// Those of `dat_cr_query`.
    pub fn private_data(&self) -> Result<Vec<u8>> {
        let param = self.ask(DAT_CR_FIELD_PRIVATE_DATA_SIZE | DAT_CR_FIELD_PRIVATE_DATA)?;
        // SAFETY: the data belong to the request, and are valid as long as the request.
        Ok(unsafe { copied(param.private_data_size, param.private_data) })
    }

    /// Accepts the request with an unconnected endpoint, and private data for the peer. An event of that endpoint
    /// reports the result.
    ///
    /// # Errors
    /// Those of `dat_cr_accept`; the request is then rejected.
    pub fn accept(mut self, ep: &Ep, private_data: &[u8]) -> Result<()> {
        let (size, data) = private(private_data)?;
        // SAFETY: the data are only read, during the call.
        let code =
            unsafe { (self.ia.functions.dat_cr_accept)(self.handle.0, ep.handle(), size, data.cast_mut().cast()) };
        self.is_answered = is_success(code);
        self.ia.functions.check("dat_cr_accept", code)
    }

    /// Rejects the request.
    ///
    /// # Errors
    /// Those of `dat_cr_reject`.
    pub fn reject(mut self) -> Result<()> {
        // SAFETY: the call has no pointer arguments, and `self` keeps the object alive.
        let code = unsafe { (self.ia.functions.dat_cr_reject)(self.handle.0) };
        self.is_answered = true;
        self.ia.functions.check("dat_cr_reject", code)
    }

    fn ask(&self, fields: DAT_CR_PARAM_MASK) -> Result<DAT_CR_PARAM> {
        // SAFETY: all fields are integers or nullable pointers, so all-zero bytes are valid.
        let mut param: DAT_CR_PARAM = unsafe { mem::zeroed() };
        // SAFETY: the record is a complete local variable.
        unsafe { call!(self.ia.functions, dat_cr_query(self.handle.0, fields, &raw mut param)) }?;
        Ok(param)
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            // SAFETY: the call has no pointer arguments, and `self` keeps the object alive.
            let _ = unsafe { (self.ia.functions.dat_cr_reject)(self.handle.0) };
        }
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionRequest")
    }
}
