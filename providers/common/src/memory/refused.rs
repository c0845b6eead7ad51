//! The log message for a refused RDMA operation: the EP, key, address and length, and the check that failed.
//!
//! Only the engine thread logs this message, because logging would delay posts and polls. A refusal ends the
//! connection, so each connection causes at most one message.
#![forbid(unsafe_code)]

use std::fmt;

use dapl::provider::{Region, Status};

use super::rights::{AccessRight, KeyEntry};

/// The check that refused an RDMA access.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailedCheck {
    /// No registration and no bound window has the key.
    Key,
    /// The accessed range is not inside this range of the key.
    Bounds(Region),
    /// The key belongs to another protection zone than the endpoint.
    Zone,
    /// The key does not grant the access right.
    Right,
    /// The key belongs to a window that only the peer of one endpoint may use, and does not grant this access.
    Endpoint,
    /// The memory of the registration is no longer mapped.
    Mapping,
    /// The peer refused the access, and does not report which check failed.
    Unknown,
}

impl FailedCheck {
    /// Returns the first check that a refused access does not pass. `entry` is the table entry of the key. An access
    /// that passes all checks of the entry was refused because the memory is no longer mapped.
    pub fn of(entry: Option<KeyEntry>, pd: u32, range: Region, right: AccessRight) -> Self {
        let Some(entry) = entry.map(KeyEntry::with_peer_addresses) else { return FailedCheck::Key };
        if entry.serves_one_qp() {
            return FailedCheck::Endpoint;
        }
        let whole = KeyEntry { region: Region { address: 0, length: u64::MAX }, ..entry };
        let nothing = Region::default();
        match () {
            () if entry.pd() != pd => FailedCheck::Zone,
            () if !whole.allows(pd, nothing, right) => FailedCheck::Right,
            () if !entry.allows(pd, range, right) => FailedCheck::Bounds(entry.region),
            () => FailedCheck::Mapping,
        }
    }
}

/// An RDMA access that registered memory does not allow.
#[derive(Clone, Copy, Debug)]
pub struct RefusedAccess {
    /// Handle of the local EP.
    pub ep: usize,
    /// The cookie of the request, or `None` if the peer posted the request.
    pub cookie: Option<u64>,
    pub key: u32,
    pub range: Region,
    pub right: AccessRight,
    pub check: FailedCheck,
}

impl RefusedAccess {
    /// Logs one line about this access.
    #[cold]
    pub fn log(&self) {
        log::warn!("{self}");
    }
}

impl fmt::Display for RefusedAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ep, cookie, key, range: Region { address, length }, right, check } = self;
        let operation = match right {
            AccessRight::RemoteWrite => "rdma write",
            AccessRight::RemoteAtomic => "atomic operation",
            _ => "rdma read",
        };
        let status = Status::RemoteAccess.dat_name();
        match cookie {
            Some(cookie) => {
                write!(f, "ep {ep:#x}: {operation} with cookie {cookie:#x} refused at the peer ({status})")?
            }
            None => write!(f, "ep {ep:#x}: {operation} of the peer refused ({status})")?,
        }
        write!(f, ": key {key:#x}, {length} bytes at {address:#x}: ")?;
        match check {
            FailedCheck::Key => write!(f, "no registration or window has this key"),
            FailedCheck::Bounds(Region { address, length }) => {
                write!(f, "out of bounds: the key is for {length} bytes at {address:#x}")
            }
            FailedCheck::Zone => write!(f, "the key is of another protection zone than the endpoint"),
            FailedCheck::Endpoint => {
                write!(f, "the key is of a window that was bound for one endpoint, and does not grant this access")
            }
            FailedCheck::Right => write!(f, "the key does not grant the right"),
            FailedCheck::Mapping => write!(f, "the memory is no longer mapped"),
            FailedCheck::Unknown => write!(f, "the log of the peer says which check failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use dapl::provider::Access;

    use super::super::rights::{Domain, window_word, word};
    use super::*;

    #[test]
    fn failed_check_is_determined_from_the_key_entry() {
        let region = Region { address: 0x1000, length: 64 };
        let access = Access { remote_read: true, ..Access::default() };
        let entry = Some(KeyEntry { region, word: word(access, 7, 0) });
        let of = |entry, pd, address, right| FailedCheck::of(entry, pd, Region { address, length: 8 }, right);
        assert_eq!(of(None, 7, 0x1000, AccessRight::RemoteRead), FailedCheck::Key);
        assert_eq!(of(entry, 8, 0x1000, AccessRight::RemoteRead), FailedCheck::Zone);
        assert_eq!(of(entry, 7, 0x1000, AccessRight::RemoteWrite), FailedCheck::Right);
        assert_eq!(of(entry, 7, 0x1039, AccessRight::RemoteRead), FailedCheck::Bounds(region));
        assert_eq!(of(entry, 7, 0x1038, AccessRight::RemoteRead), FailedCheck::Mapping);
        let zero_based = Access { zero_based: true, ..access };
        let entry = Some(KeyEntry { region, word: word(zero_based, 7, 0) });
        assert_eq!(of(entry, 8, 0, AccessRight::RemoteRead), FailedCheck::Zone);
        assert_eq!(of(entry, 7, 0, AccessRight::RemoteWrite), FailedCheck::Right);
        let by_offset = Region { address: 0, length: 64 };
        assert_eq!(of(entry, 7, 0x1000, AccessRight::RemoteRead), FailedCheck::Bounds(by_offset));
        let entry = Some(KeyEntry { region, word: window_word(access, Domain::Qp(7)) });
        assert_eq!(of(entry, 7, 0x1000, AccessRight::RemoteRead), FailedCheck::Endpoint);
    }

    #[test]
    fn refused_access_message_has_ep_key_address_and_length() {
        let range = Region { address: 0x2000, length: 8 };
        let check = FailedCheck::Bounds(Region { address: 0x1000, length: 64 });
        let access = RefusedAccess { ep: 0x40, cookie: None, key: 0x12, range, right: AccessRight::RemoteWrite, check };
        assert_eq!(
            access.to_string(),
            "ep 0x40: rdma write of the peer refused (DAT_DTO_ERR_REMOTE_ACCESS): key 0x12, 8 bytes at 0x2000: out of bounds: \
             the key is for 64 bytes at 0x1000"
        );
        let posted =
            RefusedAccess { cookie: Some(9), right: AccessRight::RemoteRead, check: FailedCheck::Key, ..access };
        assert_eq!(
            posted.to_string(),
            "ep 0x40: rdma read with cookie 0x9 refused at the peer (DAT_DTO_ERR_REMOTE_ACCESS): key 0x12, 8 bytes at \
             0x2000: no registration or window has this key"
        );
    }
}
