//! The uDAPL object layer: everything between the C calls and a transport, generic over the transport.
//!
//! One page: a provider library is a [`provider::Provider`] and one line, [`export_provider!`]. The registry calls its
//! `dat_provider_init`, and [`registration`] answers with a jump table ([`table`]) of entries, one per DAT function. An
//! entry (`dapl_*`) translates C values, opens handles with [`runtime::handle::from_handle`], and makes one call into the
//! module of its object; modules call each other through their `dapls_*`. A transport answers upwards through two sinks: completion
//! queues wake their EVD, and news of connections go through [`cm`] to a CR or an EP.
//!
//! From the bottom up; imports, calls and locks go down this list, only events go up:
//! - [`error`], [`names`], [`ffi`], [`libdat`], [`provider`]: errors, C values, the two neighbours
//! - [`runtime`]: handles, locks, waiting, deadlines, threads, the logger, memory that consumers see
//! - [`stats`]: counters, their publication, traces
//! - [`ia`], [`pz`], [`cno`]; [`evd`], [`lmr`], [`rmr`], [`srq`]; [`ep`]; [`cr`]; [`psp`], [`rsp`]: the objects
//! - [`cm`]: events of connections; [`context`], [`table`], [`registration`]: the way in
//!
//! Absent on purpose: any transport, any lock held while C code runs, any panic that reaches C.

pub mod cm;
pub mod cno;
pub mod context;
pub mod cr;
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

#[cfg(test)]
pub(crate) mod fake;

#[doc(hidden)]
pub use dat_abi;

/// Exports `dat_provider_init` and `dat_provider_fini` for a provider: the only two symbols of its library.
///
/// The functions of libdat are declared here, in the provider's crate, which links it; `dapl` itself does not.
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
                // SAFETY: this function's own contract; the functions are those of the libdat this library links.
                unsafe { $crate::registration::init::<$provider>(LIBDAT, info, params) }
            }

            /// Takes a registration back.
            ///
            /// # Safety
            /// `info` is null or readable.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn dat_provider_fini(info: *const DAT_PROVIDER_INFO) {
                // SAFETY: as above.
                unsafe { $crate::registration::fini::<$provider>(LIBDAT, info) }
            }
        };
    };
}
