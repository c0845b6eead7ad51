//! Open adapters. All other objects are created on an adapter.

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::Arc;

use dat_abi::*;
use parking_lot::Mutex;

use crate::address::Address;
use crate::descriptor::DescriptorCalls;
use crate::error::{Error, Result};
use crate::library::{Functions, Library, call, text};
use crate::limits::Limits;
use crate::owned::{Handle, IaInner, Object, Pz};

/// Length of the queue for asynchronous errors of an adapter.
const ERRORS: DAT_COUNT = 16;

/// An attribute or a counter that a provider reports by name.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Attribute {
    /// Name of the attribute or counter.
    pub name: String,
    /// The value as text.
    pub value: String,
}

/// Copies a list of named attributes.
///
/// # Safety
/// The list is null, or has `count` records of pointers that are null or C strings.
pub(crate) unsafe fn named(count: DAT_COUNT, list: *const DAT_NAMED_ATTR) -> Vec<Attribute> {
    let count = if list.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    let text = |at: *const std::ffi::c_char| match at.is_null() {
        true => String::new(),
        // SAFETY: the caller guarantees that the pointer is a C string.
        false => unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned(),
    };
    // SAFETY: the caller guarantees that a list that is not null has `count` records. For null, `count` is 0.
    let records = (0..count).map(|at| unsafe { list.add(at).read() });
    records.map(|record| Attribute { name: text(record.name), value: text(record.value) }).collect()
}

/// An open interface adapter. It is closed when it and all objects created on it are dropped.
pub struct Ia {
    pub(crate) inner: Arc<IaInner>,
}

impl Library {
    /// Opens the adapter with this name in dat.conf.
    ///
    /// # Errors
    /// Those of `dat_ia_openv`, for which libdat logs the details, and of `dat_ia_query`. [`Error::Argument`] if the
    /// name contains a NUL, or if the provider requires `dat_lmr_sync_rdma_read`. [`Error::ThreadSafety`] if the
    /// provider is not thread-safe.
    pub fn open(&self, name: &str) -> Result<Ia> {
        let c_name = CString::new(name)
            .map_err(|_| Error::Argument(format!("the adapter name {name:?} contains a NUL byte")))?;
        Ia::open(Arc::clone(&self.functions), name, &c_name)
    }
}

impl Ia {
    fn open(functions: Arc<Functions>, name: &str, c_name: &CStr) -> Result<Self> {
        let (mut errors, mut handle) = (ptr::null_mut(), ptr::null_mut());
        let (c_name, major, minor) = (c_name.as_ptr().cast_mut(), DAT_VERSION_MAJOR, DAT_VERSION_MINOR);
        let (evd, ia) = (&raw mut errors, &raw mut handle);
        // SAFETY: the name is NUL-terminated and only read; the results are written to local variables.
        unsafe { call!(functions, dat_ia_openv(c_name, ERRORS, evd, ia, major, minor, DAT_FALSE)) }?;
        let mut inner = IaInner {
            functions,
            handle: Handle(handle),
            limits: Limits::default(),
            address: None,
            provider: String::new(),
            descriptors: None,
            sink: 0,
            eps: Mutex::default(),
        };
        inner.ask(name)?;
        Ok(Ia { inner: Arc::new(inner) })
    }

    /// Returns the limits of the adapter.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Address of the adapter for peers; `None` if it is not an IP address.
    pub fn address(&self) -> Option<Address> {
        self.inner.address
    }

    /// Returns the named attributes and counters of the provider.
    ///
    /// # Errors
    /// Those of `dat_ia_query`.
    pub fn attributes(&self) -> Result<Vec<Attribute>> {
        let (ia, provider) = self.inner.query()?;
        // SAFETY: both lists were returned by the query above, and the provider keeps them until the next query.
        Ok(unsafe {
            let mut all = named(ia.num_transport_attr, ia.transport_attr);
            all.extend(named(ia.num_vendor_attr, ia.vendor_attr));
            all.extend(named(provider.num_provider_specific_attr, provider.provider_specific_attr));
            all
        })
    }

    /// Name of the adapter's provider.
    pub fn provider(&self) -> &str {
        &self.inner.provider
    }

    /// Creates a protection zone.
    ///
    /// # Errors
    /// Those of `dat_pz_create`.
    pub fn pz(&self) -> Result<Pz> {
        let (ia, mut handle) = (&self.inner, ptr::null_mut());
        // SAFETY: the result is written to a local variable.
        unsafe { call!(ia.functions, dat_pz_create(ia.handle.0, &raw mut handle)) }?;
        Ok(Pz { inner: Arc::new(Object::new(ia, handle, ia.functions.dat_pz_free, ())) })
    }
}

impl IaInner {
    fn query(&self) -> Result<(DAT_IA_ATTR, DAT_PROVIDER_ATTR)> {
        // SAFETY: all fields are integers, arrays of them or nullable pointers, so all-zero bytes are valid.
        let (mut ia, mut provider): (DAT_IA_ATTR, DAT_PROVIDER_ATTR) = unsafe { std::mem::zeroed() };
        // SAFETY: both records are complete local variables, and null is allowed for the asynchronous EVD.
        unsafe {
            call!(
                self.functions,
                dat_ia_query(
                    self.handle.0,
                    ptr::null_mut(),
                    DAT_IA_FIELD_ALL,
                    &raw mut ia,
                    DAT_PROVIDER_FIELD_ALL,
                    &raw mut provider
                )
            )
        }?;
        Ok((ia, provider))
    }

    /// Queries the adapter and fills in the remaining fields. Fails if this crate cannot use the provider.
    fn ask(&mut self, name: &str) -> Result<()> {
        let (ia, provider) = self.query()?;
        if provider.is_thread_safe == DAT_FALSE {
            return Err(Error::ThreadSafety(name.into()));
        }
        if provider.lmr_sync_req != DAT_FALSE {
            return Err(Error::Argument(format!(
                "{name}: its provider requires dat_lmr_sync_rdma_read and _write, which udapl does not call; use another adapter"
            )));
        }
        self.limits = Limits::new(&ia, &provider);
        self.provider = text(&provider.provider_name);
        // SAFETY: the list was returned by the query above.
        let attributes = unsafe { named(provider.num_provider_specific_attr, provider.provider_specific_attr) };
        let attributes: Vec<_> =
            attributes.iter().map(|attribute| (attribute.name.as_str(), attribute.value.as_str())).collect();
        self.descriptors = DescriptorCalls::find(&attributes);
        self.sink = match provider.rdma_write_for_rdma_read_req {
            DAT_FALSE => DAT_MEM_PRIV_LOCAL_WRITE_FLAG,
            _ => DAT_MEM_PRIV_LOCAL_WRITE_FLAG | DAT_MEM_PRIV_REMOTE_WRITE_FLAG,
        };
        // SAFETY: the pointer is null, or refers to the adapter's address, which is valid while the adapter is open.
        self.address = unsafe { Address::from_c(ia.ia_address_ptr) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, ConnectionRequest, Ep, Evd, Listener, Window};

    #[test]
    fn adapters_queues_endpoints_and_memory_are_send_and_sync() {
        fn shared<T: Send + Sync>() {}
        shared::<Ia>();
        shared::<Pz>();
        shared::<Evd>();
        shared::<Ep>();
        shared::<Listener>();
        shared::<ConnectionRequest>();
        shared::<Buffer>();
        shared::<Window>();
    }
}
