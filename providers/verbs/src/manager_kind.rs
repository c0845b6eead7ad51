//! Names of the connection managers in settings, and the library names that select them.
#![forbid(unsafe_code)]

/// Connection managers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ManagerKind {
    /// rdma_cm.
    Rdma,
    /// Messages over TCP, in this format.
    Socket(SocketFormat),
    /// No messages, for fabric bring-up.
    None,
    /// Messages over a UD queue pair, as in the C implementation's `libdaploucm`. No setting names it, and no IA with it opens.
    Datagram,
}

impl ManagerKind {
    /// All names, for messages.
    pub(crate) const NAMES: &str = "\"rdma\", \"socket\", \"socket2\" or \"none\"";

    /// Name in settings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ManagerKind::Rdma => "rdma",
            ManagerKind::Socket(SocketFormat::Dat12) => "socket",
            ManagerKind::Socket(SocketFormat::Dat20) => "socket2",
            ManagerKind::None => "none",
            ManagerKind::Datagram => "ucm",
        }
    }

    /// The manager of the C implementation's library with this file name.
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

/// Wire formats of the managers over TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SocketFormat {
    /// That of the C implementation's provider for DAT 1.2 (`libdaplscm.so.1`).
    Dat12,
    /// That of its provider for DAT 2.0 (`libdaploscm.so.2`).
    Dat20,
}
