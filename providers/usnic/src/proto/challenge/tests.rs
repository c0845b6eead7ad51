//! Peers that move, that are silent, and those who only say that they are the peer.
