//! Helpers for cases. `use crate::kit::*;` imports the helpers, the 73 functions of DAT 1.2 (`crate::api`), and every
//! name of `dat_abi`.
//!
//! Helpers check the preconditions of a case; a failure names the case's line. The case itself makes the calls under
//! test.
#![allow(unused_imports, reason = "helpers for future cases stay, even if no case uses them")]

mod agent;
mod cancel;
mod codes;
mod connect;
mod event;
mod memory;
mod object;
mod one_of_each;
mod raw;
mod thread;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) use dat_abi::*;

pub(crate) use crate::api::*;
pub(crate) use crate::case::{Case, Need, cases, local, pair};
pub(crate) use crate::ctx::{Ctx, Mode, Role};
pub(crate) use crate::os;
pub(crate) use agent::*;
pub(crate) use cancel::*;
pub(crate) use codes::*;
pub(crate) use connect::*;
pub(crate) use event::*;
pub(crate) use memory::*;
pub(crate) use object::*;
pub(crate) use one_of_each::*;
pub(crate) use raw::{address_at, bytes_at, context_bits, named_attributes, region_address, write_at};
pub(crate) use thread::*;

/// Whether the library under test is a DAT 2.0 library.
pub(crate) fn is_2_0() -> bool {
    crate::api::is_2_0()
}

/// How long a helper waits for an expected event. This is no claim about speed.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// The adapter's name, for code without a context.
pub(crate) static PROVIDER: OnceLock<String> = OnceLock::new();

/// Checks that the private data is exactly `sent`. Over rdma_cm, zeros may follow, because requests always carry 48
/// bytes (56 in 2.0) and accepts 196 (spec/endpoints 9.2).
#[track_caller]
pub(crate) fn expect_data(came: &[u8], sent: &[u8]) {
    static IS_PADDED: OnceLock<bool> = OnceLock::new();
    let ask = || PROVIDER.get().map(|name| Ia::open(name, 8).provider_attr());
    let ask = || ask().is_some_and(|attr| [48, 56].contains(&attr.max_private_data_size));
    if came.len() > sent.len() && [48, 56, 196].contains(&came.len()) && *IS_PADDED.get_or_init(ask) {
        assert_eq!(came[..sent.len()], *sent);
        assert!(
            came[sent.len()..].iter().all(|byte| *byte == 0),
            "the bytes after the private data are not zero: {came:?}"
        );
    } else {
        assert_eq!(came, sent);
    }
}

/// Factor for time limits on a slow machine.
pub(crate) static TIMEOUT_FACTOR: AtomicU32 = AtomicU32::new(1);

/// Multiplies `SOON` by the factor for slow machines. Other times are returned unchanged.
pub(crate) fn scaled_timeout(time: Duration) -> Duration {
    if time == SOON { SOON * TIMEOUT_FACTOR.load(Ordering::Relaxed) } else { time }
}

/// Whether the provider supports a feature, by its attributes.
pub(crate) fn has(provider: &str, need: Need) -> bool {
    let ia = Ia::open(provider, 8);
    let (adapter, attr) = (ia.attr(), ia.provider_attr());
    match need {
        Need::Srq => attr.srq_supported != DAT_FALSE && adapter.max_srqs > 0,
        Need::Rmr => adapter.max_rmrs > 0,
        Need::ProviderEp => attr.ep_creator != DAT_PSP_CREATES_EP_NEVER,
        Need::Multipath => attr.supports_multipath != DAT_FALSE,
        // The array is indexed by event stream, in the order of the flags: SOFTWARE, CR, DTO, CONNECTION, RMR_BIND,
        // ASYNC.
        Need::Merging => attr.evd_stream_merging_supported[2][3] != DAT_FALSE,
    }
}
