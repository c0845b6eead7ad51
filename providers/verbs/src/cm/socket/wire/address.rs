//! Socket addresses in messages of both formats: a C `sockaddr` record. The family is in the sender's byte order, the
//! address in network byte order.
#![forbid(unsafe_code)]

use std::net::IpAddr;

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// Length of the record in bytes.
pub(super) const LENGTH: usize = 28;

/// Encodes an address with port 0; `None` with family 0.
pub(super) fn encode(address: Option<IpAddr>) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    match address {
        None => {}
        Some(IpAddr::V4(ip)) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[8..24].copy_from_slice(&ip.octets());
        }
    }
    bytes
}

/// Decodes an address; `None` for other families than IPv4 and IPv6. Accepts the family in either byte order: the
/// byte-swapped number of IPv4 is not the number of IPv6, and vice versa.
pub(super) fn decode(bytes: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]);
    let is = |number| [family, family.swap_bytes()].contains(&number);
    if is(AF_INET) {
        return Some(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?.into());
    }
    let octets = bytes.get(8..24).filter(|_| is(AF_INET6))?;
    Some(<[u8; 16]>::try_from(octets).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_family_in_either_byte_order_is_decoded_and_unknown_is_none() {
        let mut bytes = encode(Some("192.0.2.7".parse().unwrap()));
        bytes[..2].reverse();
        assert_eq!(decode(&bytes), Some("192.0.2.7".parse().unwrap()));
        bytes[..2].copy_from_slice(&[7, 7]);
        assert_eq!(decode(&bytes), None);
    }
}
