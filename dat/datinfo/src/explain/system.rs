//! System errors (errno) that appear in logs of providers, by name and by number.
#![forbid(unsafe_code)]

use dat_settings::log_line::without_numbers;

use super::Meaning;

macro_rules! errors {
    ($($name:ident)*) => {
        const ERRORS: &[(&str, u32)] = &[$((stringify!($name), libc::$name as u32)),*];
    };
}

errors! {
    EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOSPC
    EROFS EPIPE ERANGE ENAMETOOLONG ENOSYS ELOOP ENODATA EPROTO EOVERFLOW ENOTSOCK EMSGSIZE EPROTONOSUPPORT EOPNOTSUPP
    EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EREMOTEIO ECANCELED
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ERRORS.iter().map(|(name, _)| *name)
}

pub(super) fn by_name(word: &str) -> Option<(&'static str, u32)> {
    ERRORS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).copied()
}

pub(super) fn by_number(number: u32) -> Option<&'static str> {
    ERRORS.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

pub(super) fn reading(name: &str, number: u32) -> Meaning {
    let text = std::io::Error::from_raw_os_error(number.cast_signed()).to_string();
    let related = match name {
        "ETIMEDOUT" => "; for a connect DAT has DAT_CONNECTION_EVENT_TIMED_OUT or DAT_CONNECTION_EVENT_UNREACHABLE",
        "ECONNREFUSED" => "; for a connect DAT has DAT_CONNECTION_EVENT_NON_PEER_REJECTED",
        "EHOSTUNREACH" | "ENETUNREACH" => "; for a connect DAT has DAT_CONNECTION_EVENT_UNREACHABLE",
        "EADDRINUSE" => "; for a listener DAT has DAT_CONN_QUAL_IN_USE",
        "ENOMEM" => "; for a registration the limit of locked memory is a frequent cause (datinfo doctor)",
        _ => "",
    };
    Meaning {
        kind: "errno".to_owned(),
        name: name.to_owned(),
        number: number.to_string(),
        meaning: without_numbers(&text) + related,
        ..Meaning::default()
    }
}
