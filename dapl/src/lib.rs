//! The uDAPL object layer: everything between the C calls and a transport, generic over the transport.
//!
//! A provider library consists of a [`provider::Provider`] and [`export_provider!`]. libdat calls its
//! `dat_provider_init`, and [`registration`] registers a table ([`table`]) of entries, one per DAT function. An entry
//! (`dapl_*`) parses C values, opens handles with [`runtime::handle::from_handle`], and makes one call into the module
//! of its object; modules call each other through their `dapls_*` functions. A transport reports upwards through sinks:
//! completion queues notify their EVD, and [`cm`] passes connection events to a service point or an EP.
//!
//! Layers, from the bottom up. Imports, calls and locks go down this list; only events go up:
//! - [`error`], [`names`], [`ffi`], [`libdat`], [`provider`]: errors, C values, libdat and the provider interface
//! - [`runtime`]: handles, locks, waiting, deadlines, threads, the logger, memory that consumers access
//! - [`stats`]: counters, their publication, traces
//! - [`ia`], [`pz`], [`cno`]; [`evd`], [`lmr`], [`rmr`], [`srq`]; [`ep`]; [`cr`]; [`psp`], [`rsp`], [`csp`]: the
//!   objects
//! - [`cm`]: connection events; [`context`], [`v2`], [`table`], [`registration`]: the remaining entries, those of DAT
//!   2.0, the provider table and its registration
//!
//! No lock is held while C code runs, and no panic reaches C.

pub mod cm;
pub mod cno;
pub mod context;
pub mod cr;
pub mod csp;
mod dapl_descriptor;
pub mod ep;
pub mod error;
pub mod evd;
pub mod ffi;
pub mod ia;
pub mod libdat;
pub mod lmr;
pub mod names;
pub mod provider;
pub mod psp;
pub mod pz;
pub mod registration;
pub mod rmr;
pub mod rsp;
pub mod runtime;
pub mod srq;
pub mod stats;
pub mod table;
pub mod v2;

#[cfg(test)]
pub(crate) mod fake;

#[doc(hidden)]
pub use dat_abi;

/// Exports `dat_provider_init` and `dat_provider_fini` for a provider: the only two symbols of its library.
///
/// The functions of libdat are declared in the provider's crate, which links libdat; `dapl` does not.
#[macro_export]
macro_rules! export_provider {
    ($provider:ty) => {
        const _: () = {
            use ::std::ffi::c_char;
            use $crate::dat_abi::{DAT_IA_HANDLE, DAT_PROVIDER, DAT_PROVIDER_INFO, DAT_RETURN};

            unsafe extern "C" {
                fn dat_registry_add_provider(_: *const DAT_PROVIDER, _: *const DAT_PROVIDER_INFO) -> DAT_RETURN;
                fn dat_registry_remove_provider(_: *const DAT_PROVIDER, _: *const DAT_PROVIDER_INFO) -> DAT_RETURN;
                fn dats_get_ia_handle(_: DAT_IA_HANDLE, _: *mut DAT_IA_HANDLE) -> DAT_RETURN;
            }

            const LIBDAT: $crate::libdat::Libdat = $crate::libdat::Libdat {
                add: dat_registry_add_provider,
                remove: dat_registry_remove_provider,
                get_ia_handle: dats_get_ia_handle,
            };

            /// Registers a name with libdat.
            ///
            /// # Safety
            /// `info` is null or readable, `params` null or a string.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn dat_provider_init(info: *const DAT_PROVIDER_INFO, params: *const c_char) {
                // SAFETY: the caller guarantees the pointers; the functions are those of the libdat that this library links.
                unsafe { $crate::registration::init::<$provider>(LIBDAT, info, params) }
            }

            /// Removes the registration.
            ///
            /// # Safety
            /// `info` is null or readable.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn dat_provider_fini(info: *const DAT_PROVIDER_INFO) {
                // SAFETY: the caller guarantees the pointers; the functions are those of the libdat that this library links.
                unsafe { $crate::registration::fini::<$provider>(LIBDAT, info) }
            }
        };
    };
}
