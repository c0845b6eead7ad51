//! The uDAPL object layer, generic over a provider.
pub mod error;
pub mod ffi;
pub mod handle;
pub mod provider;
