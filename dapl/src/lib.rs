//! The uDAPL object layer: everything between the C calls and a transport, generic over the transport.
//!
//! A provider library consists of a [`provider::Provider`] and [`export_provider!`]. libdat calls its
//! `dat_provider_init`, and [`registration`] passes libdat a provider table ([`table`]) with one entry per DAT
//! function. An entry (`dapl_*`) parses C values, opens handles with [`runtime::handle::from_handle`], and makes one
//! call into the module of its object. Modules call each other through the functions of their `dapls_*` submodules. A
//! transport reports events through sinks: completion queues notify their EVD, shared receive queues their SRQ, and
//! [`cm`] passes connection events to a service point or an EP.
//!
//! Layers, the lowest first. Each layer imports, calls and locks only itself and lower layers. A lower layer reports
//! events to a higher one through traits. The C entries (`dapl_*`) and `runtime::fork` belong to the highest layer.
//! - [`error`], [`names`], [`ffi`], [`libdat`], [`provider`]: errors, C values, libdat and the provider interface;
//!   [`runtime`]: handles, locks, waiting, deadlines, threads, the logger, memory that consumers access
//! - [`stats`]: counters, their publication, traces, receive watermarks
//! - [`ia`], [`pz`], [`cno`]; [`evd`], [`lmr`], [`rmr`], [`srq`]; [`ep`]; [`cr`]; [`service_point`]; [`psp`],
//!   [`rsp`], [`csp`]: the objects
//! - [`cm`]: connection events; [`context`], [`v2`], [`table`], [`registration`]: the entries for handles of any kind,
//!   the entries of DAT 2.0, the provider table and its registration
//!
//! No lock is held while an agent of the consumer runs, and no panic unwinds into C.

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
pub mod service_point;
pub mod srq;
pub mod stats;
pub mod table;
pub mod v2;

#[cfg(test)]
pub(crate) mod fake;

#[doc(hidden)]
pub use dat_abi;

/// Exports `dat_provider_init` and `dat_provider_fini` for a provider. A provider library exports only these two
/// symbols.
///
/// The provider's crate declares the functions of libdat and links libdat; `dapl` does not link libdat.
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
            /// `info` is null or readable; `params` is null or a NUL-terminated string.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn dat_provider_init(info: *const DAT_PROVIDER_INFO, params: *const c_char) {
                // SAFETY: the caller guarantees that the pointers are valid; this library links the libdat of these
                // functions.
                unsafe { $crate::registration::init::<$provider>(LIBDAT, info, params) }
            }

            /// Removes the registration.
            ///
            /// # Safety
            /// `info` is null or readable.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn dat_provider_fini(info: *const DAT_PROVIDER_INFO) {
                // SAFETY: the caller guarantees that the pointer is valid; this library links the libdat of these
                // functions.
                unsafe { $crate::registration::fini::<$provider>(LIBDAT, info) }
            }
        };
    };
}
