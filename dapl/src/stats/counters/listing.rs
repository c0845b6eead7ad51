//! A list of named values for a consumer, in the layout of `DAT_NAMED_ATTR`, with strings at constant addresses.
//!
//! Each IA and each EP has one list, which keeps its address for the life of the object. A later query writes to the
//! same addresses, so a pointer from an earlier query reads the later values. Names and values are NUL-terminated at
//! all times.
#![forbid(unsafe_code)]

use std::ffi::CString;

use dat_abi::DAT_NAMED_ATTR;
use parking_lot::Mutex;

use crate::runtime::consumer_memory::ConsumerVisible;

/// The strings of a list, and the list of their addresses.
#[derive(Debug)]
pub struct Listing {
    list: Box<[[usize; 2]]>,
    /// Number of constant attributes at the start of the list.
    attribute_count: usize,
    lines: Box<[(Name, Value)]>,
    /// Locked while values are written, so that two concurrent queries do not mix digits.
    writing: Mutex<()>,
    _strings: Vec<CString>,
}

/// Name of a value, such as `evd.0x7f0123456780.highest_queue`; at most 47 bytes and a zero byte.
type Name = ConsumerVisible<6>;
/// Decimal text of a value; long enough for 20 digits.
type Value = ConsumerVisible<3>;

const _: () = assert!(size_of::<DAT_NAMED_ATTR>() == size_of::<[usize; 2]>());

impl Listing {
    /// Creates a list of constant attributes, with space for `capacity` counters. An attribute that contains a NUL byte
    /// is omitted.
    pub fn new(attributes: impl IntoIterator<Item = (String, String)>, capacity: usize) -> Self {
        let (mut list, mut strings) = (Vec::new(), Vec::new());
        for (name, value) in attributes {
            let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
            list.push([name.as_ptr() as usize, value.as_ptr() as usize]);
            strings.extend([name, value]);
        }
        let attribute_count = list.len();
        let lines: Box<[(Name, Value)]> = (0..capacity).map(|_| Default::default()).collect();
        list.extend(lines.iter().map(|(name, value)| [name.as_ptr() as usize, value.as_ptr() as usize]));
        Listing { list: list.into(), attribute_count, lines, writing: Mutex::new(()), _strings: strings }
    }

    /// Writes the counters, up to the capacity of the list. Returns the length of the list and its address.
    pub fn write_counters<N: AsRef<str>>(
        &self,
        numbers: impl IntoIterator<Item = (N, u64)>,
    ) -> (i32, *mut DAT_NAMED_ATTR) {
        let _writing = self.writing.lock();
        let mut count = self.attribute_count;
        for ((name, value), (shown, number)) in self.lines.iter().zip(numbers) {
            let text = shown.as_ref().as_bytes();
            name.write(&text[..text.len().min(Name::SIZE - 1)]);
            value.write(number.to_string().as_bytes());
            count += 1;
        }
        match count {
            0 => (0, std::ptr::null_mut()),
            n => (n as i32, self.list.as_ptr().cast_mut().cast()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_first_and_counters_are_rewritten_in_place() {
        let attributes = [("transport", "fake"), ("bad\0", "left out")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let listing = Listing::new(attributes, 2);
        assert_eq!(listing.write_counters([("a", u64::MAX), ("b", 7), ("no space", 8)]).0, 3);
        let text = |n: usize| (listing.lines[n].0.text(), listing.lines[n].1.text());
        assert_eq!(text(0), ("a".to_owned(), "18446744073709551615".to_owned()));
        assert_eq!(text(1), ("b".to_owned(), "7".to_owned()));
        assert_eq!(listing.list[1], [listing.lines[0].0.as_ptr() as usize, listing.lines[0].1.as_ptr() as usize]);

        let long = "x".repeat(60);
        let (count, list) = listing.write_counters([(long.as_str(), 12)]);
        assert_eq!((count, list.cast_const().cast()), (2, listing.list.as_ptr()));
        assert_eq!(text(0), ("x".repeat(47), "12".to_owned()), "at the same address, with a terminating zero");
    }

    #[test]
    fn empty_listing_is_a_null_list() {
        let (count, list) = Listing::new([], 0).write_counters([("a", 1)]);
        assert_eq!((count, list.is_null()), (0, true));
    }
}
