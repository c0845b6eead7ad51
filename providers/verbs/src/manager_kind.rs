//! The kinds of connection managers: their names in settings, and the library names that select them.
#![forbid(unsafe_code)]

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ManagerKind {
    /// Connections by rdma_cm.
    Rdma,
    /// Messages over TCP, in this wire format.
    Socket(SocketFormat),
    /// No messages, for fabric bring-up.
    None,
    /// Messages over a UD queue pair, as in the C implementation's `libdaploucm` and `libdaplomcm`. The name of one of
    /// these libraries in a dat.conf line selects this kind; no setting does. Not implemented: the IA cannot be opened.
    Datagram,
}

impl ManagerKind {
    /// All names that settings accept, for messages.
    pub(crate) const NAMES: &str = "\"rdma\", \"socket\", \"socket2\" or \"none\"";

    /// Returns the name used in settings and messages. No setting accepts `ucm`, the name of `Datagram`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ManagerKind::Rdma => "rdma",
            ManagerKind::Socket(SocketFormat::Dat12) => "socket",
            ManagerKind::Socket(SocketFormat::Dat20) => "socket2",
            ManagerKind::None => "none",
            ManagerKind::Datagram => "ucm",
        }
    }

    /// Returns the manager that the library of the C implementation with this file name uses; `Rdma` for any other
    /// name.
    pub(crate) fn of_library(name: &str) -> Self {
        match name.split_once(".so").map_or(name, |(name, _)| name) {
            "libdaplscm" => ManagerKind::Socket(SocketFormat::Dat12),
            "libdaploscm" => ManagerKind::Socket(SocketFormat::Dat20),
            "libdaploucm" | "libdaplomcm" => ManagerKind::Datagram,
            _ => ManagerKind::Rdma,
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let sockets = [SocketFormat::Dat12, SocketFormat::Dat20].map(ManagerKind::Socket);
        let others = [ManagerKind::Rdma, ManagerKind::None];
        sockets.into_iter().chain(others).find(|kind| kind.name() == text)
    }
}

/// Wire format of a connection manager over TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SocketFormat {
    /// The format of the C implementation for DAT 1.2 (`libdaplscm.so.1`).
    Dat12,
    /// The format of the C implementation for DAT 2.0 (`libdaploscm.so.2`).
    Dat20,
}
