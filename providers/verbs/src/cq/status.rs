//! Maps the completion status of verbs to that of the provider interface (spec/events 4.5).
//!
//! An unknown status maps to a transport failure, which ends the connection. If it mapped to a flush, a failed
//! connection would stay open.
#![forbid(unsafe_code)]

use dapl::provider::Status;
use ibverbs_sys::ibv_wc;
use ibverbs_sys::ibv_wc_status::*;

/// Returns the status of a completion.
pub(crate) fn of(wc: &ibv_wc) -> Status {
    wc.error().map_or(Status::Success, |(status, _)| status_of(status))
}

/// Returns the status of the provider interface for an `ibv_wc_status`.
fn status_of(status: Type) -> Status {
    match status {
        IBV_WC_SUCCESS => Status::Success,
        IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        IBV_WC_LOC_QP_OP_ERR => Status::LocalEp,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR => Status::LocalProtection,
        IBV_WC_MW_BIND_ERR => Status::BindFailed,
        IBV_WC_BAD_RESP_ERR => Status::BadResponse,
        IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR => Status::RemoteResponder,
        IBV_WC_RNR_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => Status::ReceiverNotReady,
        // Exhausted transport retries, fatal and general errors, and errors of features that the provider does not use.
        _ => Status::Transport,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ibv_wc_status_is_mapped() {
        use Status::*;
        // In the order of `enum ibv_wc_status`.
        let table = [
            Success,          // success
            LocalLength,      // local length
            LocalEp,          // local queue pair operation
            Transport,        // local EE context operation
            LocalProtection,  // local protection
            Flushed,          // flushed
            BindFailed,       // window binding
            BadResponse,      // bad response
            LocalProtection,  // local access
            RemoteResponder,  // remote invalid request
            RemoteAccess,     // remote access
            RemoteResponder,  // remote operation
            Transport,        // transport retries exceeded
            ReceiverNotReady, // receiver-not-ready retries exceeded
            Transport,        // local RDD violation
            Transport,        // remote invalid RD request
            Transport,        // remote abort
            Transport,        // invalid EE context number
            Transport,        // invalid EE context state
            Transport,        // fatal
            ReceiverNotReady, // response timed out
            Transport,        // general
            Transport,        // tag matching
            Transport,        // rendezvous incomplete
        ];
        for (number, status) in table.into_iter().enumerate() {
            assert_eq!(status_of(number as u32), status, "{number}");
        }
        assert_eq!(table.len() as u32, IBV_WC_TM_RNDV_INCOMPLETE + 1);
        assert_eq!([24, 1000, u32::MAX].map(status_of), [Transport; 3], "unknown numbers");
    }
}
